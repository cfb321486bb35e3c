"""ShareGPT preference files, as LLaMA-Factory reads them, and its Alpaca form.

{"conversations": [{"from": "human", "value": "<image>What is this?"}],
 "chosen": {"from": "gpt", "value": "A cat."}, "rejected": {"from": "gpt", "value": "A dog."},
 "images": ["1.jpg"], "system": "…"}
{"instruction": "…", "input": "…", "chosen": "…", "rejected": "…", "images": ["1.jpg"]}
"""

from typing import Literal

from mmrm.data.preference import Preference, text, text_responses
from mmrm.data.sources.shared.conversation import (
    response_text,
    turns_from_sharegpt,
    with_image_parts,
)
from mmrm.data.sources.shared.file_source import FormatConfig, SourceRow


class ShareGptConfig(FormatConfig):
    """A source of preference files in the ShareGPT form or the Alpaca form."""

    FILES = ("*.json", "*.jsonl", "*.parquet")
    COLUMNS = ("chosen", "rejected")

    type: Literal["sharegpt"]

    def convert(self, row: SourceRow) -> Preference:
        """Return the preference record of a row in the ShareGPT form or in the Alpaca form.

        The prompt is in the column conversations (ShareGPT), or in instruction and input (Alpaca).
        The columns system, chosen, rejected and images are read in both forms.
        """
        images = row.all_images(row.columns.get("images"))
        if "conversations" in row.columns:
            turns = turns_from_sharegpt(row.columns["conversations"])
        else:
            paragraphs = [row.text("instruction"), row.text_or_empty("input")]
            turns = [text("user", "\n".join(filter(None, paragraphs)))]
        system = row.text_or_empty("system")
        if system:
            turns.insert(0, text("system", system))
        chosen = _response(row, "chosen")
        rejected = _response(row, "rejected")
        return Preference(
            row.identity,
            with_image_parts(turns, len(images)),
            text_responses(chosen, rejected),
            images,
        )


def _response(row: SourceRow, name: str) -> str:
    """Return the text of the response in the column `name`: a text or one turn {from, value}."""
    value = row.value(name, str | dict)
    if isinstance(value, str):
        return response_text(value)
    return response_text(turns_from_sharegpt([value]))
