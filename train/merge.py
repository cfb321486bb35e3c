"""Write adapters and their base as one ordinary checkpoint, which loads with plain transformers.

    python train/merge.py runs/lora/best merged
    python eval/run.py merged

The merged checkpoint gives the scores of the adapters, except for rounding.
"""

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the clone, installed or not

from mmrm.data.display.command import command
from mmrm.data.errors import UserError
from mmrm.data.storage.files import write_whole
from mmrm.data.storage.output_lock import locked_file
from mmrm.eval.judges.checkpoint import backbone_of, card_of_adapters
from mmrm.eval.results.run_folder import CARD
from mmrm.models.backbone import load_critic, load_encoder, load_language_model, load_scalar
from mmrm.models.lora import is_adapter, with_adapters
from mmrm.train.checkpoints.integrity import mark_complete
from mmrm.train.runs.model_card import reference_scores, write_reference


def merge(checkpoint: Path, folder: Path) -> None:
    """Write the adapters of `checkpoint`, merged into their base, into `folder`.

    They are added up in the dtype of the base. A base that was in 4 bits during training is loaded
    in its own dtype, so no quantised weights are written. The folder gets its name when everything
    is in it. The caller holds the lock of `folder`.

    Raises:
        UserError: `checkpoint` has no adapters, or `folder` exists.
    """
    if not is_adapter(checkpoint):
        raise UserError(
            f"{checkpoint} holds no adapters: it has no adapter_config.json without a config.json. "
            "Give a checkpoint-N folder of a LoRA run."
        )
    if folder.exists():
        raise UserError(f"{folder} exists already, and nothing is overwritten. Give a new folder.")
    run = card_of_adapters(checkpoint)
    base: Any
    if run.method == "naive":
        base = load_scalar(run.backbone, run.head)
    elif run.method == "critic":
        base = load_critic(run.backbone, run.head)
    else:
        base = load_language_model(run.backbone)
    adapted: Any = with_adapters(base, checkpoint)
    unfinished = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(unfinished, ignore_errors=True)  # left by a command that was killed
    adapted.merge_and_unload().save_pretrained(unfinished)
    load_encoder(backbone_of(checkpoint, run), run.backbone).save_pretrained(unfinished)
    # Prompts, images and benchmarks stay those of the run, so the scores do, too.
    write_whole(unfinished / CARD, run.model_copy(update={"nf4": False}).model_dump_json(indent=1))
    if run.head is not None:
        write_reference(unfinished, reference_scores(checkpoint))
    mark_complete(unfinished)
    unfinished.rename(folder)


def main() -> None:
    """Read the command line and merge."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    with command(), locked_file(options.folder):
        merge(options.checkpoint, options.folder)


if __name__ == "__main__":
    main()
