"""WildVision-Battle (WildVision/wildvision-battle): people's votes between two models' conversations about an image.

Not confirmed at the source: the values of `winner`. Read are model_a, model_b, and ties (`tie…`, `bothbad…`); another
value is refused. Only battles whose conversations differ in the last answer alone are a pair: with several turns each
model has had a conversation of its own.
"""

from typing import Literal

from pydantic import Field

from mmrm.data.errors import LeftOut, RecordError
from mmrm.data.preference import Preference
from mmrm.data.sources.shared.conversation import implicit, messages
from mmrm.data.sources.shared.file_source import FilesConfig, SourceRow


class WildVisionBattleConfig(FilesConfig):
    """The decided battles."""

    COLUMNS = ("conversation_a", "conversation_b", "image", "winner")
    LICENCE = "ODC-BY"

    type: Literal["wildvision_battle"]
    hub: str | None = "WildVision/wildvision-battle"
    files: list[str] = Field(default=["*.parquet"])
    """Which parquet files: the set has several configurations, each in a folder of its own."""

    @property
    def patterns(self) -> list[str]:
        """What the recipe names."""
        return self.files

    def convert(self, row: SourceRow) -> Preference:
        """Columns question_id, model_a, model_b, conversation_a, conversation_b, language, image, turn, winner and others."""
        winner = row.text("winner")
        if winner.startswith(("tie", "bothbad")):
            raise LeftOut("tie", f"the vote is {winner!r}.")
        if winner not in ("model_a", "model_b"):
            raise RecordError(
                f"the winner is {winner!r}; expected is model_a, model_b, tie… or bothbad…."
            )
        one, two = row.value("conversation_a", list), row.value("conversation_b", list)
        if len(one) != len(two) or one[:-1] != two[:-1]:
            raise LeftOut("no_pair", "the two conversations differ before the last answer.")
        shared, chosen, rejected = implicit(one, two)
        if winner == "model_b":
            chosen, rejected = rejected, chosen
        image = row.stored_image("image")
        prompt = messages(shared, 1)
        return Preference(
            row.identity, prompt, chosen, rejected, (image,), category=row.label("language")
        )
