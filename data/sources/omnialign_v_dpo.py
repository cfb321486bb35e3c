"""OmniAlign-V-DPO (PhoenixZ/OmniAlign-V-DPO): 150k pairs with images.

Each topic has a JSON-lines file, and the images are in images.tar. BaseReward tried 120k of its
pairs and left the set out.
"""

from typing import Literal, get_args

from mmrm.data.errors import UserError
from mmrm.data.preference import Preference, text_responses
from mmrm.data.sources.shared.conversation import prompt_from_question
from mmrm.data.sources.shared.file_source import ImageFilesConfig, LocatedFiles, SourceRow

Topic = Literal["chart", "creation", "diagram", "ins_follow", "knowledge", "poster"]


class OmniAlignVDpoConfig(ImageFilesConfig):
    """A source of the pairs of OmniAlign-V-DPO, of all its topics or of some."""

    type: Literal["omnialign_v_dpo"]
    hub: str | None = "PhoenixZ/OmniAlign-V-DPO"
    topics: list[Topic] | None = None
    """Topics whose pairs are read; null takes all."""

    @property
    def patterns(self) -> list[str]:
        """The `fnmatch` patterns of the topics' files, and of the archive of images."""
        topics = self.topics or get_args(Topic)
        return [*(f"*{topic}*.jsonl" for topic in topics), "*images.tar"]

    def locate(self) -> LocatedFiles:
        """Return the source's files as `FilesConfig.locate` does.

        Raises:
            UserError: Also if a topic that the recipe names has no file.
        """
        located = super().locate()
        stems = " ".join(path.stem for path in located.files)
        missing = [topic for topic in self.topics or () if topic not in stems]
        if missing:
            raise UserError(
                f"source {self.label!r}: `topics` names {', '.join(missing)}, and {located.root} "
                "holds no file of them. Fetch their files, or remove them from `topics`."
            )
        return located

    def convert(self, row: SourceRow) -> Preference:
        """Return the record of a row with the columns image, prompt, chosen and rejected."""
        prompt = prompt_from_question(row.text("prompt").strip(), 1)
        chosen = row.text("chosen")
        rejected = row.text("rejected")
        return Preference(
            row.identity, prompt, text_responses(chosen, rejected), (row.image(row.text("image")),)
        )
