"""From messages and images to a group of tokens: rendering, tokenising, and finding what continuations share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from data.errors import RecordError, UserError
from data.images import decode
from data.preference import (
    EncodedImage,
    Message,
    Preference,
    control_token,
    forged,
    placeholders,
    text,
    texts,
)
from data.storage.files import read_json, write_json
from data.video import ADVICE, TOKEN
from models.config import BackboneConfig, StoredRead
from models.families.table import family_of
from models.packing.groups import Continuation, Group, PackedBatch, pack

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
    opened, closed = _template(tokenizer, ANSWERED[:1], True), _template(tokenizer, ANSWERED, False)
    begin, ending = (
        opened[len(_template(tokenizer, ANSWERED[:1], False)) :],
        closed[len(opened) + 1 :],
    )
    first, last = (
        tokenizer(part, add_special_tokens=False)["input_ids"] for part in (begin.rstrip(), ending)
    )
    if not last:
        raise UserError(
            "the chat template writes no token after an assistant's answer; required is one: scores are read there, and answers "
            "end with it. Take tokenizer files whose template ends each turn with a token of its own."
        )
    return {"begin": first, "end": last[0]}


def _template(tokenizer: Any, turns: Sequence[Any], open_turn: bool) -> str:
    text: str = tokenizer.apply_chat_template(
        list(turns), tokenize=False, add_generation_prompt=open_turn
    )
    return text


def _require_prefix(beginning: str, whole: str) -> None:
    if not whole.startswith(beginning):
        raise ValueError(
            "the chat template rewrites earlier turns or the assistant's text (it renders a conversation differently "
            f"once a turn is added): {whole[:200]!r} does not begin with {beginning[-200:]!r}. Use the backbone's own template."
        )


class Encoder:
    """Turns images and conversations into groups; holds a tokenizer and an image processor and no weights."""

    def __init__(
        self, tokenizer: Any, image_processor: Any, config: BackboneConfig, model_config: Any
    ) -> None:
        """Take the backbone's processor and its configuration: `models.backbone.load_encoder`.

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

        The last assistant turn is the response; the text ends with that turn's end-of-turn token (a template's newline
        after it is dropped). `loss` marks the response and its end-of-turn token for language-model loss. A conversation
        that ends with a user turn is rendered up to the place where the assistant begins to write. The recipe's system
        prompt is used where the record has no system turn; None leaves that to the template.

        Raises RecordError where a turn's text, its parts joined as the template joins them, contains a vision token;
        ValueError where the template rewrites earlier turns.
        """
        turns = list(messages)
        for turn in turns:
            content = "".join(texts([turn]))
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
        if self.config.system_prompt is not None and turns[0]["role"] != "system":
            turns.insert(0, text("system", self.config.system_prompt))
        last = len(turns) - 1
        spans: list[Span] = []
        done = ""
        for i, turn in enumerate(turns):
            if turn["role"] != "assistant":
                continue
            opened = _template(self.tokenizer, turns[:i], True)
            closed = _template(self.tokenizer, turns[: i + 1], False)
            content = "".join(texts([turn]))
            _require_prefix(done, opened)
            _require_prefix(opened + content, closed)
            token = closed[len(opened + content) :].rstrip("\n")
            spans += [
                Span(opened[len(done) :]),
                Span(content, loss and i == last, i == last),
                Span(token, loss and i == last),
            ]
            done = opened + content + token
        if turns[last]["role"] != "assistant":
            opened = _template(self.tokenizer, turns, True)
            _require_prefix(done, opened)
            spans.append(Span(opened[len(done) :]))
        return tuple(spans)

    def refuse_control_tokens(self, record: Preference) -> None:
        """Raise RecordError for a special token of this tokenizer in a text that is trained on.

        `data.preference.validate` knows a fixed list only, and so do benchmarks, so that all judges see the same rows.
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
            self._last = last = (
                tuple(images),
                self._patches([decode(image, record) for image in images]),
            )
        rendered = [self.render(one, loss=i < with_loss) for i, one in enumerate(conversations)]
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
        whole = [self._tokenise(conversation, pads, read) for conversation in conversations]
        cut = self._boundary(whole)
        rest = (
            Continuation(
                c.ids[cut:], *(tuple(i - cut for i in own) for own in (c.read, c.loss_tokens))
            )
            for c in whole
        )
        return Group(whole[0].ids[:cut], tuple(rest), pixels, grids)

    def pack(self, groups: Sequence[Group]) -> PackedBatch:
        """Lay groups out in one row; see `models.packing.groups.pack`."""
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
