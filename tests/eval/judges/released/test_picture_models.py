"""Released models that score pictures, on small random weights in the layout of their authors.

tests/released compares the same judges with the authors' own classes.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from torch import Tensor

from mmrm.data.errors import CheckpointError, RecordError
from mmrm.data.preference import Response, text
from mmrm.data.prompts import filled
from mmrm.eval.candidates import Candidates
from mmrm.eval.judges.checkpoint import Runtime
from mmrm.eval.judges.loading import load_judge
from mmrm.eval.judges.released.config import BACKBONES, ReleasedModel
from mmrm.eval.judges.released.models import RELEASED
from mmrm.eval.judges.released.picture_judge import PictureJudge
from mmrm.eval.judges.released.picture_model import PictureReward
from mmrm.eval.serving.service import load_served
from mmrm.eval.suite.fingerprint import judge_digest
from tests.eval.judges.released.pictures import (
    PICTURES,
    PROMPT,
    SOURCE,
    TOKEN,
    Released,
    candidates_for,
    picture_judge,
    questions_about,
    released,
    row_of,
)
from tests.models import tiny
from tests.models.exactness import assert_exact


@torch.no_grad()
def their_numbers(
    files: Released, model: ReleasedModel, picture: bytes, *, text_positions: bool = True
) -> Tensor:
    """Return the mean and the logarithm of the deviation of a picture, as the authors compute them.

    The backbone gets embeddings in place of token ids. It then counts all tokens one by one.
    """
    per_head = []
    inputs_by_question = questions_about(files, model, picture)
    for inputs, head in zip(inputs_by_question, files.heads, strict=True):
        ids = inputs["input_ids"]
        if text_positions:
            inputs["position_ids"] = torch.arange(ids.shape[1]).expand(3, 1, -1)
        is_image = (ids == tiny.tokenizer().convert_tokens_to_ids("<|image_pad|>")).long()
        hidden = files.stock.model(**inputs, mm_token_type_ids=is_image).last_hidden_state
        is_reward_token = ids == files.stock.config.text_config.vocab_size - 1
        per_head.append(head(hidden)[is_reward_token])
    return torch.stack(per_head).mean(0)[0]


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("model", "weights"),
    [
        ("hpsv3", "HPSv3.safetensors"),
        ("edit_reward", "model.pth"),
        ("edit_reward_mimo", "model.safetensors"),
    ],
)
def test_score_and_deviation_are_the_authors(
    tmp_path: Path, model: ReleasedModel, weights: str
) -> None:
    files = released(tmp_path, model, weights=weights)
    [scores] = picture_judge(files.judge_file).score_batch([candidates_for(model)])
    wanted = torch.stack([their_numbers(files, model, picture) for picture in PICTURES])
    assert_exact(scores.values, wanted[:, 0])
    assert_exact(scores.attributes["std"], wanted[:, 1].exp())
    assert abs(wanted[0, 0] - wanted[1, 0]) > 0.01
    # The positions with which the backbone was trained give another score.
    other = their_numbers(files, model, PICTURES[0], text_positions=False)
    assert abs(other[0] - wanted[0, 0]) > 1e-3


DIGESTS = {
    "hpsv3": ["d92f66262df40869"],
    "edit_reward": ["70dad6e2c5530b26", "5f34d5f9ff64c307"],
}


@pytest.mark.parametrize("model", ["hpsv3", "edit_reward", "edit_reward_mimo"])
def test_a_question_is_the_authors_word_for_word(model: ReleasedModel) -> None:
    """The digests are those of `INSTRUCTION.format(text_prompt=...) + prompt_with_special_token`."""
    contents = {"text_prompt": Response.of_text("a {fox}")}
    digests = []
    for prompt in row_of(model).prompts:
        [part] = filled(prompt, contents)
        assert part["type"] == "text"
        digests.append(hashlib.sha256(part["text"].encode()).hexdigest()[:16])
    assert digests == DIGESTS[model.removesuffix("_mimo")]


def test_pictures_of_several_prompts_share_rows(tmp_path: Path) -> None:
    """A score does not depend on the other pictures of a packed row."""
    judge = picture_judge(released(tmp_path, "edit_reward").judge_file)
    first = candidates_for("edit_reward")
    second = candidates_for("edit_reward", "another edit")
    together = judge.score_batch([first, second])
    alone = [judge.score_batch([candidates])[0] for candidates in (first, second)]
    for scores, expected in zip(together, alone, strict=True):
        assert scores.values == pytest.approx(expected.values, abs=1e-4)
    assert together[0].values != pytest.approx(together[1].values, abs=1e-4)


def test_users_give_pictures_as_responses(tmp_path: Path) -> None:
    loaded = load_judge(released(tmp_path, "hpsv3").judge_file, Runtime(torch.device("cpu")))
    responses = [[{"type": "image", "image": picture}] for picture in PICTURES]
    scores = loaded.score(PROMPT, responses)
    [expected] = picture_judge(tmp_path / "judge.yaml").score_batch([candidates_for("hpsv3")])
    assert scores == pytest.approx(expected.values, abs=1e-6)


def test_a_rank_without_work_runs_the_filler_row(tmp_path: Path) -> None:
    for model in ("hpsv3", "edit_reward"):
        judge = picture_judge(released(tmp_path / model, model).judge_file)
        assert judge.run(judge.packed.encoder.pack([]), []) == []


def test_weights_in_bf16_keep_their_dtype_and_heads_in_fp32_theirs(tmp_path: Path) -> None:
    """The authors convert the backbone to bf16, and load the heads in fp32."""
    files = released(tmp_path, "edit_reward")
    [exact] = picture_judge(files.judge_file).score_batch([candidates_for("edit_reward")])

    def to_bf16(tensors: dict[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            if "rm_head" not in name:
                tensors[name] = tensor.bfloat16()

    change_tensors(files.weights, to_bf16)
    judge = picture_judge(files.judge_file)
    assert next(judge.model.parameters()).dtype == torch.bfloat16
    heads: Any = judge.model.get_submodule("head")
    for ours, theirs in zip(heads, files.heads, strict=True):
        assert torch.equal(ours.state_dict()["0.weight"], theirs.state_dict()["0.weight"])
    [scores] = judge.score_batch([candidates_for("edit_reward")])
    assert scores.values == pytest.approx(exact.values, abs=0.1)


def test_files_of_a_hub_id_are_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = released(tmp_path, "hpsv3")
    folders = {
        "MizzenAI/HPSv3": files.weights.parent,
        "Qwen/Qwen2-VL-7B-Instruct": files.backbone,
    }
    fetched: dict[str, list[str]] = {}

    def download(name: str, allow_patterns: list[str]) -> str:
        fetched[name] = allow_patterns
        return str(folders[name])

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    judge_file = tmp_path / "hub.yaml"
    judge_file.write_text("type: released\nmodel: hpsv3\ncheckpoint: MizzenAI/HPSv3\n")
    picture_judge(judge_file)
    assert fetched == {
        "Qwen/Qwen2-VL-7B-Instruct": ["*.json", "*.jinja", "*.txt"],
        "MizzenAI/HPSv3": ["HPSv3.safetensors"],
    }


def test_it_can_be_served(tmp_path: Path) -> None:
    files = released(tmp_path, "edit_reward")
    served = load_served(files.judge_file, "pictures", Runtime(torch.device("cpu")))
    assert isinstance(served.judge, PictureJudge)


def test_a_digest_depends_on_the_files_and_not_on_their_place(tmp_path: Path) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    files = [released(folder, "hpsv3") for folder in folders]
    digest = judge_digest(files[0].judge_file)
    assert judge_digest(files[1].judge_file) == digest
    template = files[1].backbone / "chat_template.jinja"
    template.write_text(template.read_text() + " ")
    assert judge_digest(files[1].judge_file) != digest
    files[0].weights.write_bytes(files[0].weights.read_bytes()[:-4] + b"1234")
    assert judge_digest(files[0].judge_file) != digest


@pytest.mark.parametrize(
    ("sources", "response", "message"),
    [
        ((SOURCE,), Response((PICTURES[0],)), "the prompt has 1 images"),
        ((), Response.of_text("A fox."), "a response has 0 images and 6 characters of text"),
        ((), Response(PICTURES), "a response has 2 images and 0 characters of text"),
        ((), Response(("Here:", PICTURES[0])), "a response has 1 images and 5 characters of text"),
    ],
)
def test_other_forms_are_refused(
    tmp_path: Path, sources: tuple[bytes, ...], response: Response, message: str
) -> None:
    judge = picture_judge(released(tmp_path, "hpsv3").judge_file)
    prompt = (text("user", PROMPT, len(sources)),)
    candidates = Candidates("key", sources, prompt, (response,), "row 7")
    with pytest.raises(RecordError, match=f"row 7: .*{message}"):
        judge.score_batch([candidates])


def test_a_prompt_with_the_reward_token_is_refused(tmp_path: Path) -> None:
    judge = picture_judge(released(tmp_path, "hpsv3").judge_file)
    with pytest.raises(RecordError, match=r"<\|Reward\|>"):
        judge.score_batch([candidates_for("hpsv3", f"a fox {TOKEN}")])


def change_tensors(file: Path, change: Any) -> None:
    """Apply a function to the tensors of a file of `torch.save`."""
    content = torch.load(file)
    change(content["model"])
    torch.save(content, file)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("rm_heads.head_1.3.bias"), "a reward head rm_heads.head_1"),
        (lambda tensors: tensors.pop("model.visual.merger.mlp.0.bias"), "1 missing"),
        (lambda tensors: tensors.update(extra=torch.ones(2)), "1 unexpected: extra"),
        (lambda tensors: tensors.update(extra=torch.ones(2).int()), "extra is no tensor of float"),
        (lambda tensors: tensors.update(extra="text"), "extra is no tensor of float"),
        (
            lambda tensors: tensors.pop("model.language_model.embed_tokens.weight"),
            "adapters have to be merged",
        ),
        (
            lambda tensors: tensors.update(
                {"model.language_model.embed_tokens.weight": torch.ones(7, 32)}
            ),
            "the embedding has 7 rows",
        ),
    ],
)
def test_other_tensors_are_refused(tmp_path: Path, change: Any, message: str) -> None:
    files = released(tmp_path, "edit_reward")
    change_tensors(files.weights, change)
    with pytest.raises(CheckpointError, match=message):
        picture_judge(files.judge_file)


@pytest.mark.parametrize("weights", ["model.pth", "model.safetensors"])
def test_a_file_that_was_cut_off_is_refused(tmp_path: Path, weights: str) -> None:
    files = released(tmp_path, "edit_reward", weights=weights)
    content = files.weights.read_bytes()
    for length in (0, 3, len(content) // 2):
        files.weights.write_bytes(content[:length])
        with pytest.raises(CheckpointError, match="cannot be read"):
            picture_judge(files.judge_file)
    files.weights.unlink()
    with pytest.raises(CheckpointError, match=r"has no model\.pth and no model\.safetensors"):
        picture_judge(files.judge_file)


def test_another_backbone_and_sampling_are_refused(tmp_path: Path) -> None:
    files = released(tmp_path / "edit", "edit_reward")
    other = tiny.checkpoint(tmp_path / "other", family="qwen2_vl")
    content = files.judge_file.read_text()
    files.judge_file.write_text(content.replace(str(files.backbone), str(other)))
    with pytest.raises(CheckpointError, match="holds a 'qwen2_vl' model"):
        picture_judge(files.judge_file)
    files.judge_file.write_text(f"{content}temperature: 0.5\n")
    with pytest.raises(CheckpointError, match="edit_reward writes nothing"):
        picture_judge(files.judge_file)


def test_other_released_models_have_a_backbone_of_their_own(tmp_path: Path) -> None:
    checkpoint = tiny.checkpoint(tmp_path / "weights")
    file = tmp_path / "judge.yaml"
    file.write_text(
        f"type: released\nmodel: r1_reward\ncheckpoint: {checkpoint}\nbackbone: {checkpoint}\n"
    )
    with pytest.raises(CheckpointError, match="Remove `backbone`"):
        load_judge(file, Runtime(torch.device("cpu")))


def test_every_model_of_pictures_has_a_backbone() -> None:
    rows = [name for name, row in RELEASED.items() if isinstance(row.prompt_or_head, PictureReward)]
    assert sorted(rows) == sorted(BACKBONES)
