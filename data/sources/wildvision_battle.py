"""WildVision-Battle (WildVision/wildvision-battle): people's votes about images.

A vote compares two models' conversations about an image. The values of `winner` were not confirmed
at the source. model_a, model_b and ties (`tie…`, `bothbad…`) are read, and another value is
refused. A battle becomes a pair only if its conversations differ in the last answer alone. With
several turns, each model had its own conversation.
"""

from typing import Literal

from pydantic import Field

from mmrm.data.errors import LeftOut, RecordError
from mmrm.data.preference import Preference, positions_of_pair, text_responses
from mmrm.data.sources.shared.conversation import prompt_from_turns, split_conversations
from mmrm.data.sources.shared.file_source import SourceRow
from mmrm.data.sources.shared.ties import TIED_RANKS, TiedComparisonsConfig


class WildVisionBattleConfig(TiedComparisonsConfig):
    """A source of the comparisons of two models in WildVision."""

    COLUMNS = ("conversation_a", "conversation_b", "image", "winner")
    LICENCE = "ODC-BY"

    type: Literal["wildvision_battle"]
    hub: str | None = "WildVision/wildvision-battle"
    files: list[str] = Field(default=["*.parquet"])
    """Which parquet files: the set has several configurations, each in its own folder."""

    @property
    def patterns(self) -> list[str]:
        """The `fnmatch` patterns, set in the recipe, of the files that belong to the source."""
        return self.files

    def convert(self, row: SourceRow) -> Preference:
        """Return the preference record of a row, whose chosen response is the winner's last answer.

        The responses of a tie are the last answers of model a and model b, in this order.

        The columns conversation_a, conversation_b, winner, image and language are read.

        Raises:
            LeftOut: If the vote is a tie and ties are left out, or the conversations differ before
                the last answer.
            RecordError: If the row has another form, or an unknown value of `winner`.
        """
        winner = row.text("winner")
        is_tie = winner.startswith(("tie", "bothbad"))
        if is_tie:
            self.check_tie(f"the vote is {winner!r}.")
        if not is_tie and winner not in ("model_a", "model_b"):
            raise RecordError(
                f"'winner' is {winner!r}, and only model_a, model_b, tie… and bothbad… are known. "
                "Correct the value, or remove the row."
            )
        turns_a = row.value("conversation_a", list)
        turns_b = row.value("conversation_b", list)
        if len(turns_a) != len(turns_b) or turns_a[:-1] != turns_b[:-1]:
            raise LeftOut("no_pair", "the two conversations differ before the last answer.")
        shared_turns, chosen, rejected = split_conversations(turns_a, turns_b)
        if winner == "model_b":
            chosen, rejected = rejected, chosen
        image = row.stored_image("image")
        prompt = prompt_from_turns(shared_turns, 1)
        return Preference(
            row.identity,
            prompt,
            text_responses(chosen, rejected),
            (image,),
            category=row.text_or_empty("language"),
            ranks=TIED_RANKS if is_tie else (0, 1),
            positions=positions_of_pair(winner != "model_b"),
        )
