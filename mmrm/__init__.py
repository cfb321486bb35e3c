"""The import name of this project: `mmrm.data`, `mmrm.models`, `mmrm.eval` and `mmrm.train`.

The sources are in the folders data/, models/, eval/ and train/ of the clone. In a clone, this folder
holds a relative link to each of them, so that every tool finds the packages under one name. An
installed wheel holds the folders themselves.

    from mmrm import load_judge

    judge = load_judge("runs/shapes/naive/best")

Importing this package imports no torch. `load_judge` is imported when it is first used.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmrm.eval.judges.loading import load_judge

__all__ = ["__version__", "load_judge"]

__version__ = "0.2.0"

if not Path(__file__).with_name("data").is_dir():
    # Git writes a link as a small text file where links are switched off (Windows without developer
    # mode), and some archives leave links out.
    raise ImportError(
        f"{Path(__file__).parent} holds no link to the folder data/ of the clone. mmrm/data, "
        "mmrm/models, mmrm/eval, mmrm/train and mmrm/recipes have to be links to ../data and so on. "
        "Clone again with `git clone -c core.symlinks=true`, or unpack an archive with a program "
        "that keeps links."
    )


def __getattr__(name: str) -> Any:
    """Import `load_judge` when it is first asked for (PEP 562)."""
    if name != "load_judge":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mmrm.eval.judges.loading import load_judge

    return load_judge
