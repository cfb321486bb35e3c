"""The terms of a policy's reward, by the `type` in a recipe.

A new term is a subclass of `TermConfig`, a subclass of `RewardTerm`, and a row here.
"""

from mmrm.train.reinforce.policy.term_config import (
    FormatTerm,
    JudgeTerm,
    LengthTerm,
    TermConfig,
    VerifierTerm,
)

TERMS: dict[str, type[TermConfig] | str] = {
    "judge": JudgeTerm,
    "verifier": VerifierTerm,
    "length": LengthTerm,
    "format": FormatTerm,
}
"""The class of the section of each `type` of term."""
