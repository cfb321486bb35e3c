"""OmniAlign-V-DPO (PhoenixZ/OmniAlign-V-DPO): 150k pairs in one JSON-lines file a topic, images in images.tar.

BaseReward tried 120k of it and left it out.
"""

from pathlib import Path
from typing import Literal, get_args

from data.errors import UserError
from data.preference import Preference
from data.sources.shared.conversation import MARKER, question
from data.sources.shared.files import ImageFilesConfig, SourceRow, TableSource
from data.storage.archives import open_images
from data.storage.tables import open_rows

Topic = Literal["chart", "creation", "diagram", "ins_follow", "knowledge", "poster"]


class OmniAlignVDpoConfig(ImageFilesConfig):
    """All topics, or some. `images` may also be an uncompressed tar; None takes images.tar of the data set, or its folder."""

    type: Literal["omnialign_v_dpo"]
    hub: str | None = "PhoenixZ/OmniAlign-V-DPO"
    topics: list[Topic] | None = None

    @property
    def patterns(self) -> list[str]:
        """The files of the topics, and the images."""
        return [*(f"*{topic}*.jsonl" for topic in self.topics or get_args(Topic)), "*images.tar"]

    def open(self, cache: Path) -> TableSource:
        """Open the topics' files and the images."""
        located = self.locate()
        missing = [topic for topic in self.topics or () if not any(topic in path.stem for path in located.files)]
        if missing:
            raise UserError(f"{self.label}: {located.root} holds no file of {', '.join(missing)}: fetch it.")
        archives = [path for path in located.files if path.suffix == ".tar"]
        places = [Path(self.images).expanduser()] if self.images else archives or [located.root]
        rows = open_rows([path for path in located.files if path.suffix == ".jsonl"], cache)
        return TableSource(self, located.revision, rows, open_images(places, cache))

    def convert(self, row: SourceRow) -> Preference:
        """Columns image, prompt, chosen, rejected."""
        prompt = question(row.text("prompt").replace(MARKER, "").strip(), 1)
        chosen, rejected = row.text("chosen"), row.text("rejected")
        return Preference(row.identity, prompt, chosen, rejected, (row.image(row.text("image")),))
