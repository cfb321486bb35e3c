"""Which object a method's section of a recipe stands for."""

from train.recipe.methods import (
    CriticConfig,
    LanguageModelConfig,
    NaiveConfig,
    PolicyConfig,
    StableReinforceConfig,
)
from train.reinforce.method import StableReinforceMethod
from train.reinforce.policy import PolicyMethod
from train.supervised.critic import CriticMethod
from train.supervised.judgements import LanguageModelMethod
from train.supervised.method import Method
from train.supervised.naive import NaiveMethod

METHODS: dict[type, type[Method]] = {
    NaiveConfig: NaiveMethod,
    CriticConfig: CriticMethod,
    LanguageModelConfig: LanguageModelMethod,
    StableReinforceConfig: StableReinforceMethod,
    PolicyConfig: PolicyMethod,
}
