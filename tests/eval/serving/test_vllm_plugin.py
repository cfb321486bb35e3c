"""The chat template for vLLM renders what training renders, and refuses what training refuses."""

import json
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jinja2.exceptions import TemplateError

from mmrm.data.errors import CheckpointError
from mmrm.data.preference import Message, text
from mmrm.eval.serving import vllm_plugin
from mmrm.models.config import StoredRead
from mmrm.models.encoder import ANSWERED, Conversation
from mmrm.models.families.registry import FAMILIES
from tests.models import tiny

CONVERSATIONS: list[list[Message]] = [
    [text("user", "What is it?"), text("assistant", "A circle.")],
    [text("user", "What is in both?", images=2), text("assistant", "Lines\n\n")],
    [
        text("system", "Be kind."),
        text("user", "One?", images=1),
        text("assistant", "No."),
        text("user", "?"),
        text("assistant", ""),
    ],
]


def template(
    folder: Path,
    read: StoredRead = "end_of_turn",
    prompt: str | None = None,
    family: str = tiny.FAMILY,
) -> str:
    """Return the template for a checkpoint."""
    tiny.tokenizer(family).save_pretrained(folder)
    (folder / "config.json").write_text(
        json.dumps({"model_type": family, "reward_head": {"read": read}}), encoding="utf-8"
    )
    (folder / "judge.json").write_text(
        json.dumps({"backbone": {"system_prompt": prompt}}), encoding="utf-8"
    )
    return vllm_plugin.template(folder)


def rendered(template: str, conversation: Any, family: str = tiny.FAMILY) -> str:
    found: str = tiny.tokenizer(family).apply_chat_template(
        conversation, tokenize=False, chat_template=template
    )
    return found


@pytest.mark.parametrize("family", vllm_plugin.SERVED_MODELS)
@pytest.mark.parametrize("prompt", [None, 'Judge "strictly".\nAlways.'])
def test_a_conversation_ends_at_the_token_that_is_read(
    tmp_path: Path, prompt: str | None, family: str
) -> None:
    found = template(tmp_path, prompt=prompt, family=family)
    encoder = tiny.encoder(family, system_prompt=prompt)
    for conversation in CONVERSATIONS:
        wanted = "".join(span.text for span in encoder.render(conversation))
        assert wanted.endswith("<|im_end|>")
        assert rendered(found, conversation, family) == wanted
    plain = [{"role": turn["role"], "content": turn["content"][0]["text"]} for turn in ANSWERED]  # type: ignore[typeddict-item]
    assert rendered(found, plain, family) == rendered(found, ANSWERED, family)


def test_a_head_that_reads_the_last_token_gets_the_newline(tmp_path: Path) -> None:
    found = template(tmp_path, "last_token")
    conversations = [Conversation(CONVERSATIONS[0])]
    tree = tiny.encoder().encode_conversations(conversations, "last_token", "x")
    [encoded] = tree.conversations()
    ids = tiny.tokenizer()(rendered(found, CONVERSATIONS[0]), add_special_tokens=False)["input_ids"]
    assert ids == list(encoded.ids)
    assert encoded.reads == (len(encoded.ids) - 1,)


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - set(vllm_plugin.SERVED_MODELS)))
def test_a_family_without_a_class_for_vllm_is_refused_by_name(tmp_path: Path, family: str) -> None:
    title = FAMILIES[family].title
    with pytest.raises(CheckpointError, match=rf"of the family {title}\. vLLM serves .*Qwen3-VL"):
        template(tmp_path, family=family)


def test_a_model_of_no_family_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is a 'gemma3' model: its image tokens see each"):
        vllm_plugin.refuse_other_families("gemma3", tmp_path)


def test_the_command_ends_with_the_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    template(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(file.read_text().replace("qwen2_5_vl", "video_llama_3"))
    monkeypatch.delitem(sys.modules, "mmrm.eval.serving.vllm_plugin")  # as in a fresh process
    monkeypatch.setattr("sys.argv", ["vllm_plugin", str(tmp_path)])
    with pytest.raises(SystemExit, match="of the family VideoLLaMA3"):
        runpy.run_module("mmrm.eval.serving.vllm_plugin", run_name="__main__")


def test_every_architecture_of_a_family_is_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for vLLM's registry, which `make test-vllm` replaces by the real one."""
    registered: dict[str, str] = {}
    registry = SimpleNamespace(
        get_supported_archs=lambda: set(registered), register_model=registered.__setitem__
    )
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(ModelRegistry=registry))
    vllm_plugin.register()
    vllm_plugin.register()  # as vLLM does
    assert registered == {
        "ScalarRewardModel": "mmrm.eval.serving.vllm_families:ServedQwen2_5VL",
        "Qwen2VLScalarRewardModel": "mmrm.eval.serving.vllm_families:ServedQwen2VL",
        "Qwen3VLScalarRewardModel": "mmrm.eval.serving.vllm_families:ServedQwen3VL",
        "Qwen3VLMoeScalarRewardModel": "mmrm.eval.serving.vllm_model:RefusedModel",
        "InternVLScalarRewardModel": "mmrm.eval.serving.vllm_families:ServedInternVL",
        "VideoLlama3ScalarRewardModel": "mmrm.eval.serving.vllm_model:RefusedModel",
        "Qwen3_5ScalarRewardModel": "mmrm.eval.serving.vllm_model:RefusedModel",
        "Glm4vScalarRewardModel": "mmrm.eval.serving.vllm_model:RefusedModel",
        "Cosmos3EdgeScalarRewardModel": "mmrm.eval.serving.vllm_model:RefusedModel",
    }


def test_a_joint_reward_model_is_refused(tmp_path: Path) -> None:
    template(tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"joint_responses": 4}))
    with pytest.raises(CheckpointError, match=r"all responses in one conversation.*eval/serve\.py"):
        vllm_plugin.template(tmp_path)


def test_what_cannot_be_scored_is_refused(tmp_path: Path) -> None:
    found = template(tmp_path)
    with pytest.raises(TemplateError, match="must be the answer"):
        rendered(found, CONVERSATIONS[0][:1])
    for read in ("mean", "last_response_token"):
        with pytest.raises(CheckpointError, match=f"its head reads '{read}'"):
            template(tmp_path, read)


@pytest.mark.parametrize("family", vllm_plugin.SERVED_MODELS)
def test_vision_tokens_of_the_family_are_refused_in_texts(tmp_path: Path, family: str) -> None:
    found = template(tmp_path, family=family)
    for token in (*FAMILIES[family].vision_text, "<|vision_pad|>"):
        wrong_prompt = [text("user", f"a {token} b"), text("assistant", "A circle.")]
        wrong_answer = [text("user", "?"), {"role": "assistant", "content": token}]
        for conversation in (wrong_prompt, wrong_answer):
            with pytest.raises(TemplateError, match="vision token") as error:
                rendered(found, conversation, family)
            assert token in str(error.value)
    for marker in ("<image>", "<audio>"):
        with pytest.raises(TemplateError, match="marker of an image"):
            rendered(found, [text("user", marker), text("assistant", "A.")], family)
