"""python slime_probe.py FILE NAME ROWS: slime's own loader and group reward call a function of a file.

ROWS: JSON, a list of `{"question", "images": [paths], "responses": [texts]}`. The last line printed: JSON, versions and rewards.
Runs in slime's environment, without this project; `--custom-rm-path MODULE.NAME` finds FILE because its folder is on the path.
"""

import asyncio
import json
import sys
from argparse import Namespace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from slime.rollout.rm_hub import batched_async_rm
from slime.utils.data import _build_messages
from slime.utils.processing_utils import process_vision_info
from slime.utils.types import Sample


def samples(row: dict[str, Any]) -> list[Sample]:
    """Return a group as slime's data set and its rollouts leave it."""
    data = {"prompt": "<image>" * len(row["images"]) + row["question"], "images": row["images"]}
    prompt = _build_messages(data, "prompt", True, {"image": "images"})
    vision = process_vision_info(prompt, Namespace(image_processor=Namespace(patch_size=14)))
    status = Sample.Status.COMPLETED
    return [
        Sample(prompt=prompt, multimodal_inputs=vision, response=one + "<|im_end|>", status=status)
        for one in row["responses"]
    ]


def main(file: str, name: str, rows: str) -> None:
    """Print what the function gives, a group a call."""
    sys.path.insert(0, str(Path(file).resolve().parent))
    args = Namespace(custom_rm_path=f"{Path(file).stem}.{name}", group_rm=True, rm_url=None)
    groups = [samples(row) for row in json.loads(Path(rows).read_text(encoding="utf-8"))]
    found = [asyncio.run(batched_async_rm(args, group)) for group in groups]
    print(
        json.dumps(
            {
                "versions": {name: version(name) for name in ("slime", "transformers", "ray")},
                "rewards": found,
            }
        )
    )


main(*sys.argv[1:])
