"""The encoder, which turns conversations with images into a tree of tokens.

`Encoder` renders conversations with the backbone's chat template, tokenises each as a whole, and
makes one tree of them, in which every common beginning stands once. It holds a tokenizer and an
image processor and no weights, so loader workers can use it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmrm.data.encoded_video import Video
from mmrm.data.errors import RecordError, UserError
from mmrm.data.images import PatchTokens
from mmrm.data.preference import (
    EncodedImage,
    Message,
    Part,
    Preference,
    Response,
    control_token,
    control_token_faults,
    image_parts,
    num_image_parts,
    num_video_parts,
    text,
    texts,
)
from mmrm.data.storage.files import read_json_object, write_json
from mmrm.data.video import VIDEO_PART_ADVICE, VIDEO_TOKEN
from mmrm.models.cancellation import stop_if_abandoned
from mmrm.models.config import BackboneConfig, StoredRead
from mmrm.models.families.image_rules import ImageLayout
from mmrm.models.families.registry import FAMILIES, family_of
from mmrm.models.image_patches import ImagePatches, StockPatches, TablePatches
from mmrm.models.packing.packed_batch import PackedBatch, pack
from mmrm.models.packing.positions import mrope_of_text
from mmrm.models.packing.segments import (
    ImagePlace,
    ProcessedImage,
    SegmentTree,
    TokenisedConversation,
    prefix_tree,
)
from mmrm.models.patch_cache import PatchCache
from mmrm.models.portable.conversations import text_of_image, with_written_images
from mmrm.models.portable.turns import (
    ENDED_BY_TEMPLATE,
    TurnRules,
    apply_template,
    trimmed_sides,
)
from mmrm.models.video_patches import FrameCache, ProcessedVideo, VideoCache

if TYPE_CHECKING:
    from PIL.Image import Image

CharRange = tuple[int, int]
"""Start and end of a part of a text, in characters."""

ANSWERED = (text("user", "-"), text("assistant", "-"))
"""A conversation that shows what the chat template writes around an answer."""
WITH_IMAGE: tuple[Message, ...] = (
    {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "-"}]},
)
"""A conversation that shows what the chat template writes for an image."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A whole conversation, as it is given to the encoder.

    Images and videos are each in the order of their places in the turns. Those of a response are
    the last.
    """

    messages: Sequence[Message]
    """The turns. If the last is the assistant's, it is the response."""
    images: Sequence[EncodedImage] = ()
    loss: bool = False
    """The response and its end-of-turn token carry language-model loss."""
    videos: Sequence[Video] = ()
    opening: str = ""
    """The given beginning of the assistant's answer, which the model continues. The last turn is
    then the user's."""

    @classmethod
    def answered(
        cls,
        prompt: Sequence[Message],
        images: Sequence[EncodedImage],
        *responses: Response,
        videos: Sequence[Video] = (),
    ) -> Conversation:
        """Return a prompt that is followed by a response, or by several as successive turns.

        Args:
            prompt: The turns of the prompt.
            images: The images of the prompt.
            responses: The responses, with their own images and videos.
            videos: The videos of the prompt.
        """
        turns = list(prompt)
        all_images = list(images)
        all_videos = list(videos)
        for response in responses:
            turns.append(response.turn)
            all_images += response.images
            all_videos += response.videos
        return cls(turns, all_images, videos=all_videos)


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of a conversation as the chat template renders it, with one token for each image."""

    text: str
    loss: bool = False
    """Its tokens carry language-model loss."""
    response: bool = False
    """It is a response whose tokens a head may read."""


@dataclass(frozen=True, slots=True)
class SpansOfImages:
    """A rendered conversation in which the images of its videos stand in place of the videos."""

    spans: tuple[Span, ...]
    images: tuple[ProcessedImage, ...]
    """All images, in the order of their places in the text."""
    video_ranges: tuple[CharRange, ...]
    """Where the videos are, with their marks and times, in characters of the joined spans."""


def assistant_turn(tokenizer: Any, rules: TurnRules) -> dict[str, Any]:
    """Return the tokens around an assistant's turn, as they are saved in config.json.

    `begin` is the list of ids that begin the turn, and `end` the id that ends it. If the rules of
    the family's template differ from those of other families, the two rules are added, under their
    names in `TurnRules`.

    Args:
        tokenizer: The tokenizer, with its chat template.
        rules: The rules of the family's template.

    Raises:
        UserError: Nothing is written after an answer, no single token ends it, or the template
            writes it behind another text than the one that a generated answer follows.
    """
    user_turn = ANSWERED[:1]
    before_opening = apply_template(tokenizer, user_turn, rules, open_turn=False)
    opened = apply_template(tokenizer, user_turn, rules, open_turn=True)
    begin = opened[len(before_opening) :].rstrip()
    begin_ids = tokenizer(begin, add_special_tokens=False)["input_ids"]
    end = _written_after_answer(tokenizer, rules)
    end_ids = tokenizer(end, add_special_tokens=False)["input_ids"]
    if not end_ids:
        raise UserError(
            "The chat template writes no token after an assistant's answer. Such a token is "
            "required, because scores are read there and answers end with it. Use tokenizer files "
            "whose template ends each turn with a token of its own."
        )
    turn = {"begin": begin_ids, "end": end_ids[0]}
    if rules == ENDED_BY_TEMPLATE:
        return turn
    if rules.added_end and len(end_ids) > 1:
        raise UserError(
            f"After an assistant's answer comes {end!r}, which is {len(end_ids)} tokens of this "
            f"tokenizer. The backbone's family ends an answer with the one token "
            f"{rules.added_end!r}. Use the tokenizer files of a model of this family, with their "
            "own chat template."
        )
    return turn | {"added_end": rules.added_end, "text_roles": list(rules.text_roles)}


def _written_after_answer(tokenizer: Any, rules: TurnRules) -> str:
    """Return the text that comes after an assistant's answer.

    Raises: UserError if the template writes the answer behind another text than the one that a
    generated answer follows.
    """
    opened = apply_template(tokenizer, ANSWERED[:1], rules, open_turn=True)
    closed = apply_template(tokenizer, ANSWERED, rules, open_turn=False)
    answered = opened + joined_text(ANSWERED[1])
    if not closed.startswith(answered):
        raise UserError(
            f"The chat template ends a conversation with {closed[-80:]!r}, but the model begins to "
            f"write an answer behind {opened[-80:]!r}. Both have to be the same up to the answer, "
            "because tokens are scored as they are generated. Templates differ here that write "
            "thoughts or white space in front of a given answer. Use a template that writes given "
            "answers unchanged behind its generation prompt."
        )
    return closed[len(answered) :]


def joined_text(turn: Message) -> str:
    """Return the text of a turn: its text parts, joined as chat templates join them."""
    return "".join(texts([turn]))


def rewriting_template_message(rendered: str) -> str:
    """Return the error message for a chat template that changes the texts of a conversation.

    `rendered` is the conversation as the template renders it.
    """
    return (
        "The chat template rewrites earlier turns or the assistant's text: it renders a "
        "conversation differently once a turn is added. The tokens of the response can then not be "
        f"told from others. The conversation begins with {rendered[:200]!r}. Use the backbone's "
        "own template."
    )


def rewritten_answer_message(answer: str) -> str:
    """Return the error message for an answer that the chat template changes, and others not."""
    return (
        f"the chat template rewrites the assistant's text {answer[:200]!r}. The text may contain a "
        "mark that the template reads, such as the end of a block of thoughts. Remove it from the "
        "text, or leave the record out."
    )


class Encoder:
    """Turns conversations with images into trees of tokens."""

    def __init__(
        self, tokenizer: Any, image_processor: Any, config: BackboneConfig, model_config: Any
    ) -> None:
        """Create an encoder from parts; `mmrm.models.backbone.load_encoder` loads one.

        Args:
            tokenizer: The backbone's tokenizer.
            image_processor: The backbone's image processor.
            config: The recipe's `backbone` section.
            model_config: The backbone's configuration in transformers.

        Raises:
            UserError: The image processor makes other patches than the vision tower takes, the
                chat template does not mark images or ends of answers as the encoder needs it, or
                the system prompt contains a special token.
        """
        self.tokenizer = tokenizer
        self.image_processor = image_processor
        self.config = config
        family = family_of(model_config.model_type)
        vision_config = model_config.vision_config
        mark_ids: list[int | None] = []
        for mark in family.marks:
            mark_ids.append(tokenizer.convert_tokens_to_ids(mark) if mark else None)
        self.vision = family.vision_tokens(vision_config, mark_ids)
        vocabulary = tokenizer.get_vocab()
        self.vision_text = tuple(token for token in family.vision_text if token in vocabulary)
        self.vision_ids: list[int] = tokenizer.convert_tokens_to_ids(list(self.vision_text))
        self.turn_rules = family.turn_rules
        self.end_of_turn: int = assistant_turn(tokenizer, self.turn_rules)["end"]
        self.end_of_turn_text = _written_after_answer(tokenizer, self.turn_rules).rstrip("\n")
        family.images.refuse(image_processor, vision_config)
        self.image_tokens = family.images.tokens(vision_config, config)

        rendered_image = apply_template(tokenizer, WITH_IMAGE, self.turn_rules, open_turn=False)
        start_mark, image_mark, _ = family.marks
        num_image_marks = rendered_image.count(image_mark)
        if num_image_marks != 1:
            raise UserError(
                f"The chat template writes {num_image_marks} {image_mark} for an image. "
                "Exactly one is required, because the encoder repeats it for each token of the "
                f"image. Use the tokenizer files of a {family.title} model that was trained to "
                "chat."
            )
        self.template_writes_start_mark = start_mark is not None and start_mark in rendered_image
        self.image_text = text_of_image(tokenizer)
        self.trimmed_sides = trimmed_sides(tokenizer, self.turn_rules)
        self.patches = PatchCache(self._image_patches(family.images, vision_config), self.vision)
        self.family_title = family.title
        self.image_mark = image_mark
        self.marked_image = "".join(mark for mark in family.marks if mark is not None)
        self.video_text = self.marked_image.replace(image_mark, VIDEO_TOKEN)
        self.frames = FrameCache(config)
        self.videos: VideoCache | None = None
        if family.videos is not None:
            self.videos = VideoCache(
                image_processor, self.vision, vision_config, config, family.videos
            )
        self.control_tokens = tuple(
            token.content for token in tokenizer.added_tokens_decoder.values() if token.special
        )
        special_token = control_token(config.system_prompt or "", self.control_tokens)
        if special_token:
            raise UserError(
                f"backbone.system_prompt contains {special_token!r}, which the tokenizer reads as "
                "a special token and not as text. Remove it from the system prompt."
            )

    def _image_patches(self, layout: ImageLayout, vision_config: Any) -> ImagePatches:
        """Return the object that makes the patches of images, by tables where it is possible."""
        processor = self.image_processor
        stock = StockPatches(processor, self.vision)
        patch = layout.planar_patch(vision_config)
        if patch is None or not processor.do_resize:
            return stock
        # An encoder may be given a processor with other limits than those of the recipe.
        limits = self.config.model_copy(update=layout.limits(processor.to_dict()))
        sizes = layout.tokens(vision_config, limits)
        assert isinstance(sizes, PatchTokens), "Tiles have no planar patches."
        return TablePatches(stock, patch, sizes)

    def count_images_as_text(self) -> None:
        """Give the tokens of images positions like those of text, instead of rows and columns.

        Some reward models on Qwen2-VL and Qwen2.5-VL were trained so: see `mrope_of_text`.
        """
        self.vision = replace(self.vision, positions=mrope_of_text)

    def save_pretrained(self, folder: str | Path, **kwargs: Any) -> None:
        """Write tokenizer and image processor into a checkpoint's folder, in transformers' format.

        If the folder holds a reward model with its code, preprocessor_config.json also names the
        class of its processor, so that `AutoProcessor` finds it.

        Args:
            folder: The folder, which the weights may have been written into already.
            kwargs: Arguments of `save_pretrained` of the tokenizer and of the image processor.
        """
        self.tokenizer.save_pretrained(folder, **kwargs)
        self.image_processor.save_pretrained(folder, **kwargs)
        if Path(folder, "processor.py").is_file():
            path = Path(folder, "preprocessor_config.json")
            settings = read_json_object(path)
            settings["auto_map"] = {"AutoProcessor": "processor.RewardProcessor"}
            write_json(path, settings)

    def render(
        self, messages: Sequence[Message], *, loss: bool = False, num_responses: int = 1
    ) -> tuple[Span, ...]:
        """Return a conversation as the tokenizer's own chat template renders it, in spans.

        If the last turn is the assistant's, it is the response. The text then ends with the token
        that ends this turn, without the newline that some templates write after it. If the family's
        template writes no such token, it is added (`TurnRules.added_end`). If the last
        turn is the user's, the text ends where the assistant would begin to write. A conversation
        without a system turn gets the recipe's system prompt, if there is one.

        The template is called at most three times, however many turns there are, so the time is
        linear in the length of the conversation. It is called once more if it rewrites a text.

        Args:
            messages: The turns of the conversation.
            loss: The response and its end-of-turn token carry language-model loss.
            num_responses: Number of last turns of the assistant that are responses.

        Raises:
            RecordError: A turn's text (its parts joined as the template joins them) contains a
                vision token, or the template rewrites a text of the assistant, but not others.
            ValueError: The template rewrites every text of the assistant, or earlier turns.
        """
        for turn in messages:
            self._refuse_vision_tokens(turn)
        turns = [self._with_written_images(turn) for turn in messages]
        if self.config.system_prompt is not None and turns[0]["role"] != "system":
            turns.insert(0, text("system", self.config.system_prompt))
        if turns[-1]["role"] != "assistant":
            return _with_last_responses(self._spans_before_response(turns), 0)

        spans_before = self._spans_before_response(turns[:-1])
        text_before = "".join(span.text for span in spans_before)
        response = self._answer_text(turns[-1])
        rendered = self._apply_template(turns, open_turn=False)
        if not rendered.startswith(text_before + response):
            other_answer = ANSWERED[1]
            turns_with_other = [*turns[:-1], other_answer]
            with_other_answer = self._apply_template(turns_with_other, open_turn=False)
            if with_other_answer.startswith(text_before + joined_text(other_answer)):
                raise RecordError(rewritten_answer_message(response))
            raise ValueError(rewriting_template_message(rendered))
        end_of_turn = rendered[len(text_before) + len(response) :].rstrip("\n")
        return (
            *_with_last_responses(spans_before, num_responses - 1),
            Span(response, loss, response=True),
            Span(end_of_turn, loss),
        )

    def _answer_text(self, turn: Message) -> str:
        """Return the text of the assistant's turn as the template writes it.

        Some templates remove the white space around it.
        """
        return self.trimmed_sides.trim(joined_text(turn))

    def _apply_template(self, turns: Sequence[Message], open_turn: bool) -> str:
        """Return turns as the chat template renders them; see `apply_template`."""
        return apply_template(self.tokenizer, turns, self.turn_rules, open_turn=open_turn)

    def _with_written_images(self, turn: Message) -> Message:
        """Return a turn of the assistant with images as one text, in which these are written out.

        Some chat templates leave out an image in a turn of the assistant. The text is the one that
        the template writes for an image of the user. The same is done with videos. Other turns are
        returned unchanged.
        """
        has_media = num_image_parts([turn]) > 0 or num_video_parts([turn]) > 0
        if turn["role"] != "assistant" or not has_media:
            return turn
        parts: list[Part] = []
        for part in turn["content"]:
            if part["type"] == "video":
                parts.append({"type": "text", "text": self.video_text})
            else:
                parts.append(part)
        return text("assistant", with_written_images(parts, self.image_text))

    def _refuse_vision_tokens(self, turn: Message) -> None:
        """Raise RecordError for a vision token in a text."""
        content = joined_text(turn)
        vision_tokens = [token for token in self.vision_text if token in content]
        if vision_tokens:
            message = (
                f"the {turn['role']}'s text contains {', '.join(vision_tokens)}. The backbone "
                "would take it for an image: write the place of an image as an image part, and "
                "remove these tokens from the text."
            )
            if VIDEO_TOKEN in vision_tokens:
                message = f"{message} {VIDEO_PART_ADVICE}"
            raise RecordError(message)

    def _spans_before_response(self, turns: Sequence[Message]) -> tuple[Span, ...]:
        """Return the rendered `turns`, which end where the assistant begins to write its response.

        The text and the end-of-turn token of each assistant turn among `turns` are two spans, and
        the text is marked as a response.

        To find these texts in the rendered conversation, it is rendered a second time with a marker
        in place of each of them. The text between the markers is what the template itself writes.
        (To render every beginning of the conversation would take quadratic time.)

        Raises:
            RecordError: The template changes the text of an assistant turn, but not of others.
            ValueError: The template changes every text of an assistant turn.
        """
        rendered = self._apply_template(turns, open_turn=True)
        answers = [self._answer_text(turn) for turn in turns if turn["role"] == "assistant"]
        if not answers:
            return (Span(rendered),)

        # A hash of the conversation cannot occur in it.
        marker = hashlib.sha256(rendered.encode(errors="surrogatepass")).hexdigest()
        marked_turns = [
            text("assistant", marker) if turn["role"] == "assistant" else turn for turn in turns
        ]
        marked = self._apply_template(marked_turns, open_turn=True)
        first_piece, *pieces = marked.split(marker)
        if len(pieces) != len(answers):
            raise ValueError(rewriting_template_message(rendered))
        spans = [Span(first_piece)]
        for answer, piece in zip(answers, pieces, strict=True):
            if not piece.startswith(self.end_of_turn_text):
                raise ValueError(rewriting_template_message(rendered))
            next_opening = piece[len(self.end_of_turn_text) :]
            answer_span = Span(answer, response=True)
            spans += [answer_span, Span(self.end_of_turn_text), Span(next_opening)]
        if "".join(span.text for span in spans) != rendered:
            # The template does not rewrite the markers, which stood in the same places.
            longest = max(answers, key=len)
            raise RecordError(rewritten_answer_message(longest))
        return tuple(spans)

    def refuse_control_tokens(self, record: Preference) -> None:
        """Raise RecordError if a text of the record contains a special token of the tokenizer.

        Records were checked when they were read, but only for a fixed list of tokens, so that
        models with different tokenizers see the same records.
        """
        first_fault = next(control_token_faults(record, self.control_tokens), None)
        if first_fault is not None:
            raise RecordError(f"{record.identity}: {first_fault}")

    def encode_conversations(
        self, conversations: Sequence[Conversation], read: StoredRead | None, record: str
    ) -> SegmentTree:
        """Return conversations as one tree, with an output for each of them, in order.

        What all of them have in common at their beginning is the root of the tree. Further common
        beginnings are shared where it pays (see `mmrm.models.packing.segments.prefix_tree`). Every
        conversation is tokenised as a whole, so its tokens are those of the stock model.

        Args:
            conversations: The conversations, such as a prompt with each of its responses.
            read: The tokens from which scores are computed, as in `head.read` of a recipe; None if
                no scores are computed.
            record: Identity of the record, for messages.

        Raises:
            RecordError: An image cannot be decoded, a conversation cannot be rendered (see
                `render`), the numbers of images and of places for them differ, or a response is
                empty and `read` needs its tokens.
        """
        conversations = self._with_frames(conversations, record)
        images = [image for conversation in conversations for image in conversation.images]
        processed = self.patches.of_encoded(images, record)
        processed_videos = self._processed_videos(conversations, record)
        tokenised = []
        for conversation in conversations:
            stop_if_abandoned()
            spans = self.render(conversation.messages, loss=conversation.loss)
            if conversation.opening:
                self._refuse_vision_tokens(text("assistant", conversation.opening))
                spans = (*spans, Span(conversation.opening))
            images_of_conversation = [processed[image] for image in conversation.images]
            videos = [processed_videos[video] for video in conversation.videos]
            tokenised += self._tokenise(spans, images_of_conversation, videos, read)
        return prefix_tree(tokenised)

    def encode_joint(
        self, conversation: Conversation, num_responses: int, read: StoredRead, record: str
    ) -> SegmentTree:
        """Return one conversation that ends with several responses, each of which is scored.

        The responses are the last turns of the conversation, one turn of the assistant after the
        other. Each response sees the ones before it, so that their order matters, and all of them
        cost little more than one.

        Args:
            conversation: A prompt with its responses. Loss is only on the last of them.
            num_responses: Number of responses.
            read: The tokens of a response from which its score is computed.
            record: Identity of the record, for messages.

        Returns:
            A tree with one segment, and an output for each response, in order.

        Raises:
            ValueError: `read` is "last_token", which only the last response has, or the
                conversation has fewer responses.
            RecordError: As in `encode_conversations`.
        """
        if read == "last_token":
            raise ValueError(
                "read: last_token is the end of a whole conversation, so only the last of several "
                "responses has it. Read another token, such as end_of_turn."
            )
        [conversation] = self._with_frames([conversation], record)
        processed = self.patches.of_encoded(conversation.images, record)
        spans = self.render(
            conversation.messages, loss=conversation.loss, num_responses=num_responses
        )
        images = [processed[image] for image in conversation.images]
        processed_videos = self._processed_videos([conversation], record)
        videos = [processed_videos[video] for video in conversation.videos]
        tokenised = self._tokenise(spans, images, videos, read)
        if len(tokenised) != num_responses:
            raise ValueError(
                f"The conversation has {len(tokenised)} turns of the assistant, and {num_responses} "
                "responses are to be read. Give the responses as its last turns."
            )
        return prefix_tree(tokenised)

    def encode_until_token(
        self, conversations: Sequence[Conversation], token: int, record: str
    ) -> SegmentTree:
        """Return conversations as one tree, in which each score is read at a special token.

        Such a token is part of the question, and marks the place where a reward model that was
        trained with it states its score. A conversation ends with it here: what follows the token
        cannot change its hidden state.

        Args:
            conversations: The conversations, each with the token once.
            token: Id of the special token.
            record: Identity of the record, for messages.

        Raises:
            RecordError: As in `encode_conversations`, or a conversation has the token more than
                once, because a text of the record contains it.
        """
        conversations = self._with_frames(conversations, record)
        images = [image for conversation in conversations for image in conversation.images]
        processed = self.patches.of_encoded(images, record)
        processed_videos = self._processed_videos(conversations, record)
        tokenised = []
        for conversation in conversations:
            stop_if_abandoned()
            spans = self.render(conversation.messages)
            images_of_conversation = [processed[image] for image in conversation.images]
            videos = [processed_videos[video] for video in conversation.videos]
            [whole] = self._tokenise(spans, images_of_conversation, videos, None)
            if whole.ids.count(token) != 1:
                raise RecordError(
                    f"{record}: the text contains {self.tokenizer.convert_ids_to_tokens(token)!r}, "
                    "at which the reward model states its score. Remove it from the text."
                )
            index = whole.ids.index(token)
            tokenised.append(replace(whole, ids=whole.ids[: index + 1], reads=(index,)))
        return prefix_tree(tokenised)

    def encode(
        self,
        images: Sequence[Image],
        conversations: Sequence[Sequence[Span]],
        read: StoredRead | None,
    ) -> SegmentTree:
        """Return rendered conversations about the same decoded images as one tree.

        It is `encode_conversations` for images that are decoded already, and for conversations that
        `render` has returned. Every conversation has all of the images.

        Args:
            images: Decoded images, in the order of their places in the conversations.
            conversations: Rendered conversations.
            read: The tokens from which scores are computed, as in `head.read` of a recipe; None if
                no scores are computed.

        Raises:
            RecordError: As in `encode_conversations`.
        """
        processed = [self.patches.of_decoded(image) for image in images]
        tokenised: list[TokenisedConversation] = []
        for spans in conversations:
            tokenised += self._tokenise(spans, processed, (), read)
        return prefix_tree(tokenised)

    def pack(self, trees: Sequence[SegmentTree]) -> PackedBatch:
        """Return `trees` laid out in one row; see `mmrm.models.packing.packed_batch.pack`."""
        return pack(trees, self.vision)

    def _processed_videos(
        self, conversations: Sequence[Conversation], record: str
    ) -> dict[Video, ProcessedVideo]:
        """Return the videos of some conversations, processed.

        Raises: RecordError if a video cannot be processed, or if the backbone takes images only.
        """
        videos = [video for conversation in conversations for video in conversation.videos]
        if not videos:
            return {}
        if self.videos is None:
            titles = [family.title for family in FAMILIES.values() if family.videos is not None]
            raise RecordError(
                f"{record}: the record has a video, and {self.family_title} has no tokens of "
                "videos here. Set backbone.videos.form=frames, which shows each sampled frame as "
                f"an image, or use a backbone of {', '.join(titles)}."
            )
        return self.videos.of_encoded(videos, record)

    def _with_frames(
        self, conversations: Sequence[Conversation], record: str
    ) -> Sequence[Conversation]:
        """Return conversations with the frames of videos as images, if the recipe shows them so.

        Raises: RecordError if a video cannot be decoded.
        """
        videos = [video for conversation in conversations for video in conversation.videos]
        if not videos or self.config.videos.form != "frames":
            return conversations
        frames_by_video = self.frames.of_encoded(videos, record)
        return [_with_frames(conversation, frames_by_video) for conversation in conversations]

    def _with_videos_as_images(
        self,
        conversation: Sequence[Span],
        images: Sequence[ProcessedImage],
        videos: Sequence[ProcessedVideo],
    ) -> SpansOfImages:
        """Return a rendered conversation in which each video is replaced by its images.

        The tokens of a video are those of an image here, so that the vision tower runs once for
        both. The embeddings of these tokens are replaced, so their id changes no result. Times
        between them are text, and are tokenised together with the text around them.

        Args:
            conversation: Spans with one video token for each video.
            images: The images, in the order of their places.
            videos: The videos, in the order of their places.

        Raises:
            RecordError: There are more or fewer places for videos in the text than videos.
        """
        rendered = "".join(span.text for span in conversation)
        num_places = rendered.count(self.video_text)
        if num_places != len(videos):
            raise RecordError(
                f"{len(videos)} videos but {num_places} places for a video in the conversation. "
                "They must be equal: give one video for each place."
            )
        remaining_images = iter(images)
        remaining_videos = iter(videos)
        spans: list[Span] = []
        images_in_order: list[ProcessedImage] = []
        video_ranges: list[CharRange] = []
        length = 0  # characters of the spans so far
        for span in conversation:
            pieces: list[str] = []
            for index, text_between in enumerate(span.text.split(self.video_text)):
                if index > 0:  # there is a video before every piece but the first
                    video = next(remaining_videos)
                    images_in_order += video.images
                    written = "".join(label + self.marked_image for label in video.labels)
                    video_ranges.append((length, length + len(written)))
                    pieces.append(written)
                    length += len(written)
                # Where the text is tokenised, missing and superfluous images are refused.
                num_images = text_between.count(self.image_mark)
                images_in_order += islice(remaining_images, num_images)
                pieces.append(text_between)
                length += len(text_between)
            spans.append(replace(span, text="".join(pieces)))
        images_in_order += remaining_images
        return SpansOfImages(tuple(spans), tuple(images_in_order), tuple(video_ranges))

    def _tokenise(
        self,
        conversation: Sequence[Span],
        images: Sequence[ProcessedImage],
        videos: Sequence[ProcessedVideo],
        read: StoredRead | None,
    ) -> list[TokenisedConversation]:
        """Return the tokens of a whole conversation, once for each response that is read.

        The results differ in `reads` alone.

        Args:
            conversation: Spans with one image token for each image.
            images: The images. The one image token in the text is repeated as often as an image has
                tokens. Start and end marks are put around it if the template writes none.
            videos: The videos, each of which has one video token in the text.
            read: The tokens from which the score is computed; None if no score is.

        Raises:
            RecordError: There are more or fewer image tokens in the text than images, or the same
                of videos, or a response is empty and `read` needs its tokens.
        """
        with_images = SpansOfImages(tuple(conversation), tuple(images), ())
        if videos or any(VIDEO_TOKEN in span.text for span in conversation):
            with_images = self._with_videos_as_images(conversation, images, videos)
        conversation = with_images.spans
        images = with_images.images
        rendered = "".join(span.text for span in conversation)
        if read == "last_token":
            rendered += self._newline_after_turn()
        tokenised = self.tokenizer(rendered, add_special_tokens=False, return_offsets_mapping=True)
        num_places = tokenised["input_ids"].count(self.vision.image)
        if num_places != len(images):
            raise RecordError(
                f"{len(images)} images but {num_places} places for an image in the "
                "conversation. They must be equal: give one image for each place."
            )

        remaining_images = iter(images)
        ids: list[int] = []
        offsets: list[CharRange] = []
        places: list[ImagePlace] = []
        for token, offset in zip(tokenised["input_ids"], tokenised["offset_mapping"], strict=True):
            tokens = [token]
            if token == self.vision.image:
                image = next(remaining_images)
                tokens = [token] * image.num_tokens
                start_of_image = len(ids)
                if not self.template_writes_start_mark:
                    tokens = self.vision.with_marks(tokens)
                    start_of_image += tokens.index(token)
                places.append(ImagePlace(start_of_image, image))
            ids += tokens
            offsets += [offset] * len(tokens)

        loss_ranges: list[CharRange] = []
        response_ranges: list[CharRange] = []
        start = 0
        for span in conversation:
            end = start + len(span.text)
            if span.loss:
                loss_ranges.append((start, end))
            if span.response:
                response_ranges.append((start, end))
            start = end
        conversation_without_reads = TokenisedConversation(
            ids=tuple(ids),
            images=tuple(places),
            labels=_without_images(
                _overlapping(offsets, loss_ranges),
                places,
                _overlapping(offsets, with_images.video_ranges),
            ),
        )
        if read is None:
            return [conversation_without_reads]
        if not response_ranges:
            raise ValueError(
                f"read: {read} needs a response, but no span of the conversation is marked as one. "
                "Mark the span of the response with `response=True`."
            )
        tokenised_by_response = []
        for response_range in response_ranges:
            reads = _read_positions(offsets, response_range, read)
            tokenised_by_response.append(replace(conversation_without_reads, reads=reads))
        return tokenised_by_response

    def _newline_after_turn(self) -> str:
        """Return the newlines that the template writes after the token that ends a turn.

        Most templates write one. `render` drops it.
        """
        closed = self._apply_template(ANSWERED, open_turn=False)
        return closed[len(closed.rstrip("\n")) :]


def _with_frames(
    conversation: Conversation, frames_by_video: Mapping[Video, Sequence[bytes]]
) -> Conversation:
    """Return a conversation in which the frames of each video are images in its place.

    Args:
        conversation: The conversation.
        frames_by_video: The frames of each of its videos, as image files.
    """
    remaining_images = iter(conversation.images)
    remaining_videos = iter(conversation.videos)
    images: list[EncodedImage] = []
    messages: list[Message] = []
    for message in conversation.messages:
        parts: list[Part] = []
        for part in message["content"]:
            if part["type"] == "video":
                frames = frames_by_video[next(remaining_videos)]
                images += frames
                parts += image_parts(len(frames))
                continue
            if part["type"] == "image":
                # Where the text is tokenised, missing and superfluous images are refused.
                images += islice(remaining_images, 1)
            parts.append(part)
        messages.append({"role": message["role"], "content": parts})
    images += remaining_images
    return replace(conversation, messages=messages, images=images, videos=())


def _with_last_responses(spans: Sequence[Span], count: int) -> tuple[Span, ...]:
    """Return spans of which only the last `count` responses are marked as such."""
    responses = [index for index, span in enumerate(spans) if span.response]
    kept = responses[max(0, len(responses) - count) :]
    return tuple(
        replace(span, response=index in kept) if span.response else span
        for index, span in enumerate(spans)
    )


def _without_images(
    indices: Sequence[int], images: Sequence[ImagePlace], video_indices: Sequence[int]
) -> tuple[int, ...]:
    """Return those of the tokens at `indices` that are not tokens of an image or a video.

    A language model writes no image, so the tokens of an image in a response carry no loss. Nor do
    those of a video at `video_indices`, with its marks and times.
    """
    image_tokens = set(video_indices)
    for place in images:
        image_tokens.update(range(place.start, place.end))
    return tuple(index for index in indices if index not in image_tokens)


def _overlapping(offsets: Sequence[CharRange], ranges: Sequence[CharRange]) -> tuple[int, ...]:
    """Return the indices of the tokens that overlap one of the character ranges `ranges`.

    `offsets` is the character range of every token.
    """
    indices = []
    for index, (start, end) in enumerate(offsets):
        if any(start < range_end and end > range_start for range_start, range_end in ranges):
            indices.append(index)
    return tuple(indices)


def _read_positions(
    offsets: Sequence[CharRange], response_range: CharRange, read: StoredRead
) -> tuple[int, ...]:
    """Return the indices of the tokens whose mean hidden state gives the score of a response.

    Args:
        offsets: Character range of every token.
        response_range: Character range of the response.
        read: The tokens from which the score is computed.

    Raises:
        RecordError: The response is empty, and its own tokens are to be read.
        ValueError: No response is marked, or no token follows it.
    """
    if read == "end_of_turn":
        _, response_end = response_range
        for index, (start, _) in enumerate(offsets):
            if start >= response_end:
                return (index,)
        raise ValueError(
            "read: end_of_turn needs a token after the response, but the conversation ends with "
            "it. Render the conversation with the end of the assistant's turn."
        )
    if read == "last_token":
        return (len(offsets) - 1,)
    response_tokens = _overlapping(offsets, [response_range])
    if not response_tokens:
        raise RecordError(f"the response is empty, but read: {read} reads its own tokens")
    return response_tokens if read == "mean" else response_tokens[-1:]
