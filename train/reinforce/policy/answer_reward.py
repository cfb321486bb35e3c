"""What an answer earns: a weighted sum of a judge's scores in one of their forms, the verifier, a price on length, the form.

Nothing pays for an error: an answer that the limit cut off, or that holds a control token, is wrong and of no form, and its
length costs as much as any. A judge reads it as it stands.
"""

import random
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mmrm.data.errors import UserError
from mmrm.eval.judges.judge import Judge
from mmrm.eval.judges.registry import reference_of
from mmrm.eval.policies.answering import candidates, readable
from mmrm.eval.selection.score_forms import FORMS
from mmrm.eval.verifiers import states
from mmrm.models.distributed import alone
from mmrm.models.encoder import Encoder
from mmrm.train.recipe.methods import FormatTerm, JudgeTerm, LengthTerm, PolicyConfig
from mmrm.train.reinforce.rollouts import Prompt


class AnswerReward:
    """The reward of a rollout batch as trl calls it; its parts are logged as means and as columns of the rollout table."""

    __name__ = "answer"

    def __init__(self, config: PolicyConfig, judges: Mapping[int, Judge], encoder: Encoder) -> None:
        """Take the judge of each JudgeTerm by its place among `config.rewards`."""
        self.config, self.judges, self.encoder = config, judges, encoder
        references = {place: reference_of(Path(config.rewards[place].path)) for place in judges}  # type: ignore[union-attr]
        self.references = {place: found for place, found in references.items() if found is not None}
        for place in judges.keys() - self.references.keys():
            term = config.rewards[place]
            if isinstance(term, JudgeTerm) and "mean" in FORMS[term.form].needs:
                raise UserError(
                    f"method.rewards.{place}: {term.path} states no reference scores (mean and std in its config.json), by which "
                    "`form: standardised` divides; take another form, or a checkpoint that was evaluated when it was saved."
                )

    def __call__(
        self,
        completion_ids: Sequence[list[int]],
        asked: Sequence[Prompt],
        log_metric: Callable[[str, float], None],
        log_extra: Callable[[str, list[Any]], None],
        **rest: Any,
    ) -> list[float]:
        """Return the rewards of answers, `num_generations` after one another to each question."""
        end = self.encoder.end_of_turn
        read = [
            readable(self.encoder, ids[:-1] if ids[-1] == end else ids, ended=ids[-1] == end)
            for ids in completion_ids
        ]
        texts, whole = [text for text, _ in read], [one for _, one in read]
        truths = [prompt.asked.truth if prompt.asked else None for prompt in asked]
        parts = zip(texts, whole, truths, strict=True)
        right = [
            truth is not None and ended and states(text, truth) for text, ended, truth in parts
        ]
        total = [0.0] * len(texts)
        columns: dict[str, list[Any]] = {}
        for place, term in enumerate(self.config.rewards):
            if isinstance(term, JudgeTerm):
                scores, found = self._judged(place, term, asked, texts, right)
                columns["judge" if "judge" not in columns else f"judge_{place}"] = scores
            elif isinstance(term, LengthTerm):
                spare = self.config.max_new_tokens - term.free_tokens
                found = [
                    -min(max(len(ids) - term.free_tokens, 0) / spare, 1.0) for ids in completion_ids
                ]
                found = [
                    price if ended else -1.0 for price, ended in zip(found, whole, strict=True)
                ]
            elif isinstance(term, FormatTerm):
                matches = re.compile(term.pattern, re.DOTALL).fullmatch
                found = [float(ended and matches(text) is not None) for text, ended in read]
                columns["format"] = found
            else:
                found = list(map(float, right))
            total = [
                sum(pair) for pair in zip(total, (term.weight * one for one in found), strict=True)
            ]
        columns["right"] = list(map(float, right))
        for name, values in columns.items():
            log_metric(f"rewards/{name}", sum(values) / len(values))
        log_metric("rollouts/cut_off", 1 - sum(whole) / len(whole))
        for name, values in {**columns, "record": [prompt.record for prompt in asked]}.items():
            log_extra(name, values)
        return total

    def _judged(
        self,
        place: int,
        term: JudgeTerm,
        asked: Sequence[Prompt],
        texts: Sequence[str],
        right: Sequence[bool],
    ) -> tuple[list[float], list[float]]:
        """Return the scores of a judge, and what its form makes of them; each rank asks for its own answers."""
        count = self.config.num_generations
        blocks = [slice(start, start + count) for start in range(0, len(texts), count)]
        questions = [prompt.asked for prompt in asked[::count] if prompt.asked is not None]
        with alone():
            groups = [
                candidates(question, texts[own])
                for question, own in zip(questions, blocks, strict=True)
            ]
            rankings = self.judges[place].score_batch(groups)
        form, given = FORMS[term.form], self.references.get(place, {})
        scores: list[float] = []
        rewards: list[float] = []
        for own, prompt, ranking in zip(blocks, asked[::count], rankings, strict=True):
            block = list(ranking.values)
            if term.shuffled:
                random.Random(f"shuffled/{prompt.place}").shuffle(block)
            context: dict[str, Any] = {
                "right": right[own],
                "mean": given.get("mean"),
                "std": given.get("std"),
                "clip": None,
            }
            scores += block
            rewards += form.of(block, **{name: context[name] for name in form.needs})
        return scores, rewards
