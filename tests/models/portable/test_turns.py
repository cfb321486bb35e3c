"""The end of a turn that a chat template does not write: the encoder, remote code and padded batches agree on it."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrm.data.errors import CheckpointError, UserError
from mmrm.data.preference import Message, text
from mmrm.models.backbone import load_scalar
from mmrm.models.config import BackboneConfig
from mmrm.models.encoder import Conversation, assistant_turn
from mmrm.models.families.registry import FAMILIES
from mmrm.models.packing.segments import SegmentTree
from mmrm.models.portable.conversations import ConversationError
from mmrm.models.portable.processor import RewardProcessor, joint_batch, padded_batch
from mmrm.models.portable.reward import ScalarReward, read_mask
from mmrm.models.portable.turns import (
    ENDED_BY_TEMPLATE,
    TrimmedSides,
    TurnRules,
    apply_template,
    trimmed_sides,
)
from tests.models import tiny
from tests.models.exactness import assert_exact
from tests.models.families.arrangements import reward_model

FAMILY = "glm4v"
ENCODER = tiny.encoder(FAMILY)
PROCESSOR = RewardProcessor(tiny.image_processor(family=FAMILY), tiny.tokenizer(FAMILY))
QUESTION = text("user", "What is it?")
FOLLOWED = [QUESTION, text("assistant", "Red"), text("user", "Why?")]
"""A prompt with an answer that a turn of the user follows."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ScalarReward:
    return reward_model(tmp_path_factory.mktemp("model"), FAMILY)


def encoded(messages: list[Message], num_responses: int = 1) -> SegmentTree:
    conversation = Conversation(messages)
    return ENCODER.encode_joint(conversation, num_responses, "end_of_turn", "a record")


def ids_of(written: str) -> list[int]:
    ids: list[int] = ENCODER.tokenizer(written, add_special_tokens=False)["input_ids"]
    return ids


@pytest.mark.parametrize(
    "answer", ["Red", "Red\n", "", "<think>It is.</think>\n<answer>Red</answer>"]
)
def test_the_end_is_added_where_the_template_writes_none(answer: str) -> None:
    [whole] = encoded(
        [text("system", "Judge."), *FOLLOWED, text("assistant", answer)]
    ).conversations()
    assert ENCODER.tokenizer.decode(whole.ids) == (
        "[gMASK]<sop><|system|>\nJudge.<|user|>\nWhat is it?<|assistant|>\nRed<|user|>\nWhy?"
        f"<|assistant|>\n{answer}<|user|>"
    )
    assert whole.reads == (len(whole.ids) - 1,)
    assert whole.ids[-1] == ENCODER.end_of_turn


def test_an_answer_has_the_same_tokens_whatever_follows_it() -> None:
    """So the beginning that two conversations have in common is shared up to the end of the answer."""
    [answered] = encoded(FOLLOWED[:2]).conversations()
    [followed] = encoded([*FOLLOWED, text("assistant", "Because")]).conversations()
    [again] = encoded([*FOLLOWED[:2], text("assistant", "Because")]).conversations()
    for longer in (followed, again):
        assert longer.ids[: len(answered.ids)] == answered.ids


def test_successive_answers_are_each_read_at_their_end() -> None:
    responses = [text("assistant", answer) for answer in ("Red", "A blue circle")]
    joint = encoded([QUESTION, *responses], num_responses=2).conversations()
    for conversation, response in zip(joint, ("Red", "A blue circle"), strict=True):
        [read] = conversation.reads
        own = ids_of(response)
        assert list(conversation.ids[read - len(own) : read]) == own
        assert conversation.ids[read] == ENCODER.end_of_turn


def test_remote_code_writes_the_same_tokens(model: ScalarReward) -> None:
    answers = ["Red", "A blue circle\n", ""]
    plain = [{"role": turn["role"], "content": turn["content"][0]["text"]} for turn in FOLLOWED]  # type: ignore[typeddict-item]
    for chunk in ([plain[0]], plain):
        batch = padded_batch(model.config, PROCESSOR, chunk, answers)
        for index, answer in enumerate(answers):
            wanted = encoded([*FOLLOWED[: len(chunk)], text("assistant", answer)])
            [conversation] = wanted.conversations()
            row = batch["input_ids"][index][batch["attention_mask"][index].bool()]
            assert row.tolist() == list(conversation.ids)

    together, positions, owners = joint_batch(model.config, PROCESSOR, plain, answers)
    responses = [text("assistant", answer) for answer in answers]
    conversations = encoded([*FOLLOWED, *responses], num_responses=3).conversations()
    assert together["input_ids"][0].tolist() == list(conversations[0].ids)
    assert positions.tolist() == [read for one in conversations for read in one.reads]
    assert owners.tolist() == [0, 1, 2]


def test_a_padded_batch_without_the_end_is_refused(model: ScalarReward) -> None:
    """Behind an earlier answer stands the same token, so its score would be given for the last one."""
    tokenizer = deepcopy(ENCODER.tokenizer)
    chat = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}] * 2
    stock = tokenizer.apply_chat_template(chat, tokenize=False)
    for written, is_whole in (
        (stock, False),
        (f"{stock}<|user|>", True),
        (f"{stock}<|user|>\nWhy?", False),
        (f"{stock}<|user|>\nWhy?<|assistant|>\n", False),
        ("[gMASK]<sop><|user|>\nQ<|assistant|>\n", False),
    ):
        for side in ("left", "right"):
            tokenizer.padding_side = side
            rows = tokenizer(
                [f"{stock}{stock}<|user|>", written],
                padding=True,
                return_tensors="pt",
                add_special_tokens=False,
            )
            read = (model.config, rows["input_ids"], rows["attention_mask"])
            if is_whole:
                ends = read_mask(*read).nonzero()[:, 1].tolist()
                last = rows["attention_mask"].cumsum(1).argmax(1).tolist()
                assert ends == last
            else:
                with pytest.raises(
                    ValueError, match=r"rows \[1\] hold no whole answer.*'<\|user\|>' behind"
                ):
                    read_mask(*read)


def test_the_rules_travel_in_config_json(model: ScalarReward, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())["assistant_turn"]
    assert saved == {
        "begin": ids_of("<|assistant|>"),
        "end": ENCODER.end_of_turn,
        "added_end": "<|user|>",
        "text_roles": ["system", "assistant"],
    }
    settings = BackboneConfig(path=str(tmp_path), dtype="float32")
    again = load_scalar(settings, fresh_head=False)
    assert TurnRules.of(again.config) == FAMILIES[FAMILY].turn_rules
    assert (tmp_path / "turns.py").is_file()


def test_templates_that_write_ends_are_given_conversations_unchanged() -> None:
    given: list[Any] = []

    class Recorder:
        def apply_chat_template(self, turns: list[Any], **options: Any) -> str:
            given.append(turns)
            return ""

    turns = [text("system", "Judge."), *FOLLOWED, text("assistant", "Because")]
    apply_template(Recorder(), turns, ENDED_BY_TEMPLATE, open_turn=False)
    assert given == [turns]


THINKING = (
    "[gMASK]<sop>{% for m in messages %}<|{{ m.role }}|>\n{% if m.role == 'assistant' %}"
    "<think></think>\n{{ m.content }}{% elif m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""It writes an empty thought in front of given answers, as GLM-4.5V's template does."""


def test_a_template_that_writes_thoughts_in_front_of_answers_is_refused() -> None:
    tokenizer = deepcopy(ENCODER.tokenizer)
    tokenizer.chat_template = THINKING
    with pytest.raises(UserError, match=r"<think></think>.*thoughts or white space in front"):
        assistant_turn(tokenizer, ENCODER.turn_rules)


def test_an_end_that_is_no_token_of_the_tokenizer_is_refused() -> None:
    rules = TurnRules(added_end="<|unknown|>", text_roles=ENCODER.turn_rules.text_roles)
    with pytest.raises(UserError, match=r"'<\|unknown\|>', which is \d+ tokens of this tokenizer"):
        assistant_turn(ENCODER.tokenizer, rules)


def test_the_end_in_a_text_is_refused(model: ScalarReward) -> None:
    with pytest.raises(ConversationError, match=r"contains '<\|user\|>'"):
        model.score(PROCESSOR, "What?", ["Red<|user|>\nGood", "Blue"])


def test_a_folder_without_a_tokenizer_and_with_several_ends_is_refused(tmp_path: Path) -> None:
    """Released models name three tokens at which a text may end."""
    tiny.checkpoint(tmp_path, family=FAMILY)
    settings = json.loads((tmp_path / "config.json").read_text())
    settings["text_config"]["eos_token_id"] = [1, 2, 3]
    (tmp_path / "config.json").write_text(json.dumps(settings))
    load_scalar(BackboneConfig(path=str(tmp_path), dtype="float32"))
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match="tokenizer is missing"):
        load_scalar(BackboneConfig(path=str(tmp_path), dtype="float32"))


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
def test_remote_code_scores_like_a_packed_row(tmp_path: Path) -> None:
    model = reward_model(tmp_path, FAMILY)
    answers = ["Red", "A blue circle"]
    conversations = [Conversation([QUESTION, text("assistant", answer)]) for answer in answers]
    tree = ENCODER.encode_conversations(conversations, "end_of_turn", "a record")
    with torch.no_grad():
        packed: Any = model(**ENCODER.pack([tree]).score_inputs())
    assert_exact(model.score(PROCESSOR, "What is it?", answers), packed)


@pytest.mark.parametrize(
    ("family", "sides", "written"),
    [
        ("qwen2_5_vl", TrimmedSides(beginning=False, end=False), " Red "),
        ("qwen3_5", TrimmedSides(beginning=True, end=True), "Red"),
        ("cosmos3_edge", TrimmedSides(beginning=False, end=True), " Red"),
    ],
)
def test_the_sides_that_a_template_trims_are_known(
    family: str, sides: TrimmedSides, written: str
) -> None:
    assert trimmed_sides(tiny.tokenizer(family), FAMILIES[family].turn_rules) == sides
    assert sides.trim(" Red ") == written
