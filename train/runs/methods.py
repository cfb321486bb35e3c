"""Which object a method's section of a recipe stands for."""

from train.methods.critic.method import CriticMethod
from train.methods.language_model.method import LanguageModelMethod
from train.methods.method import Method
from train.methods.naive.method import NaiveMethod
from train.recipe.methods import (
    CriticConfig,
    LanguageModelConfig,
    NaiveConfig,
    PolicyConfig,
    StableReinforceConfig,
)
from train.reinforce.policy.method import PolicyMethod
from train.reinforce.stable_reinforce.method import StableReinforceMethod

METHODS: dict[type, type[Method]] = {
    NaiveConfig: NaiveMethod,
    CriticConfig: CriticMethod,
    LanguageModelConfig: LanguageModelMethod,
    StableReinforceConfig: StableReinforceMethod,
    PolicyConfig: PolicyMethod,
}
