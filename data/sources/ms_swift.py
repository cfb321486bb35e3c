"""Preference files as ms-swift reads them.

    {"messages": [{"role": "user", "content": "<image>What is this?"},
                  {"role": "assistant", "content": "A cat."}],
     "rejected_response": "A dog.", "images": ["1.jpg"], "margin": 1.0}

The last turn of `messages` is the chosen response. In place of `rejected_response` a row may hold
`rejected_messages`, the whole other conversation.
"""

from typing import Literal

from mmrm.data.preference import Preference
from mmrm.data.sources.shared.conversation import implicit, messages, response
from mmrm.data.sources.shared.file_source import FormatConfig, SourceRow


class MsSwiftConfig(FormatConfig):
    """Preference files in the format of ms-swift."""

    FILES = ("*.jsonl", "*.json", "*.parquet")
    COLUMNS = ("messages",)

    type: Literal["ms_swift"]

    def convert(self, row: SourceRow) -> Preference:
        """Read messages, rejected_response or rejected_messages, images and margin."""
        images = row.all_images(row.columns.get("images"))
        turns = row.value("messages", list)
        rejected_turns = row.optional("rejected_messages", list)
        if rejected_turns is None:
            prompt_turns = turns[:-1]
            chosen = response(turns[-1:])
            rejected = response(row.text("rejected_response"))
        else:
            prompt_turns, chosen, rejected = implicit(turns, rejected_turns)
        prompt = messages(prompt_turns, len(images))
        return Preference(
            row.identity, prompt, chosen, rejected, images, margin=row.number("margin")
        )
