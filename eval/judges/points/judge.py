"""Language models that are asked for the score of each response by itself.

Their score is the expected value of the score's distribution, or the written score.
"""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmrm.data.errors import CheckpointError
from mmrm.data.point_prompt import PointPrompt
from mmrm.data.preference import Message, Response
from mmrm.eval.candidates import Candidates
from mmrm.eval.judges.checkpoint import Runtime, load_checkpoint
from mmrm.eval.judges.generative.judge import load_writer
from mmrm.eval.judges.packed_inference import Packed
from mmrm.eval.judges.points.config import PointsJudgeConfig, Reading
from mmrm.eval.judges.pointwise import ExpectedPointJudge, PointJudge
from mmrm.eval.judges.score_place import ScorePlace
from mmrm.models.config import SamplingConfig


@dataclass(frozen=True, slots=True)
class PromptedPoint:
    """Asks by the words of a `PointPrompt`, and reads a written score in its form."""

    prompt: PointPrompt

    def ask(self, candidates: Candidates, response: Response) -> tuple[Message, ...]:
        """Return the conversation that asks for the score of a response to `candidates`."""
        return self.prompt.ask(candidates.prompt, response)

    def read(self, text: str) -> float:
        """Return the value of the score after the last opening; NaN if there is none.

        Only blanks may be between the two, and no letter or digit may follow the score. If the
        opening is empty or blank, the text begins with the score.
        """
        values = self.prompt.value_by_text
        rest = text
        opening = self.prompt.opening.strip()
        if opening:
            _, found, rest = text.rpartition(self.prompt.opening.rstrip())
            if not found:
                return math.nan
        longest_first = sorted(values, key=len, reverse=True)
        alternatives = "|".join(map(re.escape, longest_first))
        match = re.match(rf"\s*({alternatives})(?!\w)", rest)
        return values[match[1]] if match else math.nan

    @property
    def place(self) -> ScorePlace:
        """The place of the score in a text, and the scores."""
        return ScorePlace(self.prompt.opening, dict(self.prompt.value_by_text))


def point_judge(
    prompt: PointPrompt,
    reading: Reading,
    model: Any,
    packed: Packed,
    sampling: SamplingConfig,
    about: tuple[str, ...] = (),
) -> PointJudge:
    """Return a language model as a judge that is asked for the score of each response.

    Args:
        prompt: The question, the opening and the scores.
        reading: As in `PointsJudgeConfig`.
        model: The model in eval mode, not wrapped by DeepSpeed or DDP.
        packed: The encoder and the size of packed rows.
        sampling: The sampling of texts, if the judge writes.
        about: Notes to print with the judge's figures.
    """
    prompted = PromptedPoint(prompt)
    if reading == "written":
        return PointJudge(
            model=model,
            packed=packed,
            sampling=sampling,
            ask=prompted.ask,
            read=prompted.read,
            about=about,
        )
    return ExpectedPointJudge(
        model=model,
        packed=packed,
        sampling=sampling,
        ask=prompted.ask,
        read=prompted.read,
        place=prompted.place,
        at_once=not prompt.rationale,
        about=about,
    )


def load_points_judge(path: Path, runtime: Runtime, config: PointsJudgeConfig) -> PointJudge:
    """Load the language model that `config` names, and return it as a judge of single responses.

    It asks by the prompt of its training, or by `config.prompt` if it is set. `path` is the folder
    or YAML file of the judge, for messages.

    Raises: CheckpointError if sampling is set for a judge that writes nothing.
    """
    checkpoint = load_checkpoint(Path(config.checkpoint).expanduser(), runtime, load_writer)
    prompt = config.prompt
    notes = checkpoint.notes
    if prompt is None and checkpoint.card is not None:
        prompt = checkpoint.card.points
    if prompt is None:
        prompt = PointPrompt()
        note = (
            f"{config.checkpoint} was not trained to score single responses; it is asked for a "
            "score from 1 to 5."
        )
        notes = (*notes, note)
    sampling_settings = config.model_fields_set & SamplingConfig.model_fields.keys()
    writes_nothing = config.reading == "expected" and not prompt.rationale
    if writes_nothing and sampling_settings:
        raise CheckpointError(
            f"{path}: {', '.join(sorted(sampling_settings))}: a judge that answers at once, "
            "without a rationale, writes nothing. Remove it, or set `prompt: {rationale: true}` or "
            "`reading: written`."
        )
    return point_judge(prompt, config.reading, checkpoint.model, checkpoint.packed, config, notes)
