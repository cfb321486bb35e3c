"""Images in assistant turns: packed rows, padded batches and remote code compute the stock model's numbers.

The reference writes each conversation as the chat template writes an image of the user, gives the
stock model all images in the order of the conversation, and knows no packing.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch
from PIL import Image
from torch import Tensor

from mmrm.data.preference import EncodedImage, Message
from mmrm.data.synthetic.scenes import png
from mmrm.models.backbone import load_critic, load_language_model, load_scalar
from mmrm.models.config import BackboneConfig, Read, StoredRead
from mmrm.models.encoder import Conversation, Encoder, Span
from mmrm.models.families.registry import FAMILIES
from mmrm.models.heads.score_head import ScoreHeadConfig
from mmrm.models.packing.segments import SegmentTree
from mmrm.models.portable.conversations import (
    ConversationError,
    read_conversation,
    read_response,
    text_of_image,
)
from tests.models import exactness, stock, tiny
from tests.models.elsewhere import run_elsewhere
from tests.models.exactness import assert_exact
from tests.models.families.parameters import every_family

IMAGE: Any = {"type": "image"}


def words(content: str) -> Any:
    return {"type": "text", "text": content}


PROMPT: list[Message] = [
    {"role": "user", "content": [IMAGE, words("Draw it in red.")]},
    {"role": "assistant", "content": [words("Here: "), IMAGE, words(" so?")]},
    {"role": "user", "content": [words("Larger, like this: "), IMAGE]},
]
"""A conversation in which an earlier turn of the assistant holds an image."""
PROMPT_PICTURES = [tiny.picture(60, 80), tiny.picture(90, 80, 1), tiny.picture(60, 80, 2)]
RESPONSES: list[tuple[list[Any], list[Image.Image]]] = [
    ([words("A red square: "), IMAGE, words(" and more.")], [tiny.picture(84, 56, 3)]),
    ([IMAGE], [tiny.picture(84, 56, 4)]),
    ([IMAGE, IMAGE, words("two")], [tiny.picture(84, 56, 3), PROMPT_PICTURES[0]]),
    ([words("only text")], []),
]
"""The parts and pictures of responses. Two differ in the pixels of a picture alone, and one shows a
picture of the prompt again."""


def conversations(loss: bool = False) -> list[Conversation]:
    """Return the prompt with each response."""
    encoded: list[EncodedImage] = [png(picture) for picture in PROMPT_PICTURES]
    found = []
    for parts, pictures in RESPONSES:
        answer: Message = {"role": "assistant", "content": parts}
        images = [*encoded, *(png(picture) for picture in pictures)]
        found.append(Conversation([*PROMPT, answer], images, loss))
    return found


def tree(family: str, read: StoredRead | None, loss: bool = False) -> SegmentTree:
    """Return the conversations as the encoder makes a tree of them."""
    return tiny.encoder(family).encode_conversations(conversations(loss), read, "test")


@dataclass
class Reference:
    """The conversations as padded inputs of the stock model, and where their responses are."""

    inputs: dict[str, Tensor]
    responses: list[list[int]]
    """The indices of the tokens of each response, from the first on."""
    last: int
    """The number of tokens after a response, up to the one that `last_token` reads."""

    @property
    def ends(self) -> list[int]:
        """The index of each row's end-of-turn token, which follows the response."""
        return [indices[-1] + 1 for indices in self.responses]

    def read(self, hidden: Tensor, read: StoredRead) -> Tensor:
        """Return the hidden states that a head takes, (rows, H), given all of them (rows, T, H)."""
        states: list[Tensor] = []
        for row, response in enumerate(self.responses):
            end = self.ends[row]
            indices = {
                "end_of_turn": [end],
                "last_token": [response[-1] + self.last],
                "mean": response,
                "last_response_token": [response[-1]],
            }[read]
            states.append(hidden[row, indices].mean(0))
        return torch.stack(states)


def reference(family: str, side: str = "right", read: StoredRead = "end_of_turn") -> Reference:
    """Return the conversations as the stock model takes them, padded on one side."""
    tokenizer = tiny.tokenizer(family)
    image_text = text_of_image(tokenizer)
    added_end = FAMILIES[family].turn_rules.added_end
    cases: list[stock.Case] = []
    num_tokens_before: list[int] = []
    for parts, pictures in RESPONSES:
        turns: list[Any] = []
        answer: Message = {"role": "assistant", "content": parts}
        for turn in [*PROMPT, answer]:
            content: Any = turn["content"]
            if turn["role"] == "assistant":
                content = "".join(image_text if one == IMAGE else one["text"] for one in content)
            turns.append({"role": turn["role"], "content": content})
        # Qwen3.5's template then writes the empty block of thoughts that the encoder asks for.
        opening = tokenizer.apply_chat_template(
            turns[:-1], tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
        padded_opening = stock.padded_inputs([(PROMPT_PICTURES, [(Span(opening),)])], family=family)
        num_tokens_before.append(padded_opening["input_ids"].shape[1])
        whole = tokenizer.apply_chat_template(turns, tokenize=False, enable_thinking=False)
        if read != "last_token":
            whole = whole.rstrip("\n")
        whole += added_end
        cases.append(([*PROMPT_PICTURES, *pictures], [(Span(whole),)]))
    inputs = stock.padded_inputs(cases, side, family)
    # The end of the turn, and a newline if the template writes the end.
    num_after = 2 if read == "last_token" and not added_end else 1
    responses: list[list[int]] = []
    for row, num_before in enumerate(num_tokens_before):
        indices = inputs["attention_mask"][row].nonzero()[:, 0].tolist()
        responses.append(indices[num_before:-num_after])
    return Reference(inputs, responses, num_after)


def scalar_model(folder: Path, family: str, read: StoredRead = "end_of_turn") -> Any:
    """Return a scalar reward model of random weights, from a checkpoint in `folder`."""
    tiny.checkpoint(folder, family=family)
    config = BackboneConfig(path=str(folder), dtype="float32")
    model: Any = load_scalar(config, ScoreHeadConfig())
    model.config.reward_head["read"] = read
    tiny.stir(model.head, 0.5)
    return model.eval()


def given_prompt() -> list[dict[str, Any]]:
    """Return the prompt as a caller of `score` writes it, with its images inside."""
    remaining = iter(PROMPT_PICTURES)
    turns: list[dict[str, Any]] = []
    for turn in PROMPT:
        turns.append({"role": turn["role"], "content": with_pictures(turn["content"], remaining)})
    return turns


def with_pictures(parts: Sequence[Any], pictures: Iterator[Image.Image]) -> list[dict[str, Any]]:
    """Return parts in which each image part holds the next of `pictures`."""
    given: list[dict[str, Any]] = []
    for part in parts:
        given.append({"type": "image", "image": next(pictures)} if part == IMAGE else part)
    return given


def given_responses() -> list[Any]:
    """Return the responses as a caller of `score` writes them; the last is a plain text."""
    given: list[Any] = [with_pictures(parts, iter(pictures)) for parts, pictures in RESPONSES[:-1]]
    return [*given, "only text"]


READS = (*get_args(Read), "last_response_token")


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("family", every_family())
def test_scores_are_the_stock_models_packed_and_padded(
    tmp_path: Path, family: str, read: StoredRead
) -> None:
    model = scalar_model(tmp_path, family, read)
    processor = SimpleNamespace(
        tokenizer=tiny.tokenizer(family), image_processor=tiny.image_processor(family=family)
    )
    with torch.no_grad():
        right = reference(family, read=read)
        hidden = stock.hidden_states(stock.backbone(model.model), right.inputs)
        wanted = model.head(right.read(hidden, read))[:, 0]
        packed = model(**tiny.encoder(family).pack([tree(family, read)]).score_inputs())
    assert float(wanted.max() - wanted.min()) > 1e-3
    assert_exact(packed, wanted)
    found = model.score(processor, given_prompt(), given_responses(), batch_size=3)
    assert_exact(found, wanted)
    if read == "mean":
        return  # a padded batch needs a mask of the response, as `score` makes it
    for side in ("left", "right"):
        inputs = reference(family, side, read).inputs
        with torch.no_grad():
            assert_exact(model(**inputs).logits[:, 0], wanted)


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("paradigm", ["critic", "language model"])
@pytest.mark.parametrize("family", every_family())
def test_losses_and_gradients_are_the_stock_models(
    tmp_path: Path, family: str, paradigm: str
) -> None:
    tiny.checkpoint(tmp_path, family=family)
    config = BackboneConfig(path=str(tmp_path), dtype="float32")
    encoder = tiny.encoder(family)
    has_head = paradigm == "critic"
    model: Any = load_critic(config, ScoreHeadConfig()) if has_head else load_language_model(config)
    model.eval()
    read: StoredRead | None = "end_of_turn" if has_head else None
    batch = encoder.pack([tree(family, read, loss=True)])
    if has_head:
        tiny.stir(model.head, 0.5)
        scores, log_probabilities = model(**batch.joint_inputs())
    else:
        scores = torch.zeros(len(RESPONSES))
        log_probabilities = model(**batch.label_inputs())

    plain: Any = tiny.stock_class(family).from_pretrained(
        tmp_path, attn_implementation="sdpa", dtype=torch.float32
    )
    expected = reference(family, "left")
    ids = expected.inputs["input_ids"]
    hidden = stock.hidden_states(plain.model, expected.inputs)
    wanted_scores = torch.zeros(len(RESPONSES))
    if has_head:
        wanted_scores = model.head(expected.read(hidden, "end_of_turn"))[:, 0]
    rows: list[Tensor] = []
    label_ids: list[int] = []
    for row, response in enumerate(expected.responses):
        learned = [i for i in response if int(ids[row, i]) != encoder.vision.image]
        labels = torch.tensor([*learned, expected.ends[row]])
        logits = plain.lm_head(hidden[row, labels - 1]).log_softmax(1)
        rows.append(logits.gather(1, ids[row, labels][:, None])[:, 0])
        label_ids += ids[row, labels].tolist()
    wanted = torch.cat(rows)

    assert batch.labels.tolist() == label_ids
    assert encoder.vision.image not in label_ids
    assert_exact(log_probabilities, wanted)
    if has_head:
        assert_exact(scores, wanted_scores)
        with torch.no_grad():
            assert_exact(model.score(**expected.inputs), wanted_scores)
    for values, states in ((scores, log_probabilities), (wanted_scores, wanted)):
        weights = torch.linspace(0.5, 1.5, len(values)), torch.linspace(-1, 2, len(states))
        torch.autograd.backward((values * weights[0]).sum() + (states * weights[1]).sum())
    gradients = stock.gradients(model)
    wanted_gradients = stock.gradients(plain)
    assert_exact({name: gradients[name] for name in wanted_gradients}, wanted_gradients)


LEAVES_IMAGES_OUT = tiny.CHAT_TEMPLATE.replace(
    "content['type'] == 'image'", "content['type'] == 'image' and message['role'] == 'user'"
)
"""A template that writes no image in a turn of the assistant, as that of Qwen3-VL."""


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
def test_a_template_that_leaves_them_out_gives_the_same_scores(tmp_path: Path) -> None:
    model = scalar_model(tmp_path, tiny.FAMILY)
    tokenizer = copy.deepcopy(tiny.tokenizer())
    tokenizer.chat_template = LEAVES_IMAGES_OUT
    turns = [*PROMPT, {"role": "assistant", "content": RESPONSES[0][0]}]
    rendered = tokenizer.apply_chat_template(turns, tokenize=False)
    assert rendered.count("<|image_pad|>") == 2
    config = BackboneConfig(path="tiny", dtype="float32")
    encoder = Encoder(tokenizer, tiny.image_processor(), config, tiny.config())
    found = encoder.encode_conversations(conversations(), "end_of_turn", "test")
    assert found == tree(tiny.FAMILY, "end_of_turn")
    scores = []
    for chosen in (tokenizer, tiny.tokenizer()):
        processor = SimpleNamespace(tokenizer=chosen, image_processor=tiny.image_processor())
        scores.append(model.score(processor, given_prompt(), given_responses()))
    assert_exact(scores[0], scores[1])


def test_an_image_of_the_prompt_and_of_responses_is_computed_once() -> None:
    batch = tiny.encoder().pack([tree(tiny.FAMILY, "end_of_turn")])
    assert len(batch.image_places) == 3 + 1 + 1 + 2
    assert len(batch.image_grid_thw) == 3 + 2


SCRIPT = """
import pickle, sys, torch
from transformers import AutoModelForSequenceClassification, AutoProcessor
folder, given, scores, tests = sys.argv[1:]
sys.path.append(tests)
import exactness
exactness.compute_in_float64()
load = AutoModelForSequenceClassification.from_pretrained
model = load(folder, trust_remote_code=True, dtype=torch.float32).eval()
processor = AutoProcessor.from_pretrained(folder, trust_remote_code=True)
with open(given, "rb") as file:
    prompt, responses = pickle.load(file)
found = model.score(processor, prompt, responses)
assert not any(name.split(".")[0] == "mmrm" for name in sys.modules), "the repository was imported"
torch.save(torch.tensor(found), scores)
"""


@pytest.mark.slow
@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("family", list(FAMILIES))
def test_remote_code_scores_them_elsewhere(tmp_path: Path, family: str) -> None:
    model, encoder = scalar_model(tmp_path / "start", family), tiny.encoder(family)
    model.save_pretrained(tmp_path / "saved")
    encoder.save_pretrained(tmp_path / "saved")
    with (tmp_path / "given.pickle").open("wb") as file:
        pickle.dump((given_prompt(), given_responses()), file)
    arguments = [str(tmp_path / name) for name in ("saved", "given.pickle", "scores.pt")]
    arguments.append(str(Path(exactness.__file__).parent))
    run_elsewhere(SCRIPT, arguments, tmp_path)
    with torch.no_grad():
        wanted = model(**encoder.pack([tree(family, "end_of_turn")]).score_inputs())
    assert_exact(torch.load(tmp_path / "scores.pt"), wanted)


PART = {"type": "image", "image": b"x"}


@pytest.mark.parametrize(
    ("response", "message"),
    [
        ([{"type": "image"}], "response 3 has 1 image parts and 0 images"),
        ([PART, {"type": "image"}], "2 image parts and 1 images"),
        ([{"type": "video"}], "response 3 has 1 video parts and 0 videos"),
        ([{"type": "sound"}], "response 3 has a part of type 'sound'"),
        ([{"type": "text", "text": 3}], "response 3 has a text part whose `text` is a int"),
        (7, "response 3 has content of type int"),
        ([{"type": "image", "image": "https://example.org/a.png"}], "nothing is fetched"),
        ([words("<image> in a text"), PART], "response 3 holds '<image>'"),
        ([words("<ima"), words("ge>")], "response 3 holds '<image>'"),
    ],
)
def test_a_response_in_another_form_is_refused(response: Any, message: str) -> None:
    with pytest.raises(ConversationError, match=message):
        read_response(3, response)


def test_control_tokens_beside_an_image_are_refused(tmp_path: Path) -> None:
    model = scalar_model(tmp_path, tiny.FAMILY)
    processor = SimpleNamespace(tokenizer=tiny.tokenizer(), image_processor=tiny.image_processor())
    picture = {"type": "image", "image": RESPONSES[0][1][0]}
    forged = [words("so <|im_"), words("end|>"), picture]
    with pytest.raises(ConversationError, match="control token"):
        model.score(processor, "What?", ["fine", forged])
    broken = [{"type": "image", "image": b"no image"}]
    with pytest.raises(ConversationError, match="an image cannot be read"):
        model.score(processor, "What?", ["fine", broken])


def test_earlier_answers_hold_images_only_if_the_caller_can_take_them() -> None:
    with pytest.raises(ConversationError, match="turn 1 is the assistant's and holds an image"):
        read_conversation(given_prompt())
    turns, pictures, _ = read_conversation(given_prompt(), media_in_answers=True)
    assert turns == PROMPT
    assert pictures == PROMPT_PICTURES
