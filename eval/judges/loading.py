"""From a path to a judge: a checkpoint folder by what its config.json says, a YAML file by its `type`.

judge = load_judge("runs/mine/best")
scores = judge.score([{"role": "user", "content": [{"type": "image", "image": "cat.png"}, {"type": "text", …}]}], responses)
"""

from pathlib import Path

import torch

from mmrm.data.config.registry import load
from mmrm.eval.judges.checkpoint import Runtime
from mmrm.eval.judges.loaded import LoadedJudge
from mmrm.eval.judges.registry import judge_config


def load_judge(path: str | Path, runtime: Runtime | None = None) -> LoadedJudge:
    """Return the judge at `path`: a checkpoint folder of any of the three kinds, or the YAML file of a judge.

    Without `runtime` it runs on the first GPU, or else on the CPU. Raises: CheckpointError for what is no whole judge.
    """
    config = judge_config(Path(path))
    if runtime is None:
        runtime = Runtime(torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    judge: LoadedJudge = load(config.implementation)(Path(path), runtime, config)
    return judge
