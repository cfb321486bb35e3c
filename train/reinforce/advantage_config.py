"""The computation of advantages from rewards, as sections of a recipe: `method.advantages`.

[Q] marks a value that is quoted from the paper or its released code. Every other value is a
default of this project, because the paper is silent.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from mmrm.data.config.section import Section
from mmrm.train.recipe.sections import Broken

Bound = Annotated[float, Field(ge=1e-9, le=1e9)]


class AdvantageConfig(Section, ABC):
    """The section of a recipe on one computation of advantages from rewards."""

    if TYPE_CHECKING:
        # Every computation declares its own literal. Declared here, it would be the first key.
        type: str

    implementation: ClassVar[str]
    """The import path of the function that computes them. It takes the rewards of a whole rollout
    batch, (B,), the number of texts of each group, and this section."""

    @property
    @abstractmethod
    def summary(self) -> str:
        """A description for the plan and the model card, after "advantages by"."""

    def rules(self, group_size: int) -> Iterator[Broken]:
        """Yield the rules that this section breaks for groups of `group_size` texts."""
        yield from ()

    def idle_note(self, num_texts: int, group_size: int, largest_reward: float) -> str | None:
        """Return a note if a setting of this section never acts in a run; None if all of them can.

        Args:
            num_texts: The number of texts of a rollout batch.
            group_size: The number of texts of each group.
            largest_reward: The largest reward of a text; infinite if it is not known.
        """
        return None


class StableReinforceAdvantages(AdvantageConfig):
    """Advantages by standardised rewards with a filter on outliers (StableReinforce, R1-Reward)."""

    implementation = "mmrm.train.reinforce.advantages:stable_reinforce_advantages"

    type: Literal["stable_reinforce"] = "stable_reinforce"
    normalisation: Literal["batch", "group", "leave_one_out"] = "batch"
    """The normalisation of rewards: over the whole rollout batch [Q], over the texts of one prompt,
    or by subtracting the mean of the prompt's other texts."""
    filter: Bound | None = 3.0
    """Advantages beyond this number of standard deviations are set to 0 [Q]. Null switches the
    filter off."""
    filter_variant: Literal["paper", "r1_released"] = "paper"
    """The quantity that is compared with the bound: the standardised advantage [Q], or, as in the
    released code, the distance of the raw reward from the batch's mean. Rewards of at most 2 are
    never that far from their mean, so that the released filter never acts."""

    @property
    def summary(self) -> str:
        """The normalisation and the filter."""
        filter_description = "no filter"
        if self.filter is not None:
            filter_description = f"filter at {self.filter:g}"
        return f"{self.normalisation} with {filter_description}"

    def largest(self, num_texts: int, group_size: int) -> float:
        """Return the largest advantage that is possible in a rollout batch of `num_texts` texts.

        A text has this advantage if all other texts have the same reward, and it alone a larger
        one. `group_size` is the number of texts of each group.
        """
        if self.normalisation == "group":
            # by the standard deviation of a sample, which divides by (group_size - 1)
            return float((group_size - 1) / group_size**0.5)
        # by the standard deviation of the whole batch, which divides by num_texts
        largest = (num_texts - 1) ** 0.5
        if self.normalisation == "leave_one_out":
            stretch = group_size / (group_size - 1)
            return float(stretch * largest)
        return float(largest)

    def rules(self, group_size: int) -> Iterator[Broken]:
        """Yield the rules that a group has several texts, and that the filter can act."""
        if self.normalisation != "batch" and group_size == 1:
            message = (
                f"{self.normalisation} compares the judgements of one pair, and there is only 1; "
                "set method.num_generations to 2 or more, or "
                "method.advantages.normalisation=batch"
            )
            keys = ("method.advantages.normalisation", "method.num_generations")
            yield Broken(message, keys)

        # This is the advantage in a group whose other rewards are all alike, see `largest`.
        largest = (group_size - 1) / math.sqrt(group_size)
        if self.normalisation == "group" and self.filter is not None and largest <= self.filter:
            message = (
                f"no advantage in a group of {group_size} exceeds {largest:.2f}, so a filter at "
                f"{self.filter:g} never acts; set method.advantages.normalisation=batch as in the "
                "paper, method.advantages.filter=null, or more generations"
            )
            filter_keys = (
                "method.advantages.filter",
                "method.advantages.normalisation",
                "method.num_generations",
            )
            yield Broken(message, filter_keys)

    def idle_note(self, num_texts: int, group_size: int, largest_reward: float) -> str | None:
        """Return a note if no advantage of a rollout batch can reach the filter's bound."""
        if self.filter is None:
            return None
        largest = self.largest(num_texts, group_size)
        if self.filter_variant == "r1_released":
            largest = largest_reward
        if largest > self.filter:
            return None
        return (
            f"method.advantages.filter: {self.filter:g} never acts here, as no advantage "
            f"of {num_texts} texts exceeds {largest:.2f}. Take more pairs a rollout batch, "
            "another normalisation, or null."
        )


class GroupAdvantages(AdvantageConfig):
    """Advantages that compare the texts of one group, without a filter."""

    def rules(self, group_size: int) -> Iterator[Broken]:
        """Yield the rule that a group has several texts."""
        if group_size == 1:
            message = (
                f"{self.type} compares the texts of one pair or question, and there is only 1; set "
                "method.num_generations to 2 or more, or method.advantages.type=stable_reinforce"
            )
            yield Broken(message, ("method.advantages.type", "method.num_generations"))


class GrpoAdvantages(GroupAdvantages):
    """Advantages by the mean and the standard deviation of the group (GRPO, arXiv 2402.03300)."""

    implementation = "mmrm.train.reinforce.advantages:grpo_advantages"

    type: Literal["grpo"]

    @property
    def summary(self) -> str:
        """The name of the computation."""
        return "the group's mean and standard deviation (GRPO)"


class RlooAdvantages(GroupAdvantages):
    """Rewards minus the mean of the group's other texts (RLOO, arXiv 2402.14740)."""

    implementation = "mmrm.train.reinforce.advantages:rloo_advantages"

    type: Literal["rloo"]

    @property
    def summary(self) -> str:
        """The name of the computation."""
        return "the mean of the group's other texts (RLOO)"
