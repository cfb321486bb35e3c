"""The terms of a judgement's reward, by the `type` in a recipe.

A new term is a subclass of `JudgementTermConfig`, a subclass of `JudgementTerm`, and a row here.
"""

from mmrm.train.reinforce.stable_reinforce.judgement_term_config import (
    AgreementTerm,
    CalibrationTerm,
    ConsistencyTerm,
    JudgementFormatTerm,
    JudgementLengthTerm,
    JudgementTermConfig,
    ReaderTerm,
    ResultTerm,
)

JUDGEMENT_TERMS: dict[str, type[JudgementTermConfig] | str] = {
    "result": ResultTerm,
    "consistency": ConsistencyTerm,
    "format": JudgementFormatTerm,
    "agreement": AgreementTerm,
    "calibration": CalibrationTerm,
    "reader": ReaderTerm,
    "length": JudgementLengthTerm,
}
"""The class of the section of each `type` of term."""
