"""ShareGPT preference files, as LLaMA-Factory reads them, and its Alpaca form.

{"conversations": [{"from": "human", "value": "<image>What is this?"}], "chosen": {"from": "gpt", "value": "A cat."},
 "rejected": {"from": "gpt", "value": "A dog."}, "images": ["1.jpg"], "system": "…"}
{"instruction": "…", "input": "…", "chosen": "…", "rejected": "…", "images": ["1.jpg"]}
"""

from typing import Literal

from mmrm.data.preference import Preference, text
from mmrm.data.sources.shared.conversation import marked, response, sharegpt
from mmrm.data.sources.shared.file_source import FormatConfig, SourceRow


class ShareGptConfig(FormatConfig):
    """Files of such records."""

    FILES = ("*.json", "*.jsonl", "*.parquet")
    COLUMNS = ("chosen", "rejected")

    type: Literal["sharegpt"]

    def convert(self, row: SourceRow) -> Preference:
        """Columns as above, of either form."""
        images = row.all_images(row.columns.get("images"))
        if "conversations" in row.columns:
            turns = sharegpt(row.columns["conversations"])
        else:
            parts = row.text("instruction"), row.label("input")
            turns = [text("user", "\n".join(part for part in parts if part))]
        if system := row.label("system"):
            turns.insert(0, text("system", system))
        responses = _response(row, "chosen"), _response(row, "rejected")
        return Preference(row.identity, marked(turns, len(images)), *responses, images)


def _response(row: SourceRow, name: str) -> str:
    value = row.value(name, str | dict)
    return response(value if isinstance(value, str) else sharegpt([value]))
