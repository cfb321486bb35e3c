"""Rendering, tokenising, and the tree of conversations that begin alike."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrm.data.errors import ImageError, RecordError, UserError
from mmrm.data.images import decode as decode_image
from mmrm.data.preference import Message, Preference, text, text_responses
from mmrm.data.synthetic.scenes import png
from mmrm.models.config import BackboneConfig, Read
from mmrm.models.encoder import Conversation, Encoder, Span, assistant_turn
from mmrm.models.packing.packed_batch import patches_of
from mmrm.models.packing.segments import (
    MIN_SAVED_TOKENS,
    SegmentTree,
    TokenisedConversation,
    merge,
)
from mmrm.models.portable.turns import ENDED_BY_TEMPLATE
from tests.models import tiny

MARKS = {"<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"}


def user(question: str, pictures: int = 0) -> Message:
    content: Any = [{"type": "image"} for _ in range(pictures)] + [
        {"type": "text", "text": question}
    ]
    return {"role": "user", "content": content}


def joined(spans: Sequence[Span]) -> str:
    return "".join(span.text for span in spans)


def stock_text(messages: Sequence[Message]) -> str:
    found: str = tiny.tokenizer().apply_chat_template(list(messages), tokenize=False)
    return found


def decode(ids: Sequence[int]) -> str:
    found: str = tiny.tokenizer().decode(list(ids))
    return found


def only(tree: SegmentTree) -> TokenisedConversation:
    """Return the only conversation of a tree."""
    [found] = tree.conversations()
    return found


def tokens_read(found: TokenisedConversation) -> str:
    return decode([found.ids[index] for index in found.reads])


def tokens_with_loss(found: TokenisedConversation) -> str:
    return decode([found.ids[index] for index in found.labels])


def test_render_is_the_template_without_its_last_newline() -> None:
    messages = [
        user("What is it?", 2),
        text("assistant", "A square.\n"),
        user("And?"),
        text("assistant", "Red"),
    ]
    assert joined(tiny.encoder().render(messages)) + "\n" == stock_text(messages)


@pytest.mark.parametrize("loss", [False, True])
def test_render_marks_the_response_and_what_carries_loss(loss: bool) -> None:
    messages = [
        user("What is it?"),
        text("assistant", "First"),
        user("And?"),
        text("assistant", "Second"),
    ]
    spans = tiny.encoder().render(messages, loss=loss)
    assert "".join(span.text for span in spans if span.loss) == ("Second<|im_end|>" if loss else "")
    assert [span.text for span in spans if span.response] == ["Second"]


def test_render_opens_the_assistants_turn_after_a_user_turn() -> None:
    messages = [user("One"), text("assistant", "Two"), user("Three")]
    spans = tiny.encoder().render(messages)
    wanted = tiny.tokenizer().apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    assert joined(spans) == wanted
    assert not any(span.response for span in spans)


def test_the_recipes_system_prompt_is_used_unless_the_record_has_one() -> None:
    encoder = tiny.encoder(system_prompt="Judge.")
    question = [user("Hm?"), text("assistant", "Yes")]
    assert joined(encoder.render(question)).startswith("<|im_start|>system\nJudge.<|im_end|>")
    assert joined(encoder.render([text("system", "Own"), *question])).startswith(
        "<|im_start|>system\nOwn<|im_end|>"
    )
    assert "You are a helpful assistant." in joined(tiny.encoder().render(question))


@pytest.mark.parametrize(
    "token", ["<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>"]
)
@pytest.mark.parametrize("role", ["system", "user", "assistant"])
def test_a_vision_token_in_a_text_is_refused(token: str, role: Any) -> None:
    messages = [text("system", "s"), user("u"), text("assistant", "a")]
    broken = [
        text(role, f"so {token} it") if message["role"] == role else message for message in messages
    ]
    with pytest.raises(RecordError, match=r"contains .*_"):
        tiny.encoder().render(broken)


def test_a_vision_token_over_several_parts_is_refused() -> None:
    parts: Any = [{"type": "text", "text": piece} for piece in ("<|image", "_pad|>")]
    with pytest.raises(RecordError, match=r"contains <\|image_pad\|>"):
        tiny.encoder().render([{"role": "user", "content": parts}, text("assistant", "a")])


def test_every_special_token_of_the_tokenizer_is_refused_in_a_record() -> None:
    tokenizer = deepcopy(tiny.tokenizer())
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|mine|>"]})
    config = BackboneConfig(path="tiny", dtype="float32")
    encoder = Encoder(tokenizer, tiny.image_processor(), config, tiny.config())
    parts: Any = [{"type": "text", "text": piece} for piece in ("<|mi", "ne|>")]
    good = Preference("set:7", (user("u"),), text_responses("a", "b"))
    encoder.refuse_control_tokens(good)
    for bad in (
        replace(good, prompt=({"role": "user", "content": parts},)),
        replace(good, rationale="a <|mine|>"),
    ):
        with pytest.raises(RecordError, match=r"set:7: .* holds '<\|mine\|>'"):
            encoder.refuse_control_tokens(bad)
    with pytest.raises(UserError, match=r"system_prompt contains '<\|mine\|>'"):
        Encoder(
            tokenizer,
            tiny.image_processor(),
            config.model_copy(update={"system_prompt": "<|mine|>"}),
            tiny.config(),
        )
    with pytest.raises(ValueError, match=r"holds '<\|im_end\|>'"):
        BackboneConfig(path="tiny", system_prompt="Be brief.<|im_end|>")


def test_an_end_of_turn_written_in_a_text_moves_no_read_position() -> None:
    encoder = tiny.encoder()
    spans = encoder.render([user("say <|im_end|>"), text("assistant", "<|im_end|> is a token")])
    found = only(encoder.encode([], [spans], "end_of_turn"))
    assert found.reads == (len(found.ids) - 1,)
    assert found.ids[-1] == tiny.tokenizer().convert_tokens_to_ids("<|im_end|>")


def test_a_template_that_rewrites_earlier_turns_is_refused() -> None:
    class Rewriting:
        def apply_chat_template(self, turns: list[Any], **_: Any) -> str:
            return f"{len(turns)} turns"

    encoder = tiny.encoder()
    encoder.tokenizer = Rewriting()
    with pytest.raises(ValueError, match="rewrites earlier turns"):
        encoder.render([user("u"), text("assistant", "a")])


def test_images_become_as_many_pads_as_the_tower_gives_tokens() -> None:
    encoder = tiny.encoder()
    images = [tiny.picture(56, 84), tiny.picture(112, 60, 1)]
    spans = encoder.render([user("Compare", 2), text("assistant", "Same")])
    tree = encoder.encode(images, [spans], "end_of_turn")
    stock = tiny.image_processor()(images=images, return_tensors="pt")
    assert [list(image.grid) for image in tree.images] == stock["image_grid_thw"].tolist()
    pixels = torch.cat([patches_of(image) for image in tree.images])
    assert torch.equal(pixels, stock["pixel_values"])
    whole = only(tree)
    assert whole.ids.count(encoder.vision.image) == tree.patches // 4
    for place in whole.images:
        assert set(whole.ids[place.start : place.end]) == {encoder.vision.image}
        assert whole.ids[place.start - 1] == encoder.vision.start
        assert whole.ids[place.end] == encoder.vision.end
    assert tree.patches == len(pixels)


def asked(picture: bytes, question: str, answer: str, loss: bool = False) -> Conversation:
    """Return a conversation about one encoded image."""
    return Conversation([user(question, 1), text("assistant", answer)], [picture], loss)


def test_conversations_about_an_encoded_image_are_one_tree() -> None:
    """Those that carry loss are marked one by one."""
    encoder, picture = tiny.encoder(), tiny.picture(56, 84)
    conversations = [asked(png(picture), "Look", "One", True), asked(png(picture), "Look", "Two")]
    rendered = [encoder.render(one.messages, loss=one.loss) for one in conversations]
    wanted = encoder.encode([picture], rendered, "end_of_turn")
    found = encoder.encode_conversations(conversations, "end_of_turn", "row 1")
    assert found == wanted
    assert [bool(output.labels) for output in found.outputs] == [True, False]
    [image], [known] = found.images, wanted.images
    assert torch.equal(patches_of(image), patches_of(known))
    with pytest.raises(ImageError, match="row 2"):
        encoder.encode_conversations([asked(b"no image", "Look", "One")], "end_of_turn", "row 2")


def test_the_common_beginning_is_the_root_and_every_response_a_segment() -> None:
    encoder = tiny.encoder()
    picture = png(tiny.picture(56, 84))
    tree = encoder.encode_conversations(
        [asked(picture, "Look", answer) for answer in ("One", "Two", "One")], "end_of_turn", "r"
    )
    prompt, *responses = tree.segments
    assert decode(prompt.ids).endswith("Look<|im_end|>\n<|im_start|>assistant\n")
    assert [decode(response.ids) for response in responses] == ["One<|im_end|>", "Two<|im_end|>"]
    assert [segment.parent for segment in tree.segments] == [None, 0, 0]
    assert [len(segment.images) for segment in tree.segments] == [1, 0, 0]
    assert [output.segment for output in tree.outputs] == [1, 2, 1]
    assert [output.reads for output in tree.outputs] == [
        (len(tree.segments[output.segment].ids) - 1,) for output in tree.outputs
    ]


def test_questions_about_one_image_share_what_ends_with_it() -> None:
    encoder = tiny.encoder()
    picture = png(tiny.picture(112, 112))
    questions = ("What is in the picture?", "How many?")
    conversations = [asked(picture, one, answer) for one in questions for answer in ("Red", "Blue")]
    tree = encoder.encode_conversations(conversations, "end_of_turn", "r")
    assert len(tree.images) == 1
    assert len(tree.segments[0].images) == 1
    assert decode(tree.segments[0].ids).endswith("<|vision_end|>")
    assert {tree.path(output.segment)[0] for output in tree.outputs} == {0}
    # One by one, the image is computed for each conversation.
    separate = [encoder.encode_conversations([one], "end_of_turn", "r") for one in conversations]
    assert tree.conversations() == [only(one) for one in separate]
    assert merge(separate).conversations() == tree.conversations()
    assert tree.tokens < sum(one.tokens for one in separate) / 2


def test_images_of_a_response_are_in_its_segment() -> None:
    encoder = tiny.encoder()
    before, first, second = (png(tiny.picture(56, 56, seed)) for seed in range(3))
    shown: Any = [{"type": "text", "text": "Edited: "}, {"type": "image"}]
    messages: list[Message] = [user("Remove it", 1), {"role": "assistant", "content": shown}]
    conversations = [
        Conversation(messages, [before, after], loss=True) for after in (first, second, first)
    ]
    tree = encoder.encode_conversations(conversations, "end_of_turn", "r")
    assert [len(segment.images) for segment in tree.segments] == [1, 1, 1]
    assert len(tree.images) == 3
    assert [output.segment for output in tree.outputs] == [1, 2, 1]
    for found in tree.conversations():
        assert found.ids.count(encoder.vision.image) == sum(
            place.image.num_tokens for place in found.images
        )
        # A language model writes no image, so the image's tokens carry no loss.
        assert encoder.vision.image not in {found.ids[index] for index in found.labels}
        assert tokens_with_loss(found) == "Edited: <|vision_start|><|vision_end|><|im_end|>"
        assert tokens_read(found) == "<|im_end|>"
    with pytest.raises(RecordError, match="1 images but 2 places"):
        encoder.encode_conversations([Conversation(messages, [before])], None, "r")


@pytest.mark.parametrize(("places", "pictures"), [(1, 0), (0, 1), (2, 1)])
def test_places_and_images_must_be_equal(places: int, pictures: int) -> None:
    encoder = tiny.encoder()
    spans = encoder.render([user("Look", places), text("assistant", "Same")])
    with pytest.raises(RecordError, match=f"{pictures} images but {places} places"):
        encoder.encode([tiny.picture(56, 56)] * pictures, [spans], None)


def system_and_image(system: str, answer: str = "Same") -> Conversation:
    """Return a conversation with a system text before its image."""
    messages = [text("system", system), user("Look", 1), text("assistant", answer)]
    return Conversation(messages, [png(tiny.picture(56, 56))])


@pytest.mark.parametrize("system", ["", "Judge with care and say what is in the picture. "])
def test_conversations_that_differ_before_the_image_are_encoded_as_each_alone(system: str) -> None:
    """Each has a place of its own for the image, which is one image all the same."""
    encoder = tiny.encoder()
    conversations = [system_and_image(f"{system}{name}") for name in ("A", "B")]
    tree = encoder.encode_conversations(conversations, "end_of_turn", "r")
    separate = [encoder.encode_conversations([one], "end_of_turn", "r") for one in conversations]
    assert tree.conversations() == [only(one) for one in separate]
    assert [len(segment.images) for segment in tree.segments] == [0, 1, 1]
    assert [segment.parent for segment in tree.segments] == [None, 0, 0]
    assert decode(tree.segments[0].ids) == f"<|im_start|>system\n{system.rstrip()}"
    assert len(tree.images) == 1
    # Between trees a beginning is shared only if that pays.
    is_worth_it = len(tree.segments[0].ids) >= MIN_SAVED_TOKENS
    assert is_worth_it == bool(system)
    assert len(merge(separate).segments) == (3 if is_worth_it else 2)


def test_conversations_that_begin_with_other_tokens_have_several_roots() -> None:
    spans = [
        (Span(begin), Span("Red", response=True), Span("<|im_end|>")) for begin in ("Yes? ", "No? ")
    ]
    tree = tiny.encoder().encode([], spans, "end_of_turn")
    assert [segment.parent for segment in tree.segments] == [None, None]
    assert [decode(one.ids) for one in tree.conversations()] == [
        "Yes? Red<|im_end|>",
        "No? Red<|im_end|>",
    ]


def test_reads_point_at_the_response() -> None:
    encoder = tiny.encoder()
    spans = encoder.render([user("Look"), text("assistant", "A red square.")])
    read: dict[str, str] = {}
    for kind in (*get_args(Read), "last_response_token"):
        read[kind] = tokens_read(only(encoder.encode([], [spans], kind)))
    assert read == {
        "end_of_turn": "<|im_end|>",
        "last_token": "\n",
        "mean": "A red square.",
        "last_response_token": ".",
    }


def test_the_end_of_turn_is_read_even_if_more_text_follows() -> None:
    spans = (
        Span("question\n"),
        Span("answer", response=True),
        Span("<|im_end|>"),
        Span("\nmore text"),
    )
    found = only(tiny.encoder().encode([], [spans], "end_of_turn"))
    assert tokens_read(found) == "<|im_end|>"
    assert found.reads[0] < len(found.ids) - 1


@pytest.mark.parametrize("read", ["end_of_turn", "last_response_token", "mean"])
def test_a_joint_conversation_is_one_segment_that_is_read_once_for_each_response(read: Any) -> None:
    prompt = [user("What is it?"), text("assistant", "I am not sure."), user("Try again.")]
    answers = ["It is red.", "It is a green square.", "Blue."]
    messages = [*prompt, *(text("assistant", answer) for answer in answers)]
    encoder = tiny.encoder()
    tree = encoder.encode_joint(Conversation(messages), len(answers), read, "a record")
    assert [output.segment for output in tree.outputs] == [0, 0, 0]
    assert len(tree.segments) == 1
    assert (
        tree.segments[0].ids
        == only(encoder.encode_conversations([Conversation(messages)], None, "a record")).ids
    )
    for number, found in enumerate(tree.conversations()):
        # What comes before the read tokens is the conversation up to this response.
        up_to_here = messages[: len(prompt) + number + 1]
        alone = only(encoder.encode_conversations([Conversation(up_to_here)], read, "a record"))
        assert found.reads == alone.reads
        assert found.ids[: len(alone.ids)] == alone.ids


def test_more_responses_than_the_conversation_has_are_refused() -> None:
    messages = [user("What is it?"), text("assistant", "Red."), text("assistant", "Blue.")]
    with pytest.raises(ValueError, match="has 2 turns of the assistant, and 3 responses"):
        tiny.encoder().encode_joint(Conversation(messages), 3, "end_of_turn", "a record")


def test_the_end_of_a_whole_conversation_belongs_to_no_single_response() -> None:
    messages = [user("What is it?"), text("assistant", "Red."), text("assistant", "Blue.")]
    with pytest.raises(ValueError, match="only the last of several responses has it"):
        tiny.encoder().encode_joint(Conversation(messages), 2, "last_token", "a record")


def test_an_earlier_answer_is_not_read_for_a_response_that_is_missing() -> None:
    messages = [user("What is it?"), text("assistant", "Red."), user("Really?")]
    with pytest.raises(ValueError, match="needs a response"):
        tiny.encoder().encode_conversations([Conversation(messages)], "end_of_turn", "a record")


def test_an_empty_response_has_an_end_of_turn_but_no_token() -> None:
    encoder = tiny.encoder()
    spans = encoder.render([user("Look"), text("assistant", "")])
    assert only(encoder.encode([], [spans], "end_of_turn")).reads
    with pytest.raises(RecordError, match="the response is empty"):
        encoder.encode([], [spans], "mean")


def test_a_read_needs_a_response() -> None:
    with pytest.raises(ValueError, match="no span of the conversation is marked"):
        tiny.encoder().encode([], [(Span("text only"),)], "end_of_turn")


WORDS = st.text(alphabet="ab é\n漢<|>", max_size=8)


@settings(max_examples=60, deadline=None)
@given(
    start=st.lists(WORDS, min_size=1, max_size=3),
    endings=st.lists(WORDS, min_size=1, max_size=4),
    loss=st.booleans(),
    read=st.sampled_from([None, "end_of_turn"]),
)
def test_a_tree_is_the_whole_conversations_with_their_beginning_once(
    start: list[str], endings: list[str], loss: bool, read: Read | None
) -> None:
    """Tokens are the stock tokenizer's; the root is as long as possible; marks are at their tokens."""
    encoder = tiny.encoder()
    turns = [message for word in start for message in (user(word), text("assistant", word))][:-1]
    conversations = [
        encoder.render([*turns, text("assistant", ending)], loss=loss) for ending in endings
    ]
    tree = encoder.encode([], conversations, read)
    found = tree.conversations()
    separate = [encoder.encode([], [one], read) for one in conversations]
    assert merge(separate).conversations() == found == [only(one) for one in separate]

    whole = [
        tiny.tokenizer()(joined(spans), add_special_tokens=False)["input_ids"]
        for spans in conversations
    ]
    assert [list(one.ids) for one in found] == whole
    for spans, one in zip(conversations, found, strict=True):
        wanted = "".join(span.text for span in spans if span.loss)
        marked = tokens_with_loss(one)
        assert marked.endswith(wanted) or "�" in marked  # a token can straddle the first character
        assert one.reads == ((len(one.ids) - 1,) if read else ())

    # The root ends where two conversations differ, or at the first token that one is asked about.
    different = {one.ids: one for one in found}
    if len(different) == 1:
        assert len(tree.segments) == 1
        return
    root = len(tree.segments[0].ids)
    assert all(tree.path(output.segment)[0] == 0 for output in tree.outputs)
    is_limit = root == min(min([len(one.ids), *one.reads, *one.labels]) for one in found)
    assert is_limit or len({ids[root] for ids in different}) > 1


def test_images_are_decoded_once_for_records_that_follow_one_another_and_never_taken_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoded: list[Any] = []

    def noted(image: Any, record: str) -> Any:
        decoded.append(image)
        return decode_image(image, record)

    monkeypatch.setattr("mmrm.models.patch_cache.decode", noted)
    pictures = [png(tiny.picture(56, 56, seed)) for seed in (0, 1)]

    def record(encoder: Encoder, picture: bytes) -> SegmentTree:
        return encoder.encode_conversations([asked(picture, "?", one) for one in "ab"], None, "r")

    fresh = [record(tiny.encoder(), picture).images[0] for picture in pictures]
    encoder = tiny.encoder()
    decoded.clear()
    order = (0, 0, 1, 1, 0)
    trees = [record(encoder, pictures[number]) for number in order]
    assert decoded == [pictures[0], pictures[1], pictures[0]]
    for tree, number in zip(trees, order, strict=True):
        [image] = tree.images
        assert image == fresh[number]
        assert torch.equal(patches_of(image), patches_of(fresh[number]))
    assert fresh[0] != fresh[1]
    assert not torch.equal(patches_of(fresh[0]), patches_of(fresh[1]))
    without_image = Conversation([user("?"), text("assistant", "a")])
    assert encoder.encode_conversations([without_image], None, "r").images == ()


def test_a_template_that_ends_no_turn_is_refused() -> None:
    tokenizer = deepcopy(tiny.tokenizer())
    turns = (
        "{% for m in messages %}{{ '<|im_start|>' + m.role }}"
        "{% for part in m.content %}{{ part.text }}{% endfor %}{% endfor %}"
    )
    tokenizer.chat_template = (
        turns + "{% if add_generation_prompt %}{{ '<|im_start|>assistant' }}{% endif %}"
    )
    with pytest.raises(UserError, match="writes no token after an assistant's answer"):
        assistant_turn(tokenizer, ENDED_BY_TEMPLATE)
