"""Preference files as ms-swift reads them.

    {"messages": [{"role": "user", "content": "<image>What is this?"}, {"role": "assistant", "content": "A cat."}],
     "rejected_response": "A dog.", "images": ["1.jpg"], "margin": 1.0}

The last turn of `messages` is the chosen response. In place of `rejected_response` a row may hold `rejected_messages`,
the whole other conversation.
"""

from typing import Literal

from mmrm.data.preference import Preference
from mmrm.data.sources.shared.conversation import implicit, messages, response
from mmrm.data.sources.shared.file_source import FormatConfig, SourceRow


class MsSwiftConfig(FormatConfig):
    """Files of such records."""

    FILES = ("*.jsonl", "*.json", "*.parquet")
    COLUMNS = ("messages",)

    type: Literal["ms_swift"]

    def convert(self, row: SourceRow) -> Preference:
        """Columns as above."""
        images = row.all_images(row.columns.get("images"))
        turns, other = row.value("messages", list), row.optional("rejected_messages", list)
        if other is None:
            turns, chosen, rejected = (
                turns[:-1],
                response(turns[-1:]),
                response(row.text("rejected_response")),
            )
        else:
            turns, chosen, rejected = implicit(turns, other)
        prompt = messages(turns, len(images))
        return Preference(
            row.identity, prompt, chosen, rejected, images, margin=row.number("margin")
        )
