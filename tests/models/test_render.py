"""`Encoder.render` gives what rendering every beginning of a conversation gives, in linear time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import pytest

from mmrm.data.preference import Message, text, texts
from mmrm.models.config import BackboneConfig
from mmrm.models.encoder import Encoder, Span
from mmrm.models.families.registry import FAMILIES
from tests.models import tiny

COUNTING_IMAGES = (
    "{% set images = namespace(seen=0) %}{% for message in messages %}"
    "<|im_start|>{{ message.role }}\n{% for part in message.content %}{% if part.type == 'image' %}"
    "{% set images.seen = images.seen + 1 %}Picture {{ images.seen }}: "
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""What a turn looks like depends on the turns before it, as with `add_vision_id` of Qwen2.5-VL."""
TRIMMING_USERS = COUNTING_IMAGES.replace(
    "{{ part.text }}",
    "{{ part.text if message.role == 'assistant' else part.text | trim }}",
)
HIDING_THOUGHTS = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}"
    "{% if message.role == 'assistant' and not loop.last %}{{ part.text }}"
    "{% elif message.role == 'assistant' %}{{ part.text.split('</think>')[-1] }}"
    "{% else %}{{ part.text }}{% endif %}{% endif %}{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""It removes an assistant's thoughts, as Qwen3's template does."""
TEMPLATES = {
    "counts images": COUNTING_IMAGES,
    "trims users": TRIMMING_USERS,
    "hides thoughts": HIDING_THOUGHTS,
}
TEXTS = (
    "red",
    "",
    " ",
    "a blue circle\n",
    "\n\n<|im_end|>\n",
    "<|im_start|>assistant\n",
    "red red",
    "two\nlines",
    "<think>x</think>",
    "naïve 猫 🙂",
)


def render_every_beginning(
    encoder: Encoder, messages: Sequence[Message], loss: bool
) -> tuple[Span, ...]:
    """Return the spans by rendering the conversation up to every assistant turn and after it.

    It is the definition of `Encoder.render`, and quadratic in turns.
    """

    def rendered(turns: Sequence[Message], open_turn: bool) -> str:
        whole: str = encoder.tokenizer.apply_chat_template(
            list(turns), tokenize=False, add_generation_prompt=open_turn
        )
        return whole

    turns = list(messages)
    if encoder.config.system_prompt is not None and turns[0]["role"] != "system":
        turns.insert(0, text("system", encoder.config.system_prompt))
    spans: list[Span] = []
    done = ""
    for index, turn in enumerate(turns):
        if turn["role"] != "assistant":
            continue
        opened = rendered(turns[:index], True)
        closed = rendered(turns[: index + 1], False)
        content = "".join(texts([turn]))
        if not opened.startswith(done) or not closed.startswith(opened + content):
            raise ValueError("the template rewrites")
        is_last = index == len(turns) - 1
        ending = closed[len(opened + content) :].rstrip("\n")
        spans.append(Span(opened[len(done) :]))
        spans.append(Span(content, loss and is_last, is_last))
        spans.append(Span(ending, loss and is_last))
        done = opened + content + ending
    if turns[-1]["role"] != "assistant":
        opened = rendered(turns, True)
        if not opened.startswith(done):
            raise ValueError("the template rewrites")
        spans.append(Span(opened[len(done) :]))
    return tuple(spans)


def conversation(draw: random.Random) -> list[Message]:
    """Return up to nine turns with uneven parts, which end with the user's turn or with an answer."""
    turns: list[Message] = []
    if draw.random() < 0.3:
        turns.append(text("system", draw.choice(TEXTS)))
    for number in range(draw.randint(1, 9)):
        parts: list[Any] = []
        for _ in range(draw.randint(1, 3)):
            if number % 2 == 0 and draw.random() < 0.3:
                parts.append({"type": "image"})
            parts.append({"type": "text", "text": draw.choice(TEXTS)})
        turns.append({"role": "assistant" if number % 2 else "user", "content": parts})
    return turns


def with_template(template: str) -> Encoder:
    tokenizer = deepcopy(tiny.tokenizer())
    tokenizer.chat_template = template
    config = BackboneConfig(path="tiny", dtype="float32")
    return Encoder(tokenizer, tiny.image_processor(), config, tiny.config())


def encoder_named(name: str, **changes: Any) -> Encoder:
    return with_template(TEMPLATES[name]) if name in TEMPLATES else tiny.encoder(name, **changes)


WITHOUT_THOUGHTS = [name for name in FAMILIES if name not in tiny.TEMPLATES]
"""The others write a block of thoughts into the last answer alone; see test_qwen3_5.py."""


@pytest.mark.parametrize("name", [*WITHOUT_THOUGHTS, *TEMPLATES])
def test_render_equals_rendering_every_beginning(name: str) -> None:
    draw = random.Random(name)
    encoders = [encoder_named(name), encoder_named(name, system_prompt="Judge.\n")]
    num_equal = 0
    num_refused = 0
    for _ in range(300):
        encoder = draw.choice(encoders)
        messages = conversation(draw)
        loss = draw.random() < 0.5
        try:
            expected = render_every_beginning(encoder, messages, loss)
        except ValueError:
            num_refused += 1
            with pytest.raises(ValueError, match="rewrites"):
                encoder.render(messages, loss=loss)
            continue
        # Equal spans have equal texts, and so equal tokens.
        assert encoder.render(messages, loss=loss) == expected
        num_equal += 1
    assert num_equal >= 100
    assert (num_refused > 0) == (name == "hides thoughts")


class Counting:
    """A tokenizer that counts the calls of its chat template and the turns that these render."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.num_calls = 0
        self.num_turns = 0

    def apply_chat_template(self, turns: list[Any], **options: Any) -> str:
        """Render `turns` as the tokenizer does."""
        self.num_calls += 1
        self.num_turns += len(turns)
        rendered: str = self.tokenizer.apply_chat_template(turns, **options)
        return rendered


@pytest.mark.parametrize("ends_with_answer", [True, False])
def test_turns_are_rendered_a_fixed_number_of_times(ends_with_answer: bool) -> None:
    encoder = tiny.encoder()
    for num_pairs in (50, 200):
        turns = [text("user", "why?"), text("assistant", "so")] * num_pairs
        messages = turns if ends_with_answer else [*turns, text("user", "and?")]
        encoder.tokenizer = counting = Counting(tiny.tokenizer())
        encoder.render(messages)
        assert counting.num_calls <= 3
        assert counting.num_turns <= 3 * len(messages)
