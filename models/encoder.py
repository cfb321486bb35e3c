"""From messages and images to a group of tokens: rendering, tokenising, and finding what continuations share."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from mmrm.data.errors import RecordError, UserError
from mmrm.data.images import decode
from mmrm.data.preference import (
    EncodedImage,
    Message,
    Preference,
    control_token,
    forged,
    placeholders,
    text,
    texts,
)
from mmrm.data.storage.files import read_json, write_json
from mmrm.data.video import ADVICE, TOKEN
from mmrm.models.cancellation import stop_if_abandoned
from mmrm.models.config import BackboneConfig, StoredRead
from mmrm.models.families.registry import family_of
from mmrm.models.packing.groups import Continuation, Group, PackedBatch, pack

if TYPE_CHECKING:
    from PIL.Image import Image

Patches = tuple[Tensor | None, tuple[tuple[int, int, int], ...]]
"""The pixels of images as a group holds them, and their grids."""
ANSWERED = (text("user", "-"), text("assistant", "-"))
"""A conversation that shows what the chat template writes around an answer."""


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of a rendered conversation, special tokens included, with one image token for each image."""

    text: str
    loss: bool = False
    """Its tokens carry language-model loss."""
    response: bool = False
    """A read position refers to its tokens."""


def assistant_turn(tokenizer: Any) -> dict[str, Any]:
    """Return the tokens that begin an assistant's turn and the one that ends it, as the chat template writes them.

    Raises: UserError for a template that writes nothing after an answer.
    """
    before = _template(tokenizer, ANSWERED[:1], False)
    opened = _template(tokenizer, ANSWERED[:1], True)
    begin = opened[len(before) :].rstrip()
    begin_ids = tokenizer(begin, add_special_tokens=False)["input_ids"]
    end_ids = tokenizer(_written_after_answer(tokenizer), add_special_tokens=False)["input_ids"]
    if not end_ids:
        raise UserError(
            "the chat template writes no token after an assistant's answer; required is one: scores are read there, and answers "
            "end with it. Take tokenizer files whose template ends each turn with a token of its own."
        )
    return {"begin": begin_ids, "end": end_ids[0]}


def _written_after_answer(tokenizer: Any) -> str:
    """Return the text that the chat template writes after an assistant's turn."""
    opened = _template(tokenizer, ANSWERED[:1], True)
    closed = _template(tokenizer, ANSWERED, False)
    return closed[len(opened) + len(joined_text(ANSWERED[1])) :]


def _template(tokenizer: Any, turns: Sequence[Any], open_turn: bool) -> str:
    text: str = tokenizer.apply_chat_template(
        list(turns), tokenize=False, add_generation_prompt=open_turn
    )
    return text


def joined_text(turn: Message) -> str:
    """Return the text parts of a turn, joined as chat templates join them."""
    return "".join(texts([turn]))


def rewritten(rendered: str) -> str:
    """Return the message for a chat template that does not keep a conversation as it is written."""
    return (
        "the chat template rewrites earlier turns or the assistant's text (it renders a conversation "
        "differently once a turn is added), so the tokens of the response cannot be told from others: "
        f"{rendered[:200]!r}. Use the backbone's own template."
    )


class Encoder:
    """Turns images and conversations into groups; holds a tokenizer and an image processor and no weights."""

    def __init__(
        self, tokenizer: Any, image_processor: Any, config: BackboneConfig, model_config: Any
    ) -> None:
        """Take the backbone's processor and its configuration: `mmrm.models.backbone.load_encoder`.

        Raises UserError where the image processor makes other patches than the vision tower takes.
        """
        self.tokenizer = tokenizer
        self.image_processor = image_processor
        self.config = config
        family, vision = family_of(model_config.model_type), model_config.vision_config
        marks = [tokenizer.convert_tokens_to_ids(mark) if mark else None for mark in family.marks]
        self.vision = family.vision_tokens(vision, marks)
        self.vision_text = tuple(
            token for token in family.vision_text if token in tokenizer.get_vocab()
        )
        self.vision_ids: list[int] = tokenizer.convert_tokens_to_ids(list(self.vision_text))
        self.end_of_turn: int = assistant_turn(tokenizer)["end"]
        self.end_of_turn_text = _written_after_answer(tokenizer).rstrip("\n")
        family.images.refuse(image_processor, vision)
        self.image_tokens = family.images.tokens(vision, config)
        shown = _template(
            tokenizer,
            ({"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "-"}]},),
            False,
        )
        start, image, _ = family.marks
        if shown.count(image) != 1:
            raise UserError(
                f"the chat template writes {shown.count(image)} {image} for an image; required is one, which the encoder repeats "
                f"for each token of the image. Take the tokenizer files of a {family.title} model that was trained to chat."
            )
        self.writes_marks = start is not None and start in shown
        self._last: tuple[tuple[EncodedImage, ...], Patches] = (), (None, ())
        """The images of the record before, and their patches: pairs of one prompt follow one another."""
        self.control_tokens = tuple(
            one.content for one in tokenizer.added_tokens_decoder.values() if one.special
        )
        if token := control_token(config.system_prompt or "", self.control_tokens):
            raise UserError(
                f"backbone.system_prompt contains {token!r}, a special token of the tokenizer, not text: remove it."
            )

    def save_pretrained(self, folder: str | Path, **kwargs: Any) -> None:
        """Write tokenizer and image processor beside a checkpoint, as transformers reads them; keywords go to both.

        Beside a reward model, whose code is there already, its processor's class is named.
        """
        self.tokenizer.save_pretrained(folder, **kwargs)
        self.image_processor.save_pretrained(folder, **kwargs)
        if Path(folder, "processor.py").is_file():
            file = Path(folder, "preprocessor_config.json")
            named = read_json(file) | {"auto_map": {"AutoProcessor": "processor.RewardProcessor"}}
            write_json(file, named)

    def render(self, messages: Sequence[Message], *, loss: bool = False) -> tuple[Span, ...]:
        """Render a conversation with the tokenizer's own chat template.

        The last assistant turn is the response; the text ends with that turn's end-of-turn token (a
        template's newline after it is dropped). `loss` marks the response and its end-of-turn token
        for language-model loss. A conversation that ends with a user turn is rendered up to the place
        where the assistant begins to write. The recipe's system prompt is used if the record has no
        system turn; None leaves that to the template.

        The template is called at most three times, however many turns there are, so the time is
        linear in the length of the conversation.

        Raises:
            RecordError: a turn's text, its parts joined as the template joins them, contains a vision
                token, or an assistant turn contains an image.
            ValueError: the template rewrites the assistant's text or earlier turns.
        """
        turns = list(messages)
        for turn in turns:
            self._refuse_vision_tokens(turn)
        if self.config.system_prompt is not None and turns[0]["role"] != "system":
            turns.insert(0, text("system", self.config.system_prompt))
        if turns[-1]["role"] != "assistant":
            return self._spans_before_response(turns)

        before = self._spans_before_response(turns[:-1])
        opened = "".join(span.text for span in before)
        closed = _template(self.tokenizer, turns, False)
        response = joined_text(turns[-1])
        if not closed.startswith(opened + response):
            raise ValueError(rewritten(closed))
        end_of_turn = closed[len(opened) + len(response) :].rstrip("\n")
        return (*before, Span(response, loss, response=True), Span(end_of_turn, loss))

    def _refuse_vision_tokens(self, turn: Message) -> None:
        """Raise RecordError if a turn's text contains a vision token, or if it is an assistant's with an image."""
        content = joined_text(turn)
        found = [token for token in self.vision_text if token in content]
        if found:
            raise RecordError(
                f"the {turn['role']}'s text contains {', '.join(found)}. The backbone would take it for an image: "
                "write the place of an image as an image part, and remove these tokens from the text."
                f"{f' {ADVICE}' if TOKEN in found else ''}"
            )
        if turn["role"] == "assistant" and placeholders([turn]):
            raise RecordError(
                "an assistant turn contains an image; images belong to the turns of the user"
            )

    def _spans_before_response(self, turns: Sequence[Message]) -> tuple[Span, ...]:
        """Return `turns` up to the place where the assistant begins to write its next turn.

        Each earlier assistant turn is two spans of its own, its text and its end-of-turn token.

        To find the earlier texts in the rendered conversation without rendering every beginning of it
        (which would be quadratic in turns), the conversation is rendered a second time with a marker
        in the place of each of them. What stands between the markers is what the template writes.

        Raises: ValueError if the template changes one of the earlier texts.
        """
        whole = _template(self.tokenizer, turns, True)
        answers = [joined_text(turn) for turn in turns if turn["role"] == "assistant"]
        if not answers:
            return (Span(whole),)

        # A hash of the conversation cannot occur in it.
        marker = hashlib.sha256(whole.encode(errors="surrogatepass")).hexdigest()
        marked_turns = [
            text("assistant", marker) if turn["role"] == "assistant" else turn for turn in turns
        ]
        first_piece, *pieces = _template(self.tokenizer, marked_turns, True).split(marker)
        if len(pieces) != len(answers):
            raise ValueError(rewritten(whole))
        spans = [Span(first_piece)]
        for answer, piece in zip(answers, pieces, strict=True):
            if not piece.startswith(self.end_of_turn_text):
                raise ValueError(rewritten(whole))
            next_opening = piece[len(self.end_of_turn_text) :]
            spans += [Span(answer), Span(self.end_of_turn_text), Span(next_opening)]
        if "".join(span.text for span in spans) != whole:
            raise ValueError(rewritten(whole))
        return tuple(spans)

    def refuse_control_tokens(self, record: Preference) -> None:
        """Raise RecordError for a special token of this tokenizer in a text that is trained on.

        `mmrm.data.preference.validate` knows a fixed list only, and so do benchmarks, so that all judges see the same rows.
        """
        for fault in forged(record, self.control_tokens):
            raise RecordError(f"{record.identity}: {fault}")

    def encode_conversations(
        self,
        images: Sequence[EncodedImage],
        conversations: Sequence[Sequence[Message]],
        read: StoredRead | None,
        record: str,
        *,
        with_loss: int = 0,
    ) -> Group:
        """Decode the images of `record`, render conversations about them, and encode them as one group.

        The last turns of the first `with_loss` conversations carry language-model loss. Raises RecordError as `decode`,
        `render` and `encode` do.
        """
        last = self._last  # once: a server encodes in several threads
        if tuple(images) != last[0]:
            pictures = []
            for image in images:
                stop_if_abandoned()
                pictures.append(decode(image, record))
            self._last = last = (tuple(images), self._patches(pictures))
        rendered = []
        for index, conversation in enumerate(conversations):
            stop_if_abandoned()
            rendered.append(self.render(conversation, loss=index < with_loss))
        return self._encode(last[1], rendered, read)

    def encode(
        self,
        images: Sequence[Image],
        conversations: Sequence[Sequence[Span]],
        read: StoredRead | None,
    ) -> Group:
        """Tokenise conversations about the same images, and split them where they begin to differ.

        Every conversation is tokenised whole, so its tokens are the stock model's. The prompt is the longest common
        prefix of tokens that ends before any token that is read or carries loss and leaves each conversation one token or more.

        Raises RecordError: an image without a place or a place without an image; conversations that differ before
        their last image, or from the first token on; an empty response where `read` needs its tokens.
        """
        return self._encode(self._patches(images), conversations, read)

    def _patches(self, images: Sequence[Image]) -> Patches:
        """Return the patches of `images`, one after another, and the grid of each."""
        if not images:
            return None, ()
        return self.vision.read(
            self.image_processor(images=list(images), return_tensors="pt"), self.vision
        )

    def _encode(
        self, patches: Patches, conversations: Sequence[Sequence[Span]], read: StoredRead | None
    ) -> Group:
        pixels, grids = patches
        pads = [
            frames * rows * columns // self.vision.merge_size**2 for frames, rows, columns in grids
        ]
        whole = []
        for conversation in conversations:
            stop_if_abandoned()
            whole.append(self._tokenise(conversation, pads, read))
        cut = self._boundary(whole)
        rest = (
            Continuation(
                c.ids[cut:], *(tuple(i - cut for i in own) for own in (c.read, c.loss_tokens))
            )
            for c in whole
        )
        return Group(whole[0].ids[:cut], tuple(rest), pixels, grids)

    def pack(self, groups: Sequence[Group]) -> PackedBatch:
        """Lay groups out in one row; see `mmrm.models.packing.groups.pack`."""
        return pack(groups, self.vision)

    def _tokenise(
        self, conversation: Sequence[Span], pads: Sequence[int], read: StoredRead | None
    ) -> Continuation:
        """Return a whole conversation, with as many image tokens for each image as `pads` says, between marks."""
        whole = "".join(span.text for span in conversation)
        if read == "last_token":  # the template's newline, which `render` drops
            closed = _template(self.tokenizer, ANSWERED, False)
            whole += closed[len(closed.rstrip("\n")) :]
        found = self.tokenizer(whole, add_special_tokens=False, return_offsets_mapping=True)
        places = found["input_ids"].count(self.vision.image)
        if places != len(pads):
            raise RecordError(
                f"{len(pads)} images but {places} places for an image in the conversation; they must be equal"
            )
        counts = iter(pads)
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        for token, offset in zip(found["input_ids"], found["offset_mapping"], strict=True):
            new = [token] * next(counts) if token == self.vision.image else [token]
            if token == self.vision.image and not self.writes_marks:
                new = self.vision.marked(new)
            ids += new
            offsets += [offset] * len(new)
        borders = pairwise(accumulate((len(span.text) for span in conversation), initial=0))
        ranges = list(zip(conversation, borders, strict=True))
        loss_tokens = _covering(offsets, [place for span, place in ranges if span.loss])
        response = [place for span, place in ranges if span.response]
        return Continuation(tuple(ids), _reads(offsets, response, read), loss_tokens)

    def _boundary(self, conversations: Sequence[Continuation]) -> int:
        limit = min(min([len(c.ids) - 1, *c.read, *c.loss_tokens]) for c in conversations)
        first = conversations[0].ids
        shared = 0
        while shared < limit and all(c.ids[shared] == first[shared] for c in conversations):
            shared += 1
        if any(self.vision.image in c.ids[shared:] for c in conversations):
            raise RecordError(
                "the conversations of a group differ before their last image. A group is one prompt with all its images "
                "and several continuations: encode conversations about different prompts as groups of their own."
            )
        if not shared:
            raise RecordError(
                "the conversations of a group share no first token, or it carries loss; a prompt needs a token"
            )
        return shared


def _covering(
    offsets: Sequence[tuple[int, int]], ranges: Sequence[tuple[int, int]]
) -> tuple[int, ...]:
    """Return the tokens that overlap one of `ranges`."""
    return tuple(
        i
        for i, (start, end) in enumerate(offsets)
        if any(start < range_end and end > range_start for range_start, range_end in ranges)
    )


def _reads(
    offsets: Sequence[tuple[int, int]], ranges: Sequence[tuple[int, int]], read: StoredRead | None
) -> tuple[int, ...]:
    """Return the read positions; `ranges` are the response's places in the text."""
    if read is None:
        return ()
    if not ranges:
        raise ValueError(
            f"read: {read} needs a response, but no span of the conversation is marked as one"
        )
    if read == "end_of_turn":
        after = [i for i, (start, _) in enumerate(offsets) if start >= ranges[-1][1]]
        if not after:
            raise ValueError(
                "read: end_of_turn needs a token after the response, but the conversation ends with it"
            )
        return (after[0],)
    if read == "last_token":
        return (len(offsets) - 1,)
    own = _covering(offsets, ranges)
    if not own:
        raise RecordError(f"the response is empty, but read: {read} reads its own tokens")
    return own if read == "mean" else own[-1:]
