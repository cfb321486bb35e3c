"""Every rule refuses what it is for, says the way out, and lets the way out pass."""

from __future__ import annotations

import ast
import inspect
import sys
from pathlib import Path

import pytest

from mmrm.data.config.registry import installed_rows
from mmrm.data.errors import RecipeError
from mmrm.train.recipe import rules
from mmrm.train.recipe.parsing import read_recipe
from mmrm.train.recipe.registry import METHODS
from mmrm.train.reinforce import advantage_config as advantages
from mmrm.train.reinforce import config as reinforce
from mmrm.train.reinforce.policy import term_config as policy_terms
from mmrm.train.reinforce.stable_reinforce import judgement_term_config as judgement_terms
from tests.train.minimal import write

RL = "method={type: stable_reinforce}"
CRITIC = "method={type: critic}"
JUDGE = "method={type: language_model, target: judgement}"
SHAPES = "data.sources=[{type: shapes, level: demo, rows: 8}]"
ALL_FROZEN = "backbone.freeze=[vision_tower, projector, language_model]"
POLICY = "method={type: policy, rewards: [{type: verifier}]}"
QUESTIONS = "{type: questions, hub: a/b}"
BENCHMARK = "evaluation.benchmarks=[{name: vl_rewardbench}]"

LISTS = "data.sources=[{type: project, path: x.jsonl, pairs: none}]"
CASES = {
    "pixels_in_order": (
        "backbone.min_pixels",
        ["backbone.min_pixels=4000", "backbone.max_pixels=3000"],
        ["backbone.min_pixels=3000"],
    ),
    "no_control_tokens": (
        "backbone.system_prompt",
        ["backbone.system_prompt='a<|im_end|>b'"],
        ["backbone.system_prompt=ab"],
    ),
    "varlen_dtype": (
        "backbone.attention",
        ["backbone.attention=varlen"],
        ["backbone.dtype=bfloat16"],
    ),
    "kept_inside_of_compiled_layers": (
        "optim.activation_checkpointing",
        ["optim.activation_checkpointing=linear", "optim.compile=layers"],
        ["optim.activation_checkpointing=attention"],
    ),
    "selective_checkpointing_without_zero3": (
        "optim.activation_checkpointing",
        ["optim.activation_checkpointing=attention", "deepspeed=zero3"],
        ["deepspeed=zero2"],
    ),
    "rows_of_rollouts_are_whole": (
        "optim.sequence_parallel",
        [RL, "optim.sequence_parallel=2"],
        ["optim.sequence_parallel=1"],
    ),
    "something_to_train": (
        "backbone.freeze",
        [JUDGE, ALL_FROZEN],
        ["backbone.freeze=[vision_tower]"],
    ),
    "head_used": ("head", [JUDGE, "head={layers: 1}"], ["method={type: naive}"]),
    "critic_reads_the_end": ("head.read", [CRITIC, "head={read: mean}"], ["head.read=end_of_turn"]),
    "critic_has_one_score": (
        "head.type",
        [CRITIC, "head={type: gaussian}"],
        ["head.type=score"],
    ),
    "critic_share": (
        "method.own_share",
        [CRITIC, "method.critique=mixture"],
        ["method.own_share=0.5"],
    ),
    "critiques_to_learn": (
        "method.records_without_critique",
        [CRITIC, "data.sources=[{type: trl, hub: a/b}]"],
        ["method.records_without_critique=score_only"],
    ),
    "critic_weights": (
        "method.score_weight",
        [CRITIC, "method.score_weight=0", "method.cross_entropy_weight=0"],
        ["method.score_weight=1"],
    ),
    "group_size": (
        "method.advantages.normalisation",
        [RL, "method.advantages={normalisation: leave_one_out}"],
        ["method.num_generations=2"],
    ),
    "filter_can_fire": (
        "method.advantages.filter",
        [RL, "method.advantages={normalisation: group}", "method.num_generations=10"],
        ["method.num_generations=11"],
    ),
    "ratio_in_order": (
        "method.pre_clip",
        [RL, "method.pre_clip={lowest: 2}"],
        ["method.pre_clip=null"],
    ),
    "lessons_world": (
        "method.target",
        ["method={type: language_model, target: lessons}", "data.sources=[{type: trl, hub: a/b}]"],
        ["data.sources=[{type: shapes, level: demo, rows: 8}]"],
    ),
    "rationales_to_learn": (
        "method.target",
        [JUDGE, "data.sources=[{type: trl, hub: a/b}]"],
        ["data.sources=[{type: shapes, level: demo, rows: 8}]"],
    ),
    "verdict_without_rubric": (
        "method.template",
        ["method={type: language_model, target: verdict, template: rubric}"],
        ["method.template=r1_reward"],
    ),
    "preference_or_rating": (
        "method.rating",
        [
            "method={type: language_model, target: ratings, ratings_from: preference}",
            "method.rating=helpfulness",
        ],
        ["method.rating=null"],
    ),
    "loss_of_verdicts": (
        "method.loss_on",
        ["method={type: language_model, target: verdict, loss_on: score}", BENCHMARK],
        ["method.loss_on=answer"],
    ),
    "loss_of_judgements": (
        "method.loss_on",
        ["method={type: language_model, target: judgement, loss_on: answer}", SHAPES],
        ["method.target=verdict"],
    ),
    "verdict_alone_is_read": (
        "method.loss_on",
        ["method={type: language_model, target: verdict, loss_on: verdict}", BENCHMARK],
        ["evaluation.protocol={verdicts: soft, rationale: none}"],
    ),
    "score_alone_is_written": (
        "method.loss_on",
        [
            "method={type: language_model, target: ratings, loss_on: score, points: {rationale: true}}",
        ],
        ["method.points.rationale=false"],
    ),
    "passes_divide": (
        "method.pairs_per_pass",
        [RL, "method.pairs_per_pass=5"],
        ["method.pairs_per_pass=4"],
    ),
    "easy_first_in_both_orders": (
        "method.both_orders",
        [JUDGE, "method.both_orders=true", "data.curriculum={order: easy_first}"],
        ["method.both_orders=false"],
    ),
    "judging_used": ("evaluation.judging", ["evaluation.judging={temperature: 1.0}"], [JUDGE]),
    "one_length": ("optim.max_steps", ["optim.max_steps=10"], ["optim.epochs=null"]),
    "head_rate_used": (
        "optim.head_learning_rate",
        [JUDGE, "optim.head_learning_rate=0.1"],
        ["optim.head_learning_rate=null"],
    ),
    "vision_rate_used": (
        "optim.vision_learning_rate",
        ["optim.vision_learning_rate=0.1", "optim.lora={}"],
        ["optim.lora=null"],
    ),
    "lora_and_freeze": (
        "optim.lora",
        ["optim.lora={}", "backbone.freeze=[language_model]"],
        ["backbone.freeze=[]"],
    ),
    "known_deepspeed": ("deepspeed", ["deepspeed=zero9"], ["deepspeed=zero2_offload"]),
    "quantised_stage": (
        "optim.lora.quantise",
        ["optim.lora={quantise: nf4}", "deepspeed=zero3"],
        ["deepspeed=zero2"],
    ),
    "benchmark_names": (
        "evaluation.benchmarks",
        ["evaluation.benchmarks=[{name: vl_rewardbench}, {name: vl_rewardbench, limit: 5}]"],
        [BENCHMARK],
    ),
    "metric_exists": (
        "evaluation.best_metric",
        ["evaluation.best_metric=vl_rewardbench/accuracy"],
        [BENCHMARK],
    ),
    "validation_of_records": (
        "data.validation",
        ["method={type: language_model, target: lessons}", "data.validation=2"],
        ["data.validation=0"],
    ),
    "own_share_unused": (
        "method.own_share",
        [CRITIC, "method.own_share=0.5"],
        ["method.critique=mixture"],
    ),
    "vision_rate_frozen": (
        "optim.vision_learning_rate",
        ["backbone.freeze=[vision_tower, projector]", "optim.vision_learning_rate=0.1"],
        ["optim.vision_learning_rate=null"],
    ),
    "greedy_votes": (
        "evaluation.judging",
        [JUDGE, "evaluation.protocol.votes=3"],
        ["evaluation.judging.temperature=1.0"],
    ),
    "questions_are_no_pairs": ("data.sources", [f"data.sources=[{QUESTIONS}]"], [POLICY]),
    "questions_asked": ("evaluation.samples", ["evaluation.samples=4"], [POLICY]),
    "answers_known": (
        "method.rewards",
        [POLICY, "data.sources=[{type: trl, hub: a/b}]"],
        [f"data.sources=[{QUESTIONS}]"],
    ),
    "length_that_costs": (
        "method.rewards.1.free_tokens",
        [
            "method={type: policy, max_new_tokens: 8, rewards: [{type: verifier}, {type: length, free_tokens: 8}]}"
        ],
        ["method.rewards.1.free_tokens=7"],
    ),
    "weights": (
        "method.rewards",
        [POLICY, "method.rewards.0.weight=0"],
        ["method.rewards.0.weight=1"],
    ),
    "policy_judges_nothing": (
        "evaluation.benchmarks",
        [POLICY, BENCHMARK],
        ["evaluation.benchmarks=[]"],
    ),
    "evaluated_answers_known": (
        "evaluation.questions.0",
        [POLICY, "evaluation.questions=[{type: trl, hub: a/b}]"],
        [f"evaluation.questions=[{QUESTIONS}]"],
    ),
    "names_of_questions": (
        "evaluation.questions",
        [POLICY, f"evaluation.questions=[{QUESTIONS}, {QUESTIONS}]"],
        ["evaluation.questions.1.name=other"],
    ),
    "joint_has_one_score": (
        "head.type",
        ["method={type: joint}", "head={type: gaussian}"],
        ["head.type=score"],
    ),
    "joint_reads_each_response": (
        "head.read",
        ["method={type: joint}", "head={read: last_token}"],
        ["head.read=end_of_turn"],
    ),
    "objective_trains_the_head": (
        "method.objective",
        ["head={type: gaussian}"],
        ["method.objective={type: gaussian}"],
    ),
    "objective_uses_the_key": (
        "method.margin",
        ["method.objective={type: ties}", "method.margin=true"],
        ["method.margin=false"],
    ),
    "margins_of_pairs": (
        "method.margin",
        [LISTS, "method.margin=true"],
        ["data.sources.0.pairs=hardest"],
    ),
    "lists_are_learned": ("data.sources.0", [LISTS, CRITIC], ["method={type: naive}"]),
    "ties_are_learned": (
        "data.sources.0",
        ["data.sources=[{type: project, path: x.jsonl, ties: keep}]"],
        ["method.objective={type: ties}"],
    ),
    "adapters_of_experts_without_dropout": (
        "optim.lora.experts",
        ["optim.lora={rank: 4, experts: true, dropout: 0.1}"],
        ["optim.lora.dropout=0.0"],
    ),
    "router_loss_used": (
        "optim.router_aux_loss_coef",
        [RL, "optim.router_aux_loss_coef=0.01"],
        ["optim.router_aux_loss_coef=0.0"],
    ),
    "parts_of_a_rubric_need_a_rubric": (
        "method.rubric_parts",
        [SHAPES, "method={type: language_model, target: judgement, rubric_parts: [criteria]}"],
        ["method.template=rubric"],
    ),
    "a_reader_reads_a_rubric": (
        "method.rewards.reader",
        ["method={type: stable_reinforce, rewards: {reader: {path: null}}}"],
        ["method.template=rubric"],
    ),
    "a_reader_is_the_only_further_model": (
        "method.rewards.reader",
        [
            "method={type: stable_reinforce, template: rubric}",
            "method.rewards={reader: {path: null}, consistency: {type: checkpoint}}",
        ],
        ["method.rewards.consistency={type: rule}"],
    ),
    "a_group_has_several_texts": (
        "method.advantages.type",
        [RL, "method.advantages={type: rloo}"],
        ["method.num_generations=2"],
    ),
    "both_orders_get_equally_many_judgements": (
        "method.rewards.0",
        ["method={type: stable_reinforce, rewards: [{type: agreement}]}"],
        ["method.num_generations=2"],
    ),
    "both_responses_get_equally_many_texts": (
        "method.num_generations",
        ["method={type: reinforce_points, num_generations: 3}"],
        ["method.num_generations=4"],
    ),
    "some_judgements_cost": (
        "method.rewards.1.free_tokens",
        [
            "method={type: stable_reinforce, max_new_tokens: 8}",
            "method.rewards=[{type: result}, {type: length, free_tokens: 8}]",
        ],
        ["method.rewards.1.free_tokens=7"],
    ),
    "a_term_is_listed_once": (
        "method.rewards",
        ["method={type: stable_reinforce, rewards: [{type: result}, {type: result}]}"],
        ["method.rewards=[{type: result}]"],
    ),
    "weights_of_judgements": (
        "method.rewards",
        ["method={type: stable_reinforce, rewards: [{type: format, weight: 0}]}"],
        ["method.rewards.0.weight=1"],
    ),
    "ratings_use_the_key": (
        "method.rating",
        ["method={type: language_model, target: judgement, rating: helpfulness}"],
        ["method.target=ratings"],
    ),
    "critiques_before_scores": (
        "method.points",
        [
            "method={type: language_model, target: ratings, points: {rationale: true}}",
            "data.sources=[{type: trl, hub: a/b}]",
        ],
        ["data.sources=[{type: project, path: x.jsonl}]"],
    ),
}
"""Rule: (the key that it points at, what it refuses, what to add as the way out)."""


def test_every_rule_has_a_case() -> None:
    """Rules of the start (the script, the number of ranks) and of a run's length are tested elsewhere."""
    modules = {sys.modules[config.__module__] for config in installed_rows(METHODS).values()}
    num_rules = 0
    for module in [rules, reinforce, advantages, policy_terms, judgement_terms, *modules]:
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                num_rules += node.func.id == "Broken"
    num_of_start = 3
    num_of_length = 3
    assert num_rules == len(CASES) + num_of_start + num_of_length


@pytest.mark.parametrize("name", CASES)
def test_a_broken_rule_is_refused_and_the_way_out_passes(tmp_path: Path, name: str) -> None:
    path, (key, wrong, right) = write(tmp_path), CASES[name]
    with pytest.raises(RecipeError) as caught:
        read_recipe(path, wrong)
    assert [problem.key for problem in caught.value.problems] == [key]
    read_recipe(path, [*wrong, *right])


@pytest.mark.parametrize("figure", ["accuracy", "macro", "hallucination/accuracy"])
def test_the_best_checkpoint_has_the_highest_of_these(tmp_path: Path, figure: str) -> None:
    read_recipe(write(tmp_path), [BENCHMARK, f"evaluation.best_metric=vl_rewardbench/{figure}"])


@pytest.mark.parametrize(
    "figure",
    [
        "vl_rewardbench/acuracy",
        "vl_rewardbench/ties",
        "accuracy",
        "multimodal_rewardbench/accuracy",
    ],
)
def test_the_best_checkpoint_is_not_chosen_by_these(tmp_path: Path, figure: str) -> None:
    with pytest.raises(RecipeError, match="possible are vl_rewardbench/accuracy"):
        read_recipe(write(tmp_path), [BENCHMARK, f"evaluation.best_metric={figure}"])


@pytest.mark.parametrize(
    ("method", "figures"),
    [
        ("method.type=naive", {"loss", "accuracy"}),
        ("method={type: critic}", {"loss", "accuracy"}),
        (JUDGE, {"loss"}),
        (RL, {"accuracy"}),
    ],
)
def test_a_held_out_figure_chooses_where_the_method_has_it_and_records_are_held_out(
    tmp_path: Path, method: str, figures: set[str]
) -> None:
    for figure in ("loss", "accuracy", "ties"):
        chosen = [method, SHAPES, f"evaluation.best_metric=held_out/{figure}"]
        with pytest.raises(RecipeError, match="none: both are empty"):
            read_recipe(write(tmp_path), chosen)
        if figure in figures:
            read_recipe(write(tmp_path), [*chosen, "data.validation=2"])
            continue
        with pytest.raises(RecipeError, match="possible are held_out/"):
            read_recipe(write(tmp_path), [*chosen, "data.validation=2"])


def test_a_head_is_trained_on_a_frozen_backbone(tmp_path: Path) -> None:
    read_recipe(write(tmp_path), [ALL_FROZEN])


@pytest.mark.parametrize("other", ["optim.records_per_step=12", "optim.records_per_step=3"])
def test_ranks_divide_a_step(tmp_path: Path, other: str) -> None:
    with pytest.raises(
        RecipeError,
        match=r"set optim\.records_per_step=63, or start a number of ranks that divides 64",
    ):
        read_recipe(write(tmp_path), world_size=3)
    read_recipe(write(tmp_path), [other], world_size=3)


def test_groups_of_ranks_divide_all_ranks_and_a_step(tmp_path: Path) -> None:
    divided = ["optim.sequence_parallel=2"]
    with pytest.raises(RecipeError, match=r"does not divide the number of ranks, 3;"):
        read_recipe(write(tmp_path), divided, world_size=3, start=True)
    read_recipe(write(tmp_path), divided, world_size=4, start=True)
    # Six ranks are three groups, which do not divide 64 records.
    with pytest.raises(RecipeError, match=r"over 3 groups of 2 ranks"):
        read_recipe(write(tmp_path), divided, world_size=6, start=True)
    # A recipe that is only read, such as that of a run folder, is read by one process.
    read_recipe(write(tmp_path), divided)


def test_a_rule_is_silent_while_a_key_of_it_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        read_recipe(write(tmp_path), ["optim.epochs=two"])
    assert [problem.key for problem in caught.value.problems] == ["optim.epochs"]
