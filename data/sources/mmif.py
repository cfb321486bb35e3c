"""MMIF (ChrisDing1105/MMIF-23k): 22k to 23k pairs on following instructions about an image.

The set is a ShareGPT preference list. Versions 1.0 and 2 of the set differ. Rows of the form
{images, conversations, chosen: {from, value}, rejected: {from, value}} are read, and a row of
another form is refused. BaseReward found that the set did not help, and left it out.
"""

from typing import Literal

from mmrm.data.sources.sharegpt import ShareGptConfig


class MmifConfig(ShareGptConfig):
    """A source of the pairs of MMIF. Its files have the form of ShareGPT."""

    type: Literal["mmif"]  # type: ignore[assignment]  # another tag of the same form
    hub: str | None = "ChrisDing1105/MMIF-23k"
