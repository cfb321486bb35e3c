"""The section `method` of a recipe for the cold start of a judge, and for lessons.

[Q] marks a value that is quoted from the paper or its released code. Every other value is a
default of this project, because the paper is silent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from mmrm.data.point_prompt import PointPrompt
from mmrm.data.prompts import JudgeTemplate
from mmrm.train.recipe.sections import (
    HELD_OUT_ACCURACY,
    HELD_OUT_LOSS,
    Broken,
    MethodConfig,
    RunConfig,
)

KEYS_OF_RATINGS = ("points", "rating", "ratings_from")
"""The keys that only `target: ratings` reads."""
LossOn = Literal["answer", "score", "verdict"]
"""The tokens of an answer that carry loss."""
TARGET_OF_LOSS = {"score": "ratings", "verdict": "verdict"}
"""The only target of a value of `loss_on`."""
RUBRIC_TEMPLATES: tuple[JudgeTemplate, ...] = ("rubric", "rubric_turns")
"""The templates whose judgements begin with criteria and checks."""


class LanguageModelConfig(MethodConfig):
    """The cold start of a judge (R1-Reward), a judge of single responses, or an embedded backbone.

    All of them learn texts by cross-entropy.
    """

    implementation = "mmrm.train.methods.language_model.method:LanguageModelMethod"
    script = "sft"
    model = "language_model"
    judge_type = "generative"
    paradigm = "judge"

    type: Literal["language_model"]
    target: Literal["judgement", "verdict", "lessons", "ratings"]
    """Learn the records' rationales as judgements of two responses (R1-Reward's cold start);
    verdict: which of two responses is better, at once, for which a pair needs no rationale; lessons:
    answers to questions about generated images of shapes, and verdicts on answers; or ratings: the
    score of each response as text, for a judge of single responses."""
    answers: Literal["right", "stated"] = "stated"
    """For lessons: learn right answers only (`right`), or state near misses, too, and learn a
    verdict on every answer (`stated`)."""
    text_share: Annotated[float, Field(ge=0.0, le=1.0)] = 1.0
    """For lessons with verdicts: the share of right answers whose text is learned as well. Of the
    others only the verdict is learned."""
    asked_share: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """For lessons with verdicts: the share of verdicts given in a turn of their own, in critiques
    and in comparisons of two answers, instead of directly after the answer."""
    most_things: int | None = Field(default=None, ge=1, le=100)
    """For lessons: the largest number of shapes in an image, which then has no words or digits.
    null takes the images of the level."""
    questions: int = Field(default=12, ge=1, le=1000)
    """Questions about one image, for lessons."""
    template: JudgeTemplate = "r1_reward"
    """For judgements and verdicts: the prompt of the judge. `r1_reward` is R1-Reward's [Q], `short`
    a short one for the generated shapes data, and `turns` shows each response as a turn of the
    assistant.
    `rubric` and `rubric_turns` (responses as turns) learn rationales that are criteria and checks,
    in the form of data/rubric.py."""
    rubric_parts: list[Literal["criteria", "reading"]] = Field(default=[], max_length=2)
    """For judgements with a rubric: further texts of each record that are learned. `criteria`: the
    criteria of the question, before responses are shown, as a judge with `criteria: shared` writes
    them. `reading`: the verdict from the question and the rubric with its checks alone, as the
    reader of StableReinforce decides."""
    both_orders: bool = False
    """For judgements and verdicts: learn every pair in both orders, instead of one with the winner
    first in exactly half [Q]."""

    points: PointPrompt = PointPrompt()
    """For ratings: the question about one response, and the scores. A response learns the score
    whose value is closest to its rating, so that {"0": 0, "1": 1} fits ratings from 0 to 1. With
    `rationale: true`, the critiques of the records are learned before the scores."""
    ratings_from: Literal["attributes", "preference"] = "attributes"
    """For ratings: what decides them. `attributes` takes the numbers that the records hold, and
    `preference` gives the preferred response of a pair the highest score and the other one the
    lowest, so that pairs without numbers suffice."""
    rating: str | None = None
    """For ratings from attributes: the attribute that is learned, such as `helpfulness`. Null takes the mean of all
    attributes of a record. Responses without the rating are left out."""
    loss_on: LossOn = "answer"
    """For ratings and verdicts: learn the whole answer of the judge with its end, so that it can be
    written, or the tokens of its `score` or `verdict` alone. These suffice for the expected value of
    a score, and for soft verdicts without a rationale, but the judge does not learn to write. A score
    that begins another one, such as the 1 of 10, is learned with its end."""

    @model_serializer(mode="wrap")
    def _without_unused_keys(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave the keys for ratings out of a saved recipe with another target.

        `loss_on` is left out at its default with another target, `ratings_from` at its default, and
        `rubric_parts` if it is empty. Recipes of older versions do not have the keys, and stay equal
        to those of this version.
        """
        values: dict[str, Any] = serialise(self)
        if not self.rubric_parts:
            values.pop("rubric_parts", None)
        if self.target != "ratings":
            for name in KEYS_OF_RATINGS:
                values.pop(name, None)
            if self.loss_on == "answer":
                values.pop("loss_on", None)
        elif self.ratings_from == "attributes":
            values.pop("ratings_from", None)
        return values

    @property
    def summary(self) -> str:
        """A description of the loss, for the plan and the model card."""
        target = "judgements"
        if self.target == "verdict":
            target = "verdicts without rationales"
            if self.loss_on == "verdict":
                target = "the verdict's tokens alone"
        if self.target == "ratings":
            rating = self.rating or "the mean of all attributes"
            if self.ratings_from == "preference":
                rating = "preference"
            learned = "scores alone" if self.loss_on == "score" else "answers with scores"
            target = f"{learned}, by {rating}"
        if self.target == "lessons":
            target = f"lessons of {self.questions} questions about an image"
        return f"language_model: cross-entropy on {target}"

    @property
    def judge_template(self) -> JudgeTemplate | None:
        """The prompt of the judge. None for targets that are not about comparing responses."""
        if self.target in ("judgement", "verdict"):
            return self.template
        return None

    @property
    def point_prompt(self) -> PointPrompt | None:
        """The question to a judge of single responses, for ratings."""
        return self.points if self.target == "ratings" else None

    @property
    def examples_per_record(self) -> int:
        """Two for judgements and verdicts on every pair in both orders, else one."""
        is_about_pairs = self.judge_template is not None
        return 2 if is_about_pairs and self.both_orders else 1

    @property
    def uses_lists(self) -> bool:
        """True for ratings from attributes: each response of a list is learned."""
        return self.target == "ratings" and self.ratings_from == "attributes"

    @property
    def uses_ties(self) -> bool:
        """True for ratings from attributes: equal responses learn equal scores."""
        return self.target == "ratings" and self.ratings_from == "attributes"

    def held_out_figures(self, run: RunConfig) -> tuple[str, ...]:
        """Return the names of the figures on the records of data.validation.

        A model after the cold start is not measured by its judgements, so that it has the loss
        alone. A judge of single responses also has its accuracy.
        """
        if not run.data.validation:
            return ()
        if self.target == "ratings":
            return (HELD_OUT_ACCURACY, HELD_OUT_LOSS)
        return (HELD_OUT_LOSS,)

    def rules(self, run: RunConfig) -> Iterator[Broken]:
        """Yield the rules that the recipe breaks.

        Judgements need a source with rationales, lessons need the generated shapes data, and ratings
        with rationales need critiques. Verdicts need nothing but pairs.
        """
        yield from self._rules_of_loss(run)
        learns_rubrics = self.target == "judgement" and self.template in RUBRIC_TEMPLATES
        if self.rubric_parts and not learns_rubrics:
            message = (
                "these are parts of judgements with a rubric; take method.template rubric or "
                "rubric_turns, or remove this key"
            )
            yield Broken(message, ("method.rubric_parts", "method.template"))
        if self.target == "ratings":
            yield from self._rules_of_ratings(run)
            return
        for key in KEYS_OF_RATINGS:
            if key not in self.model_fields_set:
                continue
            message = (
                f"{key} is for method.target=ratings, and the target is {self.target}; remove it"
            )
            yield Broken(message, (f"method.{key}", "method.target"))
        if self.judge_template is not None:
            yield from self._rules_of_pairs(run)
            return
        if run.data.validation:
            message = "lessons are generated on the fly and none is held out; remove this key"
            yield Broken(message, ("data.validation", "method.target"))
        types = {source.type for source in run.data.sources}
        if len(run.data.sources) > 1 or types != {"shapes"}:
            message = (
                "lessons are made from generated scenes of shapes: data.sources must hold exactly "
                "one source, of type shapes"
            )
            yield Broken(message, ("method.target", "data.sources"))

    def _rules_of_loss(self, run: RunConfig) -> Iterator[Broken]:
        """Yield the rules that a recipe breaks by the tokens that carry loss."""
        if "loss_on" not in self.model_fields_set:
            return
        if self.target not in TARGET_OF_LOSS.values():
            message = (
                "loss_on is for method.target=ratings and method.target=verdict, and the target is "
                f"{self.target}; remove it"
            )
            yield Broken(message, ("method.loss_on", "method.target"))
            return
        if TARGET_OF_LOSS.get(self.loss_on, self.target) != self.target:
            other = "score" if self.target == "ratings" else "verdict"
            message = (
                f"loss_on is {self.loss_on}, and an answer of target={self.target} has none; set "
                f"method.loss_on={other}, or answer"
            )
            yield Broken(message, ("method.loss_on", "method.target"))
            return
        if self.loss_on == "score" and self.points.rationale:
            message = (
                "with loss_on=score the judge does not learn to write, and points.rationale has it "
                "write a critique before the score; set method.points.rationale=false, or "
                "method.loss_on=answer"
            )
            yield Broken(message, ("method.loss_on", "method.points"))
        writes = run.evaluation.protocol.rationale != "none"
        if self.loss_on == "verdict" and writes:
            message = (
                "with loss_on=verdict the judge does not learn to write, and evaluation.protocol has "
                "it write a judgement; set evaluation.protocol={verdicts: soft, rationale: none}, "
                "or method.loss_on=answer"
            )
            yield Broken(message, ("method.loss_on", "evaluation.protocol"))

    def _rules_of_pairs(self, run: RunConfig) -> Iterator[Broken]:
        """Yield the rules that a recipe for judgements or verdicts breaks."""
        has_rationales = any(source.has_rationales for source in run.data.sources)
        if self.target == "judgement" and not has_rationales:
            types = sorted({source.type for source in run.data.sources})
            message = (
                f"a cold start learns from rationales, and records of {', '.join(types)} hold none; "
                "annotate them (python eval/annotate.py --help) and take the files as a source of "
                "type project, or learn verdicts alone (method.target=verdict)"
            )
            yield Broken(message, ("method.target", "data.sources"))
        if self.target == "verdict" and self.template in RUBRIC_TEMPLATES:
            message = (
                f"a verdict at once has no rubric, and the template is {self.template}; take "
                "another template, or method.target=judgement"
            )
            yield Broken(message, ("method.template", "method.target"))
        if self.both_orders and run.data.curriculum.order == "easy_first":
            message = (
                "with both_orders, an epoch draws both orders of all records in random "
                "sequence, so that easy_first has no effect; set method.both_orders=false or "
                "data.curriculum.order=shuffled"
            )
            yield Broken(message, ("method.both_orders", "data.curriculum.order"))

    def _rules_of_ratings(self, run: RunConfig) -> Iterator[Broken]:
        """Yield the rules that a recipe for ratings breaks."""
        if self.ratings_from == "preference" and self.rating is not None:
            message = (
                f"rating is {self.rating!r}, and with ratings_from=preference no attribute is read; "
                "remove one of the two keys"
            )
            yield Broken(message, ("method.rating", "method.ratings_from"))
        has_critiques = any(source.has_critiques for source in run.data.sources)
        if self.points.rationale and not has_critiques:
            message = (
                "with points.rationale the judge learns a critique before each score, and no source "
                "holds critiques; annotate the records (python eval/annotate.py --help), or set "
                "method.points.rationale=false"
            )
            yield Broken(message, ("method.points", "data.sources"))
