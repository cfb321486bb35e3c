"""ShareGPT preference files, as LLaMA-Factory reads them, and its Alpaca form.

{"conversations": [{"from": "human", "value": "<image>What is this?"}],
 "chosen": {"from": "gpt", "value": "A cat."}, "rejected": {"from": "gpt", "value": "A dog."},
 "images": ["1.jpg"], "system": "…"}
{"instruction": "…", "input": "…", "chosen": "…", "rejected": "…", "images": ["1.jpg"]}
"""

from typing import Literal

from mmrm.data.preference import Preference, text
from mmrm.data.sources.shared.conversation import marked, response, sharegpt
from mmrm.data.sources.shared.file_source import FormatConfig, SourceRow


class ShareGptConfig(FormatConfig):
    """Preference files in the ShareGPT form or the Alpaca form."""

    FILES = ("*.json", "*.jsonl", "*.parquet")
    COLUMNS = ("chosen", "rejected")

    type: Literal["sharegpt"]

    def convert(self, row: SourceRow) -> Preference:
        """Read conversations, or instruction and input; and system, chosen, rejected, images."""
        images = row.all_images(row.columns.get("images"))
        if "conversations" in row.columns:
            turns = sharegpt(row.columns["conversations"])
        else:
            parts = [row.text("instruction"), row.label("input")]
            turns = [text("user", "\n".join(part for part in parts if part))]
        system = row.label("system")
        if system:
            turns.insert(0, text("system", system))
        chosen = _response(row, "chosen")
        rejected = _response(row, "rejected")
        return Preference(row.identity, marked(turns, len(images)), chosen, rejected, images)


def _response(row: SourceRow, name: str) -> str:
    """Return the text of a response, which is a text or one turn {from, value}."""
    value = row.value(name, str | dict)
    if isinstance(value, str):
        return response(value)
    return response(sharegpt([value]))
