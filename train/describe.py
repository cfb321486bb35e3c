"""Generate the files that describe all keys of recipes and judge files.

They are two JSON schemas, recipes/schema.json and recipes/judges/schema.json, by which editors
complete and check keys, and the reference page docs/configuration.md.

python train/describe.py
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CLONE = Path(__file__).resolve().parents[1]
"""The folder of the clone of this project, in which the files are written."""
if not __package__:  # started by its path: import the mmrm of its own clone
    sys.path.insert(0, str(CLONE))

from mmrm.data.config.registry import installed_sections
from mmrm.data.display.command import exit_on_user_error
from mmrm.data.storage.files import write_whole
from mmrm.data.storage.output_lock import locked_file
from mmrm.eval.judges.registry import JUDGES
from mmrm.train.reference.pages import reference
from mmrm.train.reference.schema import judge_schema, recipe_schema


def files() -> dict[Path, str]:
    """Return the texts of the two schemas and the reference page, by the paths of their files."""
    judges = installed_sections(JUDGES)
    return {
        CLONE / "recipes/schema.json": _as_json(recipe_schema()),
        CLONE / "recipes/judges/schema.json": _as_json(judge_schema(judges)),
        CLONE / "docs/configuration.md": reference(judges),
    }


def _as_json(schema: Mapping[str, Any]) -> str:
    """Return a schema as the text of a JSON file."""
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Write the two schemas and the reference page, and print their paths."""
    with exit_on_user_error():
        for file, text in files().items():
            with locked_file(file):
                write_whole(file, text)
            print(f"written: {file}")


if __name__ == "__main__":
    main()
