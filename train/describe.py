"""Write what is made of the sections of recipes and judge files: two schemas for editors, and the reference of all keys.

python train/describe.py      # recipes/schema.json, recipes/judges/schema.json, docs/configuration.md
"""

import json
import sys
from pathlib import Path

CLONE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(CLONE))  # the clone, installed or not

from mmrm.data.config.registry import installed_sections
from mmrm.data.display.command import command
from mmrm.data.storage.files import write_whole
from mmrm.data.storage.output_lock import locked_file
from mmrm.eval.judges.registry import JUDGES
from mmrm.train.reference.pages import reference
from mmrm.train.reference.schema import judge_schema, recipe_schema


def files() -> dict[Path, str]:
    """Return the content of every file by its place in the clone."""
    judges = installed_sections(JUDGES)
    schemas = {
        "recipes/schema.json": recipe_schema(),
        "recipes/judges/schema.json": judge_schema(judges),
    }
    texts = {
        name: json.dumps(schema, indent=1, ensure_ascii=False) + "\n"
        for name, schema in schemas.items()
    }
    return {
        CLONE / name: text
        for name, text in (texts | {"docs/configuration.md": reference(judges)}).items()
    }


def main() -> None:
    """Write the files."""
    with command():
        for file, text in files().items():
            with locked_file(file):
                write_whole(file, text)
            print(f"written: {file}")


if __name__ == "__main__":
    main()
