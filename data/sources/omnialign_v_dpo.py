"""OmniAlign-V-DPO (PhoenixZ/OmniAlign-V-DPO): 150k pairs in one JSON-lines file a topic, images in images.tar.

BaseReward tried 120k of it and left it out.
"""

from typing import Literal, get_args

from mmrm.data.errors import UserError
from mmrm.data.preference import Preference
from mmrm.data.sources.shared.conversation import question
from mmrm.data.sources.shared.file_source import ImageFilesConfig, LocatedFiles, SourceRow

Topic = Literal["chart", "creation", "diagram", "ins_follow", "knowledge", "poster"]


class OmniAlignVDpoConfig(ImageFilesConfig):
    """All topics, or some."""

    type: Literal["omnialign_v_dpo"]
    hub: str | None = "PhoenixZ/OmniAlign-V-DPO"
    topics: list[Topic] | None = None
    """Null takes all."""

    @property
    def patterns(self) -> list[str]:
        """The files of the topics, and the images."""
        return [*(f"*{topic}*.jsonl" for topic in self.topics or get_args(Topic)), "*images.tar"]

    def locate(self) -> LocatedFiles:
        """Find the files; each topic that the recipe names must have one."""
        located = super().locate()
        missing = [
            topic
            for topic in self.topics or ()
            if not any(topic in path.stem for path in located.files)
        ]
        if missing:
            raise UserError(
                f"{self.label}: {located.root} holds no file of {', '.join(missing)}: fetch it."
            )
        return located

    def convert(self, row: SourceRow) -> Preference:
        """Columns image, prompt, chosen, rejected."""
        prompt = question(row.text("prompt").strip(), 1)
        chosen, rejected = row.text("chosen"), row.text("rejected")
        return Preference(row.identity, prompt, chosen, rejected, (row.image(row.text("image")),))
