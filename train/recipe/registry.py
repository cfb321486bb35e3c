"""The training methods, by the `type` in a recipe.

A new method is a folder with a module `config`, and a row here.
"""

from __future__ import annotations

from mmrm.data.config.registry import installed_rows
from mmrm.train.methods.naive.config import NaiveConfig
from mmrm.train.recipe.sections import MethodConfig, Script

METHODS: dict[str, type[MethodConfig] | str] = {
    "naive": NaiveConfig,
    "language_model": "mmrm.train.methods.language_model.config:LanguageModelConfig",
    "critic": "mmrm.train.methods.critic.config:CriticConfig",
    "joint": "mmrm.train.methods.joint.config:JointConfig",
    "stable_reinforce": "mmrm.train.reinforce.stable_reinforce.config:StableReinforceConfig",
    "reinforce_points": "mmrm.train.reinforce.points.config:ReinforcePointsConfig",
    "policy": "mmrm.train.reinforce.policy.config:PolicyConfig",
}
"""The class of the section `method` for each `type`.

A method that is not part of every installation is given by its import path.
"""


def methods_of_script(script: Script) -> list[str]:
    """Return the `type` of every installed method that the script trains."""
    return [name for name, config in installed_rows(METHODS).items() if config.script == script]
