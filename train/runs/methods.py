"""Which object a method's section of a recipe stands for."""

from mmrm.train.methods.critic.method import CriticMethod
from mmrm.train.methods.language_model.method import LanguageModelMethod
from mmrm.train.methods.method import Method
from mmrm.train.methods.naive.method import NaiveMethod
from mmrm.train.recipe.methods import (
    CriticConfig,
    LanguageModelConfig,
    NaiveConfig,
    PolicyConfig,
    StableReinforceConfig,
)
from mmrm.train.reinforce.policy.method import PolicyMethod
from mmrm.train.reinforce.stable_reinforce.method import StableReinforceMethod

METHODS: dict[type, type[Method]] = {
    NaiveConfig: NaiveMethod,
    CriticConfig: CriticMethod,
    LanguageModelConfig: LanguageModelMethod,
    StableReinforceConfig: StableReinforceMethod,
    PolicyConfig: PolicyMethod,
}
