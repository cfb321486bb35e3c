"""What the keys of a `method` section must be to one another; train/rules.py lists these among all rules."""

from __future__ import annotations

import math

from train.methods import CriticConfig, LanguageModelConfig, StableReinforceConfig
from train.recipe import Recipe

WITH_CRITIQUES = ("mm_rlhf", "project", "shapes")
"""Types of sources whose records may hold critiques."""
WITH_RATIONALES = ("project", "r1_reward", "shapes")
"""Types of sources whose records may hold rationales."""


def critic_share(recipe: Recipe) -> str | None:
    """Refuse a mixture of critiques without its share, and a share without a mixture."""
    method = recipe.method
    if not isinstance(method, CriticConfig) or (method.critique == "mixture") == (method.own_share is not None):
        return None
    if method.critique == "mixture":
        return "a mixture needs method.own_share, the share of records scored on the model's own critique, for example 0.5"
    return f"own_share belongs to critique: mixture; with {method.critique} it would be unused; remove it"


def critiques_to_learn(recipe: Recipe) -> str | None:
    """Refuse a critic on sources whose records never hold a critique."""
    method, sources = recipe.method, recipe.data.sources
    if not isinstance(method, CriticConfig) or method.records_without_critique == "score_only":
        return None
    if any(source.type in WITH_CRITIQUES for source in sources):
        return None
    return (
        f"the critic learns from critiques, and records of {', '.join(sorted({source.type for source in sources}))} hold none; "
        f"add a source of type {', '.join(WITH_CRITIQUES[:-1])} or {WITH_CRITIQUES[-1]}, or set "
        "method.records_without_critique=score_only"
    )


def critic_weights(recipe: Recipe) -> str | None:
    """Refuse a critic whose two losses both count nothing."""
    method = recipe.method
    if not isinstance(method, CriticConfig) or method.score_weight or method.cross_entropy_weight:
        return None
    return "both weights of the critic are 0: nothing would be trained; raise score_weight or cross_entropy_weight"


def critic_reads_the_end(recipe: Recipe) -> str | None:
    """Refuse a critic's head that reads anything but the end of the critique: that is where writing leaves off."""
    if not isinstance(recipe.method, CriticConfig) or recipe.head.read == "end_of_turn":
        return None
    return f"a critic's head reads the end of the critique, not {recipe.head.read}; set head.read=end_of_turn or remove it"


def group_size(recipe: Recipe) -> str | None:
    """Refuse a baseline within a group of one."""
    method = recipe.method
    if not isinstance(method, StableReinforceConfig) or method.advantages.normalisation == "batch" or method.num_generations > 1:
        return None
    return (
        f"{method.advantages.normalisation} compares the judgements of one pair, and there is only 1; "
        "set method.num_generations to 2 or more, or method.advantages.normalisation=batch"
    )


def filter_can_fire(recipe: Recipe) -> str | None:
    """Refuse a filter that never acts: in a group of G the largest standardised value is (G - 1)/sqrt(G)."""
    method = recipe.method
    if not isinstance(method, StableReinforceConfig) or method.advantages.normalisation != "group":
        return None
    size, bound = method.num_generations, method.advantages.filter
    largest = (size - 1) / math.sqrt(size)
    if bound is None or largest > bound:
        return None
    return (
        f"no advantage in a group of {size} exceeds {largest:.2f}, so a filter at {bound:g} never acts; set "
        "method.advantages.normalisation=batch as in the paper, method.advantages.filter=null, or more generations"
    )


def ratio_in_order(recipe: Recipe) -> str | None:
    """Refuse pre-clip bounds that do not enclose 1, the ratio of an unchanged policy."""
    method = recipe.method
    if not isinstance(method, StableReinforceConfig) or method.pre_clip is None:
        return None
    low, high = method.pre_clip.lowest, method.pre_clip.highest
    return None if low < 1 < high else f"the bounds {low:g} and {high:g} must enclose 1, the ratio before any update"


def judging_used(recipe: Recipe) -> str | None:
    """Refuse settings of a writing judge for a method that trains none, and greedy votes, which are all alike."""
    evaluation, method = recipe.evaluation, recipe.method
    if not isinstance(method, LanguageModelConfig | StableReinforceConfig):
        if "judging" not in evaluation.model_fields_set:
            return None
        return f"the method {method.type} trains no judge that writes judgements; remove this section"
    if evaluation.protocol.votes == 1 or evaluation.judging.temperature:
        return None
    return f"{evaluation.protocol.votes} greedy votes are all alike; set evaluation.judging.temperature=1.0, or 1 vote"


def learns_judgements(recipe: Recipe) -> bool:
    """Say whether the recipe is a cold start of a judge."""
    return isinstance(recipe.method, LanguageModelConfig) and recipe.method.target == "judgement"


def rationales_to_learn(recipe: Recipe) -> str | None:
    """Refuse a cold start on sources whose records never hold a rationale."""
    sources = recipe.data.sources
    if not learns_judgements(recipe):
        return None
    if any(source.type in WITH_RATIONALES for source in sources):
        return None
    types = ", ".join(sorted({source.type for source in sources}))
    return (
        f"a cold start learns from rationales, and records of {types} hold none; "
        "annotate them (python eval/annotate.py --help) and take the files as a source of type project"
    )


def passes_divide(recipe: Recipe) -> str | None:
    """Refuse passes that do not divide a step."""
    method, pairs = recipe.method, recipe.optim.records_per_step
    if not isinstance(method, StableReinforceConfig) or pairs % method.pairs_per_pass == 0:
        return None
    return f"{method.pairs_per_pass} pairs a pass do not divide the {pairs} pairs of a step; take a divisor of {pairs}"


def lessons_world(recipe: Recipe) -> str | None:
    """Refuse lessons from anything but one embedded world."""
    method, sources = recipe.method, recipe.data.sources
    if not isinstance(method, LanguageModelConfig) or method.target != "lessons":
        return None
    if len(sources) == 1 and sources[0].type == "shapes":
        return None
    return "lessons are drawn from the embedded world: data.sources must hold exactly one source, of type shapes"
