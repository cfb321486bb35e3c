"""OmniAlign-V-DPO (PhoenixZ/OmniAlign-V-DPO): 150k pairs in one JSON-lines file a topic, images in images.tar.

BaseReward tried 120k of it and left it out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from data.errors import UserError
from data.preference import Preference
from data.sources.shared.base import Source, TableSource
from data.sources.shared.conversation import MARKER, question
from data.sources.shared.files import FilesConfig
from data.storage.archives import Images, open_images
from data.storage.rows import Row, field
from data.storage.tables import open_rows

TOPICS = ("chart", "creation", "diagram", "ins_follow", "knowledge", "poster")


class OmniAlignVDpoConfig(FilesConfig):
    """All topics, or some."""

    type: Literal["omnialign_v_dpo"]
    hub: str | None = "PhoenixZ/OmniAlign-V-DPO"
    topics: list[Literal["chart", "creation", "diagram", "ins_follow", "knowledge", "poster"]] | None = None
    images: str | None = None
    """A folder or an uncompressed tar of the images; None takes images.tar of the data set, or its folder."""

    def open(self, cache: Path) -> Source:
        """Open the topics' files and the images."""
        located = self.locate([*(f"*{topic}*.jsonl" for topic in self.topics or TOPICS), "*images.tar"])
        missing = [topic for topic in self.topics or () if not any(topic in path.stem for path in located.files)]
        if missing:
            raise UserError(f"{self.label}: {located.root} holds no file of {', '.join(missing)}: fetch it.")
        archives = [path for path in located.files if path.suffix == ".tar"]
        places = [Path(self.images).expanduser()] if self.images else archives or [located.root]
        rows = open_rows([path for path in located.files if path.suffix == ".jsonl"], cache)
        convert = _Convert(open_images(places, cache))
        return TableSource(self.label, "not stated", located.revision, rows, convert, self.settings)


class _Convert:
    """Rows to records; a class so that it pickles."""

    def __init__(self, images: Images) -> None:
        self.images = images

    def __call__(self, row: Row, record: str) -> Preference:
        text = field(row, "prompt", str, record).replace(MARKER, "").strip()
        return Preference(
            identity=record,
            prompt=(question(text, 1, record),),
            chosen=field(row, "chosen", str, record),
            rejected=field(row, "rejected", str, record),
            images=(self.images.find(field(row, "image", str, record), record),),
        )
