"""WildVision-Battle (WildVision/wildvision-battle): people's votes between two models' conversations about an image.

Not confirmed at the source: the values of `winner`. Read are model_a, model_b, and ties (`tie…`, `bothbad…`); another
value is refused. Only battles whose conversations differ in the last answer alone are a pair: with several turns each
model has had a conversation of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from data.errors import LeftOut, RecordError
from data.preference import Preference
from data.sources.shared.base import Source, TableSource
from data.sources.shared.conversation import implicit, marked, messages
from data.sources.shared.files import FilesConfig
from data.sources.shared.media import row_image
from data.storage.rows import Row, field, optional
from data.storage.tables import open_rows

COLUMNS = ("conversation_a", "conversation_b", "image", "winner")


class WildVisionBattleConfig(FilesConfig):
    """The decided battles."""

    type: Literal["wildvision_battle"]
    hub: str | None = "WildVision/wildvision-battle"
    files: list[str] = Field(default_factory=lambda: ["*.parquet"])
    """Which parquet files: the set has several configurations, each in a folder of its own."""

    def open(self, cache: Path) -> Source:
        """Open the parquet files."""
        located = self.locate(self.files)
        rows = open_rows(located.files, cache, COLUMNS)
        return TableSource(self.label, "ODC-BY", located.revision, rows, convert, self.settings)


def convert(row: Row, record: str) -> Preference:
    """Columns question_id, model_a, model_b, conversation_a, conversation_b, language, image, turn, winner and others."""
    winner = field(row, "winner", str, record)
    if winner.startswith(("tie", "bothbad")):
        raise LeftOut("tie", f"{record}: the vote is {winner!r}.")
    if winner not in ("model_a", "model_b"):
        raise RecordError(f"{record}: the winner is {winner!r}; expected is model_a, model_b, tie… or bothbad….")
    one, two = field(row, "conversation_a", list, record), field(row, "conversation_b", list, record)
    if len(one) != len(two) or one[:-1] != two[:-1]:
        raise LeftOut("no_pair", f"{record}: the two conversations differ before the last answer.")
    shared, said_a, said_b = implicit(one, two, record)
    images = (row_image(row, "image", record),)
    chosen, rejected = (said_a, said_b) if winner == "model_a" else (said_b, said_a)
    prompt = marked(messages(shared, 0, record), 1, record)
    return Preference(record, prompt, chosen, rejected, images, category=optional(row, "language", str, record) or "")
