"""Preference files as ms-swift reads them.

    {"messages": [{"role": "user", "content": "<image>What is this?"},
                  {"role": "assistant", "content": "A cat."}],
     "rejected_response": "A dog.", "images": ["1.jpg"], "margin": 1.0}

The last turn of `messages` is the chosen response. In place of `rejected_response` a row may hold
`rejected_messages`, the whole other conversation.
"""

from typing import Literal

from mmrm.data.preference import Preference, text_responses
from mmrm.data.sources.shared.conversation import (
    prompt_from_turns,
    response_text,
    split_conversations,
)
from mmrm.data.sources.shared.file_source import FormatConfig, SourceRow


class MsSwiftConfig(FormatConfig):
    """A source of preference files in the format of ms-swift."""

    FILES = ("*.jsonl", "*.json", "*.parquet")
    COLUMNS = ("messages",)

    type: Literal["ms_swift"]

    def convert(self, row: SourceRow) -> Preference:
        """Return the record of a row, whose chosen response is the last turn of `messages`.

        The rejected response is `rejected_response`, or the last turn of `rejected_messages`. The
        columns images and margin are read as well.
        """
        images = row.all_images(row.columns.get("images"))
        turns = row.value("messages", list)
        rejected_turns = row.optional_value("rejected_messages", list)
        if rejected_turns is None:
            prompt_turns = turns[:-1]
            chosen = response_text(turns[-1:])
            rejected = response_text(row.text("rejected_response"))
        else:
            prompt_turns, chosen, rejected = split_conversations(turns, rejected_turns)
        prompt = prompt_from_turns(prompt_turns, len(images))
        return Preference(
            row.identity,
            prompt,
            text_responses(chosen, rejected),
            images,
            margin=row.optional_number("margin"),
        )
