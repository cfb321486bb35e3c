"""The judges that can annotate pairs, by the `type` of their settings.

A judge that writes a comparison of two responses can annotate. To add one, write a function
`(path, config, options) -> PairAnnotator` and add its import path to `ANNOTATORS`.
"""

from pathlib import Path
from typing import Any

from mmrm.data.config.registry import load
from mmrm.data.errors import CheckpointError
from mmrm.eval.annotation.pair_annotator import AnnotatorOptions, PairAnnotator
from mmrm.eval.judges.registry import judge_config

ANNOTATORS = {
    "endpoint": "mmrm.eval.annotation.endpoint_annotator:open_endpoint_annotator",
    "generative": "mmrm.eval.annotation.judge_annotator:open_generative_annotator",
    "released": "mmrm.eval.annotation.judge_annotator:open_released_annotator",
}
"""The import path of the function that opens an annotator, by the type of the judge. An endpoint
needs no torch, so that the functions are imported only when they are called."""


def open_annotator(path: Path, options: AnnotatorOptions) -> PairAnnotator:
    """Return the judge at `path` as a model that annotates pairs.

    Args:
        path: A checkpoint folder, or the YAML file of a judge.
        options: The options of the command line.

    Raises:
        CheckpointError: If there is no judge at `path`, or it does not compare two responses in
            writing.
    """
    config = judge_config(path)
    if config.type not in ANNOTATORS:
        raise CheckpointError(
            f"{path} is a judge of type {config.type}, which writes no comparison of two responses. "
            f"Annotate with a judge of type {', '.join(ANNOTATORS)}."
        )
    open_judge: Any = load(ANNOTATORS[config.type])
    annotator: PairAnnotator = open_judge(path, config, options)
    return annotator
