"""The parts of a policy's reward by the `type` in a recipe. A new one is two classes and a row here."""

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
"""A term's `type` to its section."""
