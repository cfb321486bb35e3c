"""Scalar reward models as judges: the response with the higher score is the better one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from data.preference import EncodedImage, Message, text
from eval.judges.packed_inference import Scorer
from eval.protocol import Example, Verdict
from models.config import StoredRead
from models.encoder import Encoder
from models.packing.groups import Group


@dataclass(frozen=True, slots=True)
class ResponsesEncoder:
    """An example (or any prompt with candidate responses) as one group with read positions; runs in loader workers."""

    encoder: Encoder
    read: StoredRead

    def __call__(self, example: Example) -> Group:
        """Encode an example's prompt once with both of its responses."""
        return self.responses(example.images, example.prompt, example.responses, example.identity)

    def responses(
        self, images: Sequence[EncodedImage], prompt: Sequence[Message], responses: Sequence[str], identity: str
    ) -> Group:
        """Encode a prompt and any number of responses; raises RecordError for an image that cannot be decoded."""
        conversations = [(*prompt, text("assistant", response)) for response in responses]
        return self.encoder.encode_conversations(images, conversations, self.read, identity)


@dataclass(frozen=True, slots=True)
class ScalarJudge:
    """A scalar reward model."""

    scorer: Scorer
    encode: ResponsesEncoder
    about: tuple[str, ...] = ()
    """What must be said beside its figures."""

    def judge(self, examples: Sequence[Example]) -> list[Verdict]:
        """Return both scores of every example; all ranks must call together, and all get all verdicts."""
        found = self.scorer.scores(examples, self.encode)
        return [Verdict(scores=(scores[0], scores[1])) for scores in found]

    def notes(self) -> tuple[str, ...]:
        """Return what must be said beside the figures."""
        return self.about
