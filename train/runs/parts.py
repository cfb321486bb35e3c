"""What a run takes from its method: training data, objective, and the judge that evaluates it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from torch import nn

from data.mixture import Mixture
from data.prompts import JudgeTemplate
from data.sources.shapes import ShapesConfig
from data.synthetic.world import ShapesWorld
from eval.judges.checkpoint import TOKEN_BUDGET
from eval.judges.critic import CriticJudge, CritiqueEncoder, JudgingCost
from eval.judges.generative import GenerativeJudge, JudgePrompt, ShownEncoder
from eval.judges.packed_inference import Packed, Scorer
from eval.judges.scalar import ResponsesEncoder, ScalarJudge
from eval.protocol import Example, Judge, Verdict
from eval.results.tables import results_table
from eval.running.suite import Suite, headline
from models.distributed import rank
from models.encoder import Encoder
from models.generation import SamplingConfig
from train.recipe.deepspeed_config import stage
from train.recipe.methods import CriticConfig, LanguageModelConfig, NaiveConfig, StableReinforceConfig
from train.recipe.recipe import HELD_OUT, HELD_OUT_LOSS, Recipe
from train.supervised.budget import FIRST_BUDGET, ceiling
from train.supervised.checkpoints import evaluation_folder
from train.supervised.critic import CriticEncoder, CritiqueStore, JointCritique, Write, refuse_missing_critiques
from train.supervised.held_out import HeldOut, held_out_loss
from train.supervised.judgements import JudgementEncoder, JudgementRecords
from train.supervised.lessons import Lessons
from train.supervised.objectives import LanguageModelling, Objective, PairwiseScores
from train.supervised.steps import MixtureRecords, PairEncoder, Records, expected_costs
from train.supervised.trainer import Evaluate


@dataclass(frozen=True, slots=True)
class TrainingData:
    """What a run trains on, and what stands behind it."""

    records: Records
    mixture: Mixture | None = None
    """None for lessons of the embedded world."""
    store: CritiqueStore | None = None
    """Where a critic's own critiques are kept, if it is trained on them."""


def training_data(recipe: Recipe, encoder: Encoder) -> TrainingData:
    """Open the recipe's data for its method."""
    method = recipe.method
    if isinstance(method, LanguageModelConfig) and method.target == "lessons":
        return TrainingData(lessons(recipe, method, encoder))
    backbone = recipe.backbone
    mixture = Mixture(recipe.data, min_pixels=backbone.min_pixels, max_pixels=backbone.max_pixels)
    store = None
    if isinstance(method, CriticConfig):
        if method.records_without_critique == "refuse":
            refuse_missing_critiques(mixture)
        if method.critique != "ground_truth":
            store = CritiqueStore(Path(recipe.output.folder) / "critiques", method, recipe.seed)
    encode = record_encoder(recipe, encoder, store)
    if isinstance(encode, JudgementEncoder):
        assert isinstance(method, LanguageModelConfig)
        return TrainingData(JudgementRecords(mixture, encode, method.both_orders), mixture)
    return TrainingData(MixtureRecords(mixture, encode), mixture, store)


def record_encoder(
    recipe: Recipe, encoder: Encoder, store: CritiqueStore | None = None
) -> PairEncoder | CriticEncoder | JudgementEncoder:
    """Return how the method turns a record into a group."""
    if isinstance(recipe.method, LanguageModelConfig):
        return JudgementEncoder(encoder, recipe.method.template)
    if isinstance(recipe.method, CriticConfig):
        return CriticEncoder(encoder, recipe.method.writing.request, store)
    return PairEncoder(encoder, recipe.head.read)


def record_costs(data: TrainingData) -> npt.NDArray[np.float32] | None:
    """Return the expected cost of every record by its index, None for lessons, which are all alike."""
    if data.mixture is None:
        return None
    costs = expected_costs(data.mixture)
    # Judgements count a record twice, once for either response shown first.
    return np.repeat(costs, 2) if isinstance(data.records, JudgementRecords) else costs


def lessons(recipe: Recipe, method: LanguageModelConfig, encoder: Encoder) -> Lessons:
    """Return the lessons of the embedded world that the recipe's one source names."""
    source = recipe.data.sources[0]
    assert isinstance(source, ShapesConfig)  # a rule of the recipe
    world = ShapesWorld(source.level, source.seed, source.split, source.text_only)
    if method.most_things is not None:
        world = world.of_shapes(method.most_things)
    kinds = None if source.kinds is None else tuple(source.kinds)
    shares = method.text_share, method.asked_share
    return Lessons(world, encoder, source.rows, method.questions, method.answers == "stated", *shares, kinds)


def objective(recipe: Recipe) -> Objective:
    """Return what the recipe's method learns."""
    method = recipe.method
    if isinstance(method, NaiveConfig):
        return PairwiseScores(method)
    return JointCritique(method) if isinstance(method, CriticConfig) else LanguageModelling()


def token_budget(recipe: Recipe) -> int:
    """Return what one packed row of training may cost at the start.

    `auto` rises from here as memory allows. So does every budget on a CUDA device under ZeRO-3, which cannot take a lack of
    memory back.
    """
    asked = recipe.optim.token_budget
    most = ceiling(asked, Path(recipe.output.folder))
    begins_low = asked == "auto" or (stage(recipe.deepspeed) == 3 and device().type == "cuda")
    return min(most, FIRST_BUDGET) if begins_low else most


def inference_budget(recipe: Recipe) -> int:
    """Return what one packed row without gradients may cost, for `auto` what eval/run.py takes, so that figures agree."""
    budget = recipe.optim.token_budget
    return TOKEN_BUDGET[device().type] if budget == "auto" else budget


def device() -> torch.device:
    """Return the device of this rank."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def judge(recipe: Recipe, encoder: Encoder, model: nn.Module) -> Judge:
    """Return the judge that a model in training is; `model` may be wrapped by DeepSpeed, DDP or PEFT."""
    if isinstance(recipe.method, CriticConfig):
        return critic_judge(recipe, recipe.method, encoder, model)
    if isinstance(recipe.method, LanguageModelConfig | StableReinforceConfig):
        return generative_judge(recipe, recipe.method.template, encoder, model)
    scorer = Scorer(model, encoder, device(), inference_budget(recipe), recipe.workers)
    return ScalarJudge(scorer, ResponsesEncoder(encoder, recipe.head.read))


def critic_judge(recipe: Recipe, method: CriticConfig, encoder: Encoder, model: Any, *, forgiving: bool = False) -> CriticJudge:
    """Return the critic that writes its own critiques, greedily."""
    return CriticJudge(
        model=unwrapped(model),
        encode=CritiqueEncoder(encoder, "own", method.writing.request, forgiving=forgiving),
        device=device(),
        token_budget=inference_budget(recipe),
        sampling=SamplingConfig(max_new_tokens=method.critique_max_tokens),
        spent=JudgingCost(),
        workers=recipe.workers,
    )


def generative_judge(recipe: Recipe, template: JudgeTemplate, encoder: Encoder, model: Any) -> GenerativeJudge:
    """Return the judge that writes judgements, as the evaluation section says."""
    return GenerativeJudge(
        model=unwrapped(model),
        encode=ShownEncoder(encoder, JudgePrompt.of_template(template)),
        device=device(),
        token_budget=inference_budget(recipe),
        sampling=SamplingConfig.model_validate(recipe.evaluation.judging.model_dump()),
        protocol=recipe.evaluation.protocol,
        spent=JudgingCost(),
        workers=recipe.workers,
    )


def unwrapped(model: Any) -> Any:
    """Return the model inside DeepSpeed's, DDP's and PEFT's wrappers; PEFT's adapters stay in its layers."""
    from accelerate.utils import extract_model_from_parallel
    from peft import PeftModel

    inner = extract_model_from_parallel(model)
    return inner.get_base_model() if isinstance(inner, PeftModel) else inner


def critique_writer(recipe: Recipe, encoder: Encoder) -> Write:
    """Return what writes a critic's own critiques during training."""

    def write(model: Any, examples: Sequence[Example]) -> Sequence[Verdict]:
        assert isinstance(recipe.method, CriticConfig)
        return critic_judge(recipe, recipe.method, encoder, model, forgiving=True).judge(examples)

    return write


def evaluation(
    recipe: Recipe, encoder: Encoder, folder: Path, console: Console, mixture: Mixture | None = None
) -> Evaluate | None:
    """Return what scores the benchmarks and the held-out records of `mixture` inside the loop, None where there are none.

    The held-out records are written into `folder`. Raises UserError if too many of them cannot be used.
    """
    if not recipe.evaluates:
        return None
    suite, held_out = Suite.load(recipe.evaluation.benchmarks, recipe.evaluation.protocol), None
    if mixture is not None and len(mixture.validation):
        held_out = HeldOut.load(mixture, PairEncoder(encoder, recipe.head.read), console)
        if rank() == 0:
            held_out.write(folder)
        if f"{HELD_OUT}/accuracy" in recipe.held_out_figures:
            suite = replace(suite, benchmarks={**suite.benchmarks, HELD_OUT: held_out.benchmark()})

    def evaluate(model: nn.Module, step: int) -> dict[str, float]:
        judging = judge(recipe, encoder, model)
        results = suite.run(judging, evaluation_folder(folder, step))
        if rank() == 0 and results:
            console.print(results_table(results, title=f"step {step}", baselines=recipe.evaluation.baselines))
        cost = judging.spent.figures() if isinstance(judging, CriticJudge | GenerativeJudge) else {}
        figures = headline(results) | {f"judging/{name}": value for name, value in cost.items()}
        if held_out is not None and HELD_OUT_LOSS in recipe.held_out_figures:
            packed = Packed(encoder, device(), inference_budget(recipe), recipe.workers)
            encode = record_encoder(recipe, encoder)
            figures[HELD_OUT_LOSS] = held_out_loss(model, objective(recipe), encode, held_out, packed)
            if rank() == 0:
                console.print(f"{HELD_OUT_LOSS} {figures[HELD_OUT_LOSS]:.4f}", highlight=False)
        return figures

    return evaluate
