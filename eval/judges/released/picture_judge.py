"""The judge that scores pictures with a reward model that others released.

A response is one picture. The model reads it as a part of the question, with the authors' own
question, and not as an answer of the assistant.
"""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from PIL import Image
from torch import nn

from mmrm.data.errors import RecordError
from mmrm.data.preference import Message, Response, image_parts, text
from mmrm.data.prompts import filled, question
from mmrm.eval.candidates import STD, Candidates, Scores
from mmrm.eval.judges.judge import JudgeInfo
from mmrm.eval.judges.packed_judge import (
    PackedJudge,
    Unit,
    UnitResult,
    joined_attributes,
    joined_values,
    refuse_non_finite,
)
from mmrm.eval.judges.released.picture_model import HEAD, REWARD_TOKEN, PictureReward
from mmrm.models.encoder import Conversation, Encoder
from mmrm.models.packing.packed_batch import PackedBatch
from mmrm.models.packing.segments import SegmentTree
from mmrm.models.portable.head_columns import GaussianColumns


@dataclass(frozen=True, slots=True)
class PictureLayout:
    """Makes the questions about one picture, one for each head of the model."""

    prompts: tuple[str, ...]
    num_source_pictures: int

    def __call__(self, unit: Unit) -> tuple[list[Conversation], None]:
        """Return a conversation for each head: the pictures, and the authors' question about them.

        The second value is None, because the score is read at a token of the question.

        Raises:
            RecordError: The prompt has not as many images as the model reads, or the response is
                something else than one image.
        """
        candidates = unit.candidates
        [response] = unit.responses
        self._refuse_other_forms(candidates, response)
        images = (*candidates.images, *response.images)
        contents = {"text_prompt": Response.of_text(question(candidates.prompt))}
        conversations = []
        for prompt in self.prompts:
            content = [*image_parts(len(images)), *filled(prompt, contents)]
            turn: Message = {"role": "user", "content": content}
            conversations.append(Conversation((turn,), images))
        return conversations, None

    def _refuse_other_forms(self, candidates: Candidates, response: Response) -> None:
        """Raise RecordError unless the response is one image, and the prompt has its images."""
        if candidates.all_videos:
            raise RecordError(
                f"{candidates.identity}: the row has a video, and this model scores images. Leave "
                "the row out."
            )
        if len(candidates.images) != self.num_source_pictures:
            raise RecordError(
                f"{candidates.identity}: the prompt has {len(candidates.images)} images, and this "
                f"model was trained on prompts with {self.num_source_pictures}. A model of edits "
                "needs the picture before the edit, and others need a prompt of text alone."
            )
        if len(response.images) != 1 or response.text.strip():
            raise RecordError(
                f"{candidates.identity}: a response has {len(response.images)} images and "
                f"{len(response.text)} characters of text, and this model scores exactly one image."
            )


@dataclass(frozen=True, slots=True)
class PictureUnitEncoder:
    """Encodes the questions about one picture. It runs in loader workers, so it holds no model."""

    encoder: Encoder
    layout: PictureLayout

    def __call__(self, unit: Unit) -> SegmentTree:
        """Return the questions as a tree of token ids and pixels, each read at its reward token.

        Raises: RecordError as in `PictureLayout`, or if an image cannot be decoded.
        """
        conversations, _ = self.layout(unit)
        token = self.encoder.tokenizer.convert_tokens_to_ids(REWARD_TOKEN)
        return self.encoder.encode_until_token(conversations, token, unit.candidates.identity)


@dataclass(frozen=True, kw_only=True)
class PictureJudge(PackedJudge):
    """A released reward model that scores pictures."""

    model: nn.Module
    """The model in eval mode. Its head computes the columns of all heads for every question."""
    row: PictureReward
    """The settings of the released model."""

    @property
    def info(self) -> JudgeInfo:
        """Properties of the judge: it scores each response, and neither compares nor writes."""
        return JudgeInfo()

    @property
    def layout(self) -> PictureLayout:
        """The function that makes the questions about a picture."""
        return PictureLayout(self.row.prompts, self.row.num_source_pictures)

    @property
    def encode(self) -> Callable[[Unit], SegmentTree]:
        """The function that encodes the questions about a picture for the model."""
        return PictureUnitEncoder(self.packed.encoder, self.layout)

    @property
    def trial(self) -> Candidates:
        """Two pictures with which a server tests at its start that the judge can compute."""
        buffer = io.BytesIO()
        Image.new("RGB", (28, 28)).save(buffer, "PNG")
        picture = buffer.getvalue()
        sources = (picture,) * self.row.num_source_pictures
        prompt = (text("user", "?", len(sources)),)
        responses = (Response((picture,)), Response((picture,)))
        return Candidates("trial", sources, prompt, responses, "trial")

    def units(self, candidates: Candidates) -> list[Unit]:
        """Return a unit for each picture."""
        indices = range(len(candidates.responses))
        return [Unit(str(index), candidates, shown=(index,)) for index in indices]

    def run(self, batch: PackedBatch, units: Sequence[Unit]) -> list[UnitResult]:
        """Run the model on a packed row, and return one result for each unit in the row.

        A result has the score of the unit's picture, and the standard deviation that the model
        states for it.
        """
        num_heads = len(self.row.prompts)
        columns = GaussianColumns(HEAD.model_dump())
        output = self.model(**batch.score_inputs())
        # (pictures, questions, heads, columns); a head reads its own question alone.
        by_question = output.reshape(-1, num_heads, num_heads, len(columns.names))
        by_head = by_question.diagonal(dim1=1, dim2=2)  # (pictures, columns, heads)
        numbers = by_head.mean(-1)
        scores = columns.ranking_scores(numbers).tolist()
        deviations = columns.attributes(numbers)[STD].tolist()
        return [
            UnitResult(values=(score,), attributes={STD: (deviation,)})
            for score, deviation in zip(scores, deviations, strict=True)
        ]

    def merge(
        self, candidates: Candidates, units: Sequence[Unit], results: Sequence[UnitResult]
    ) -> Scores:
        """Return the scores of all pictures, and the standard deviation of each score.

        The arguments are those of `PackedJudge.merge`.

        Raises: NonFiniteError if a number is not finite and this is not the judge of a benchmark.
        """
        values = joined_values(results)
        attributes = joined_attributes(results)
        if self.protocol is None:
            refuse_non_finite(candidates, values)
            refuse_non_finite(candidates, attributes[STD])
        return Scores(values, attributes=attributes)
