"""Annotate preference pairs with rationales by a model behind an OpenAI-compatible endpoint.

python eval/annotate.py recipes/r1_reward_rl.yaml endpoint.yaml --out data/r1_reward_sft.jsonl
python eval/annotate.py RECIPE ENDPOINT --out FILE --temperatures 0 0.5 1 --failures keep --limit 1000

RECIPE names the pairs (its `data` section), ENDPOINT who is asked (as `type: endpoint` judges). Each pair is shown in a drawn
order and asked about once for each temperature, until the answer is right. The file holds ordinary records with rationales;
FILE's journal holds the tries of every record, its difficulty, for eval/select_pairs.py. Run it again to go on.
"""

import argparse
import sys
from pathlib import Path

from rich.progress import track

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the clone, installed or not

from mmrm.data.config.validation import read_section
from mmrm.data.display.command import command
from mmrm.data.display.console import plain_console
from mmrm.data.preparation.mixing import Mixture
from mmrm.data.preparation.recipe_section import section_of
from mmrm.data.prompts import TEMPLATES
from mmrm.data.storage.output_lock import locked_file
from mmrm.eval.annotation.annotator import Annotator, annotate, journal_of, read_journal
from mmrm.eval.judges.endpoint.client import open_client
from mmrm.eval.judges.endpoint.config import EndpointConfig


def main() -> None:
    """Read the command line and annotate."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", type=Path)
    parser.add_argument("endpoint", type=Path)
    parser.add_argument("--out", type=Path, required=True, help="a .jsonl file")
    parser.add_argument("--template", choices=sorted(TEMPLATES), default="r1_reward")
    parser.add_argument(
        "--temperatures", type=float, nargs="+", default=[0.0, 0.5, 1.0], help="one for each try"
    )
    parser.add_argument("--max-tokens", type=int, default=2048)
    parser.add_argument(
        "--failures", choices=("drop", "keep"), default="drop", help="keep: without a rationale"
    )
    parser.add_argument("--limit", type=int, help="only the first records")
    options = parser.parse_args()
    with command(), locked_file(journal_of(options.out)):
        config = read_section(options.endpoint, EndpointConfig)
        mixture = Mixture(section_of(options.recipe))
        indices = track(range(min(len(mixture), options.limit or len(mixture))), "annotating")
        client = open_client(config)
        ask = Annotator(
            client.answer, config.model, options.template, options.temperatures, options.max_tokens
        )
        settings = {
            "url": config.url,
            "model": config.model,
            "template": options.template,
            "temperatures": options.temperatures,
            "max_tokens": options.max_tokens,
        }
        done = annotate(mixture, indices, ask, options.out, options.failures, settings)
        lines = read_journal(journal_of(options.out), mixture)
    right = sum(line["right"] for line in lines)
    plain_console().print(
        f"{done:,} records done now, {len(lines):,} in all, {right:,} of them got right; saved as {options.out}"
    )


if __name__ == "__main__":
    main()
