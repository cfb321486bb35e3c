"""ShareGPT preference files, as LLaMA-Factory reads them, and its Alpaca form.

{"conversations": [{"from": "human", "value": "<image>What is this?"}],
 "chosen": {"from": "gpt", "value": "A cat."}, "rejected": {"from": "gpt", "value": "A dog."},
 "images": ["1.jpg"], "system": "…"}
{"instruction": "…", "input": "…", "chosen": "…", "rejected": "…", "images": ["1.jpg"]}

Videos are in `videos`, and their marker is <video>. Responses may have images and
videos as well; see data/sources/shared/responses.py.
"""

from typing import Literal

from mmrm.data.preference import Message, Preference, text
from mmrm.data.sources.shared.conversation import turns_from_sharegpt
from mmrm.data.sources.shared.file_source import FormatConfig, SourceRow
from mmrm.data.sources.shared.responses import read_row, written_pair


class ShareGptConfig(FormatConfig):
    """A source of preference files in the ShareGPT form or the Alpaca form."""

    FILES = ("*.json", "*.jsonl", "*.parquet")
    COLUMNS = ("chosen", "rejected")
    RESPONSES_WITH_IMAGES = True
    VIDEOS = True

    type: Literal["sharegpt"]

    def convert(self, row: SourceRow) -> Preference:
        """Return the preference record of a row in the ShareGPT form or in the Alpaca form.

        The prompt is in the column conversations (ShareGPT), or in instruction and input (Alpaca).
        The columns system, chosen, rejected, images and videos are read in both forms.
        """
        images = row.all_images(row.columns.get("images"))
        videos = row.all_videos(row.columns.get("videos"))
        if "conversations" in row.columns:
            turns = turns_from_sharegpt(row.columns["conversations"])
        else:
            paragraphs = [row.text("instruction"), row.text_or_empty("input")]
            turns = [text("user", "\n".join(filter(None, paragraphs)))]
        system = row.text_or_empty("system")
        if system:
            turns.insert(0, text("system", system))
        written = written_pair(row, _response(row, "chosen"), _response(row, "rejected"))
        read = read_row(row, turns, written, images, videos)
        return Preference(
            row.identity, read.prompt, read.responses, read.images, videos=read.videos
        )


def _response(row: SourceRow, name: str) -> str | list[Message]:
    """Return the response in the column `name` as a text, or as a list of one turn.

    The column holds a text or one turn {from, value}.
    """
    value = row.value(name, str | dict)
    if isinstance(value, str):
        return value
    return turns_from_sharegpt([value])
