"""The computations of advantages from rewards, by the `type` in a recipe.

A new one is a subclass of `AdvantageConfig`, a function, and a row here.
"""

from mmrm.train.reinforce.advantage_config import (
    AdvantageConfig,
    GrpoAdvantages,
    RlooAdvantages,
    StableReinforceAdvantages,
)

ADVANTAGES: dict[str, type[AdvantageConfig] | str] = {
    "stable_reinforce": StableReinforceAdvantages,
    "grpo": GrpoAdvantages,
    "rloo": RlooAdvantages,
}
"""The class of the section of each `type` of advantages."""
