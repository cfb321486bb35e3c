"""Write the records of a source into shards, files of about 1 GB with their images.

python data/make_shards.py '{type: rlaif_v, path: /data/rlaif_v}' --output /data/shards/rlaif_v
python data/make_shards.py source.yaml --output /data/shards/mine --size 0.5 --workers 16

The first argument is a source as in the section data.sources of a recipe, or a YAML file with one.
A recipe then takes the folder: {type: shards, path: /data/shards/rlaif_v}. Records are written in a
random order. A command that was interrupted goes on where it ended if it is given again.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

if not __package__:  # started by its path: import the mmrm of its own clone
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pydantic import TypeAdapter, ValidationError

from mmrm.data.config.layers import option_value
from mmrm.data.config.validation import format_validation_error
from mmrm.data.display.command import exit_on_user_error
from mmrm.data.display.command_parser import CommandParser
from mmrm.data.display.console import plain_console
from mmrm.data.display.option_numbers import COUNT, SEED, Number
from mmrm.data.errors import UserError
from mmrm.data.package import data_cache
from mmrm.data.preparation.scan import BadRecordConfig
from mmrm.data.preparation.sharding import lines_about, make_shards
from mmrm.data.regular_files import read_text
from mmrm.data.sources.registry import AnySource
from mmrm.data.sources.shared.source import SourceConfig

GIGABYTE = 10**9
SHARD_SIZE = Number(1e-6, 1000.0)
"""The size of a shard in GB."""


def main() -> None:
    """Make the shards, and print what is in them."""
    parser = CommandParser("data/make_shards.py", __doc__)
    parser.add_argument("source", help="A source in YAML, or the path of a YAML file with one.")
    parser.add_argument("--output", type=Path, required=True, help="The folder for the shards.")
    parser.add_argument("--size", type=SHARD_SIZE, default=1.0, help="The size of a shard in GB.")
    parser.add_argument("--seed", type=SEED, default=0, help="Draws the order of the records.")
    parser.add_argument(
        "--workers", type=COUNT, default=os.cpu_count() or 1, help="The number of processes."
    )
    parser.add_argument("--cache", type=Path, help="The folder for derived files.")
    options = parser.parse_args()
    with exit_on_user_error():
        manifest = make_shards(
            read_source(options.source),
            options.output,
            shard_bytes=round(options.size * GIGABYTE),
            seed=options.seed,
            cache=options.cache or data_cache(),
            workers=options.workers,
            policy=BadRecordConfig(),
            console=plain_console(stderr=True),
        )
        for line in lines_about(manifest, options.output):
            print(line)


def read_source(text: str) -> SourceConfig:
    """Return the source that a command line names.

    Raises: UserError if it is no valid source.
    """
    if text.lower().endswith((".yaml", ".yml")):
        path = Path(text).expanduser()
        try:
            text = read_text(path)
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(
                f"{path} cannot be read as text ({error}). Correct the path."
            ) from error
    value = option_value("the source", text)
    if not isinstance(value, dict):
        raise UserError(
            f"the source is {text[:100]!r}; required are the keys of a source, such as "
            "'{type: project, path: mine.jsonl}', or a YAML file with them."
        )
    try:
        source: SourceConfig = TypeAdapter(AnySource).validate_python(value)
    except ValidationError as error:
        raise UserError(f"the source is not valid: {format_validation_error(error)}") from error
    return source


if __name__ == "__main__":
    main()
