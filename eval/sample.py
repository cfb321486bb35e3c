"""Sample answers of a policy to questions with known answers, for on-policy preference pairs, best-of-N and rejection sampling.

python eval/sample.py runs/shapes/policy/best samples.jsonl --source '{type: shapes, level: demo, split: train, rows: 1000}'
python eval/sample.py Qwen/Qwen2.5-VL-3B-Instruct samples.jsonl --source '{type: questions, path: /data/questions.parquet}'

A round of on-policy pairs, labelled by the verifier; a reward model then goes on learning from them as a source of type project:

python eval/score.py runs/shapes/naive/best samples.jsonl scored.jsonl
python eval/select_responses.py pairs scored.jsonl pairs.jsonl --verifier recorded --all

POLICY is a checkpoint folder, a hub id, or `embedded`; --source is one as a recipe has it. A line
of OUT holds `prompt`, `images` (data URIs), `responses`, `answer` (all known answers), `verifier`
(the rule that the source declares), `right` (the verdicts by this rule; an answer that was cut off
is wrong) and `key`, equal for questions of equal content. A killed command is continued by the same
command.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from ruamel.yaml import YAML

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the clone, installed or not

from mmrm.data.display.command import command
from mmrm.data.display.console import plain_console
from mmrm.data.errors import UserError
from mmrm.data.images import data_uri
from mmrm.data.preference import Preference
from mmrm.data.preparation.mixing import CACHE
from mmrm.data.preparation.row_index import prompt_key
from mmrm.data.sources.registry import AnySource
from mmrm.data.storage.code_digest import code_digest
from mmrm.data.storage.files import digest, write_json_lines
from mmrm.data.storage.output_lock import locked_file
from mmrm.eval.cli import add_model_options, rank_device, refuse_existing
from mmrm.eval.journal import Journal
from mmrm.models.config import SamplingConfig


def main(arguments: Sequence[str] | None = None) -> None:
    """Sample; what a user can put right ends with a message and no traceback."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("eval/sample.py", description=__doc__, formatter_class=form)
    parser.add_argument("policy", metavar="POLICY")
    parser.add_argument("output", type=Path, metavar="OUT", help="a .jsonl file")
    parser.add_argument(
        "--source", required=True, help="questions: a source of type questions or shapes, in YAML"
    )
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--max-new-tokens", type=int, default=1024)
    parser.add_argument("--seed", type=int, default=0)
    add_model_options(parser)
    options = parser.parse_args(arguments)
    with command():
        sample(options)


def sample(options: argparse.Namespace) -> None:
    """Sample on all ranks; the first one writes, and holds the output's lock."""
    with rank_device() as device, ExitStack() as stack:
        from mmrm.eval.judges.checkpoint import Runtime
        from mmrm.eval.policies.answering import Answerer
        from mmrm.eval.policies.policy_runs import load_policy, load_questions
        from mmrm.eval.suite.fingerprint import policy_digest
        from mmrm.models.backbone import resolve
        from mmrm.models.distributed import gather, locked_by_first_rank, rank

        stack.enter_context(locked_by_first_rank(locked_file(options.output)))
        refuse_existing(options.output)
        source = TypeAdapter(AnySource).validate_python(
            YAML(typ="safe", pure=True).load(options.source)
        )
        questions = load_questions(source, CACHE)
        if without := [one.identity for one in questions if one.truth is None]:
            raise UserError(
                f"{without[0]}: no known answer; take a source of type questions or shapes."
            )
        sampling = SamplingConfig(
            temperature=options.temperature, max_new_tokens=options.max_new_tokens
        )
        place = Path(resolve(options.policy))
        model, packed = load_policy(place, Runtime(device, options.token_budget))
        # The questions are not part of it: the journal keeps each answer under its question's content.
        settings = (options.samples, sampling, options.seed)
        code = code_digest("mmrm.eval.policies.answering", floors=("models", "eval"))
        mark = digest(repr((policy_digest(place), settings, code)))
        beside = options.output.with_name(f"{options.output.name}.journal")
        journal = Journal(options.output.name, plain_console(stderr=True), beside, gather(mark)[0])
        answers = Answerer(model, packed, sampling, options.samples, options.seed).answer(
            questions, journal
        )
        if rank():
            return
        rows = [
            as_row(question, found.texts[1:], found.right[1:])
            for question, found in zip(questions, answers, strict=True)
        ]
        write_json_lines(options.output, rows)
        journal.remove()
        right = sum(sum(row["right"]) for row in rows) / (len(rows) * options.samples)
        print(
            f"{len(rows):,} questions, {options.samples} answers each, {100 * right:.1f} % right: {options.output}"
        )


def as_row(question: Preference, responses: Sequence[str], right: Sequence[bool]) -> dict[str, Any]:
    """Return a question with its answers as eval/score.py reads them."""
    assert question.truth is not None
    return {
        "id": question.identity,
        "key": f"{prompt_key(question):016x}",
        "prompt": list(question.prompt),
        "images": [data_uri(image, question.identity) for image in question.images],
        "responses": list(responses),
        "right": list(right),
        "answer": list(question.truth.answers),
        "verifier": question.truth.rule,
        "category": question.category,
    }


if __name__ == "__main__":
    main()
