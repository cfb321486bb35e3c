"""From a path to a judge: whole checkpoints, adapters on their base, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from mmrm.data.errors import CheckpointError, RecipeError, UserError
from mmrm.data.images import decode
from mmrm.eval.benchmarks.benchmark import Location
from mmrm.eval.benchmarks.vl_rewardbench import VL_REWARDBENCH
from mmrm.eval.candidates import Example
from mmrm.eval.judges.checkpoint import Runtime, judge_type_by_class
from mmrm.eval.judges.judge_card import judge_card_of
from mmrm.eval.judges.loading import load_judge
from mmrm.eval.judges.packed_inference import Packed
from mmrm.eval.judges.registry import judge_config
from mmrm.eval.judges.scalar.config import ScalarJudgeConfig
from mmrm.eval.judges.scalar.judge import ScalarJudge
from mmrm.eval.results.run_folder import CARD
from mmrm.models.backbone import load_scalar
from mmrm.models.config import BackboneConfig, checkpoint_at
from mmrm.models.encoder import Encoder, Span
from mmrm.models.heads.score_head import ScoreHeadConfig
from mmrm.models.portable.head_columns import columns_of
from mmrm.train.recipe.sections import LoraConfig as LoraSection
from mmrm.train.runs.model import add_adapters
from tests.eval import run_folders
from tests.eval.doubles import scores_under
from tests.models import stock, tiny
from tests.models.exactness import RELATIVE
from tests.trees import image_inputs

pytestmark = pytest.mark.usefixtures("module_in_float64")

CPU = Runtime(torch.device("cpu"))
Scores = list[tuple[float, ...] | None]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("world")
    run_folders.vl_rewardbench(root / "vl", 4)
    run_folders.run_folder(root / "run", (1,), run_folders.recipe(root / "run" / "base", []))
    return root


def examples(world: Path) -> tuple[Example, ...]:
    return VL_REWARDBENCH.load(Location(location=str(world / "vl"))).examples


def judged(path: Path, world: Path) -> Scores:
    judge = load_judge(path, CPU).judge
    return [scores.values for scores in scores_under(judge, examples(world))]


def inside(model: Any, world: Path, **backbone: Any) -> Scores:
    """Return the scores that the training loop gives with `model`."""
    backbone = {
        "path": str(world / "run" / "base"),
        "dtype": "float32",
        "min_pixels": 784,
        **backbone,
    }
    made = tiny.encoder(
        **{name: value for name, value in backbone.items() if name not in ("path", "dtype")}
    )
    processor = tiny.image_processor(backbone["min_pixels"], 1003520)
    encoder = Encoder(made.tokenizer, processor, made.config, tiny.config())
    packed = Packed(encoder, CPU.device, 300)
    judge = ScalarJudge(
        model=model.eval(), packed=packed, read="end_of_turn", columns=columns_of({})
    )
    return [scores.values for scores in scores_under(judge, examples(world))]


def copied(world: Path, tmp_path: Path) -> Path:
    """Return a copy of the run, free to be broken."""
    shutil.copytree(world / "run", tmp_path / "run")
    return tmp_path / "run" / "checkpoint-1"


@pytest.mark.numerics
def test_a_checkpoint_sees_as_its_recipe_says(world: Path, tmp_path: Path) -> None:
    checkpoint = copied(world, tmp_path)
    model = load_scalar(BackboneConfig(path=str(checkpoint), dtype="float32"), fresh_head=False)
    plain = judged(checkpoint, world)
    assert plain == [pytest.approx(scores, rel=RELATIVE) for scores in inside(model, world)]
    for change in ({"system_prompt": "Look twice."}, {"min_pixels": 3136}):
        content = run_folders.recipe(checkpoint, [], **change)
        (checkpoint.parent / "recipe.yaml").write_text(json.dumps(content))
        changed = judged(checkpoint, world)
        assert changed == [
            pytest.approx(scores, rel=RELATIVE) for scores in inside(model, world, **change)
        ]
        assert changed != plain


def test_a_link_belongs_to_the_run_it_points_into(world: Path, tmp_path: Path) -> None:
    (tmp_path / "best").symlink_to(world / "run" / "checkpoint-1")
    found = judge_card_of(tmp_path / "best")
    assert found is not None
    assert (found.token_budget, found.method, found.nf4, found.autocast) == (
        300,
        "naive",
        False,
        False,
    )


def adapters(world: Path, tmp_path: Path, *, masters: bool, **backbone: Any) -> tuple[Path, Any]:
    """Return a LoRA checkpoint whose adapters and head differ from their first values, and its model."""
    content = run_folders.recipe(world / "run" / "base", [], lora=True, **backbone)
    base = BackboneConfig.model_validate({**content["backbone"]})
    model: Any = add_adapters(
        load_scalar(base, ScoreHeadConfig()),
        LoraSection(rank=4, alpha=8),
        has_head=True,
        has_master_weights=masters,
    )
    torch.manual_seed(5)
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.1)
    folder = tmp_path / "lora" / "checkpoint-1"
    model.save_pretrained(folder)
    tiny.encoder().save_pretrained(folder)
    (tmp_path / "lora" / "recipe.yaml").write_text(json.dumps(content))
    (tmp_path / "lora" / "provenance.json").write_text("[]")
    return folder, model


@pytest.mark.numerics
def test_adapters_are_judged_on_their_base_with_the_head_of_the_run(
    world: Path, tmp_path: Path
) -> None:
    folder, model = adapters(world, tmp_path, masters=False)
    found = judged(folder, world)
    assert found == [pytest.approx(scores, rel=RELATIVE) for scores in inside(model, world)]
    assert found != judged(world / "run" / "checkpoint-1", world)
    one = examples(world)[0]
    scores = load_judge(folder, CPU).score(
        list(one.prompt), [response.text for response in one.responses], one.images
    )
    assert scores == pytest.approx(found[0], rel=RELATIVE)


def test_fp32_adapters_on_a_bf16_base_lose_nothing(world: Path, tmp_path: Path) -> None:
    """As a LoRA run without DeepSpeed trains: fp32 adapters, bf16 base, autocast."""
    folder, model = adapters(world, tmp_path, masters=False, dtype="bfloat16")
    with torch.autocast("cpu", torch.bfloat16):
        expected = inside(model, world)
    assert judged(folder, world) == [pytest.approx(scores, rel=RELATIVE) for scores in expected]


def others(world: Path, folder: Path, kind: str) -> Any:
    """Write a reward model as ms-swift or LLaMA-Factory saves one; return its head, (1, H)."""
    shutil.copytree(world / "run" / "base", folder)
    tensors, head = load_file(folder / "model.safetensors"), torch.randn(1, 32)
    if kind == "ms-swift":
        tensors = {name: tensor for name, tensor in tensors.items() if name != "lm_head.weight"} | {
            "score.weight": head
        }
    else:
        value = {"v_head.summary.weight": head, "v_head.summary.bias": torch.ones(1)}
        save_file(value, folder / "value_head.safetensors", metadata={"format": "pt"})
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    settings = json.loads((folder / "config.json").read_text())
    del settings["dtype"]
    settings["torch_dtype"] = "float32"
    (folder / "config.json").write_text(
        json.dumps(settings | {"architectures": ["Qwen2_5_VLForSequenceClassification"]})
    )
    return head


@pytest.mark.numerics
@pytest.mark.parametrize("kind", ["ms-swift", "LLaMA-Factory"])
def test_a_model_of_another_trainer_is_read_at_the_newline(
    world: Path, tmp_path: Path, kind: str
) -> None:
    head = others(world, tmp_path / "theirs", kind)
    (tmp_path / "judge.yaml").write_text(f"type: scalar\ncheckpoint: {tmp_path / 'theirs'}\n")
    encoder = tiny.encoder()
    theirs = stock.backbone(
        load_scalar(BackboneConfig(path=str(world / "run" / "base"), dtype="float32")).model
    )
    wanted = []
    for example in examples(world):
        pictures = [decode(image, "r") for image in example.images]
        turns = [encoder.render((*example.prompt, response.turn)) for response in example.responses]
        found = []
        for turn in turns:
            tree = encoder.encode(pictures, [(*turn, Span("\n"))], None)
            [conversation] = tree.conversations()
            ids = torch.tensor([conversation.ids])
            images = image_inputs(tree)
            assert images
            with torch.no_grad():
                found.append(
                    float(head @ stock.hidden_states(theirs, {"input_ids": ids, **images})[0, -1])
                )
        wanted.append(pytest.approx(tuple(found), rel=RELATIVE))
    assert judged(tmp_path / "judge.yaml", world) == wanted
    (tmp_path / "judge.yaml").write_text(
        f"type: scalar\ncheckpoint: {tmp_path / 'theirs'}\nread: end_of_turn\n"
    )
    assert judged(tmp_path / "judge.yaml", world) != wanted


def test_adapters_without_their_run_or_with_a_tensor_missing_are_refused(
    world: Path, tmp_path: Path
) -> None:
    folder, _ = adapters(world, tmp_path, masters=False)
    tensors = load_file(folder / "adapter_model.safetensors")
    dropped = next(name for name in tensors if "head" in name)
    save_file(
        {name: tensor for name, tensor in tensors.items() if name != dropped},
        folder / "adapter_model.safetensors",
    )
    with pytest.raises(CheckpointError, match="1 missing"):
        load_judge(folder, CPU)
    (folder.parent / "recipe.yaml").unlink()
    with pytest.raises(
        CheckpointError,
        match=r"holds adapters, and there is no recipe.yaml.*which names their base",
    ):
        load_judge(folder, CPU)


def test_adapters_of_no_kind_are_refused(world: Path, tmp_path: Path) -> None:
    folder, _ = adapters(world, tmp_path, masters=False)
    (folder / "manifest.json").unlink(missing_ok=True)
    file = folder / "adapter_config.json"
    settings = json.loads(file.read_text())
    file.write_text(json.dumps(settings | {"peft_type": None}))
    with pytest.raises(CheckpointError, match=r"adapter_config\.json has the peft_type None"):
        load_judge(folder, CPU)


def test_a_recipe_that_cannot_be_read_is_an_error_and_not_skipped(
    world: Path, tmp_path: Path
) -> None:
    checkpoint = copied(world, tmp_path)
    for content in ("[1", "{}", '{"backbone": {"path": "x", "dtype": "int8"}}'):
        (checkpoint.parent / "recipe.yaml").write_text(content)
        with pytest.raises(
            CheckpointError, match=r"recipe.yaml is not a recipe as train/ writes it"
        ):
            load_judge(checkpoint, CPU)


def test_a_recipe_that_is_no_runs_is_left_alone(world: Path, tmp_path: Path) -> None:
    checkpoint = copied(world, tmp_path)
    (checkpoint.parent / "recipe.yaml").write_text("flour: 300 g")
    (checkpoint.parent / "provenance.json").unlink()
    assert judge_card_of(checkpoint) is None
    assert load_judge(checkpoint, CPU)


def test_broken_checkpoints_are_refused(world: Path, tmp_path: Path) -> None:
    checkpoint = copied(world, tmp_path)
    weights = (checkpoint / "model.safetensors").read_bytes()
    (checkpoint / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(CheckpointError, match="a file of weights cannot be read"):
        load_judge(checkpoint, CPU)
    (checkpoint / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="the weights cannot be read"):
        load_judge(checkpoint, CPU)
    (checkpoint / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config.json is no JSON"):
        load_judge(checkpoint, CPU)
    (checkpoint / "config.json").unlink()
    with pytest.raises(CheckpointError, match=r"there is no config\.json"):
        load_judge(checkpoint, CPU)


def test_a_run_folder_stands_for_its_best_checkpoint(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "best").symlink_to(world / "run" / "checkpoint-1")
    (tmp_path / "judge.yaml").write_text(f"type: scalar\ncheckpoint: {tmp_path}\n")
    for place in (tmp_path, tmp_path / "judge.yaml"):
        config = judge_config(place)
        assert isinstance(config, ScalarJudgeConfig)
        assert config.checkpoint == str(tmp_path / "best")
        assert (
            capsys.readouterr().err
            == f"{tmp_path} is a run folder: taking its best checkpoint, {tmp_path / 'best'}\n"
        )
    assert checkpoint_at(str(tmp_path / "best")) == str(tmp_path / "best")
    assert not capsys.readouterr().err


def test_what_is_no_judge_says_what_it_is(world: Path, tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError,
        match=r"run folder with checkpoint-1 and without a `best`.*give one of these",
    ):
        judge_config(world / "run")
    (tmp_path / "config.json").write_text('{"architectures": ["BertModel"]}')
    with pytest.raises(
        CheckpointError,
        match=r"is a 'BertModel', which cannot judge here.*checkpoints of ScalarRewardModel, ",
    ):
        judge_config(tmp_path)
    for content, said in (
        ("[1", "judge.yaml:1 .*cannot be read as YAML"),
        ("[1]", "has to be a mapping"),
        ("a: 1", "type\n.*this key is required; one of scalar, critic, "),
        (
            "type: oracle",
            'type = "oracle"\n.*should be scalar, critic, joint, generative, rubric, points, released, '
            "ensemble, endpoint or server",
        ),
        ("# a judge\ntype: critc\nsample: 8", 'judge.yaml:2  type = "critc".*did you mean critic'),
        ("type: critic\ncheckpoint: x\nsample: 8", "yaml:3  sample = 8.*did you mean samples"),
    ):
        (tmp_path / "judge.yaml").write_text(content)
        with pytest.raises(UserError, match=rf"(?s){said}"):
            judge_config(tmp_path / "judge.yaml")
    (tmp_path / "judge.yaml").write_text("type: endpoint\nurl: ftp://x\ntimeout: 3")
    said = r"(?s)judge.yaml: 3 errors.*judge.yaml:2  url = \"ftp://x\".*model.*is required.*yaml:3  timeout = 3.*no such key"
    with pytest.raises(RecipeError, match=said):
        load_judge(tmp_path / "judge.yaml", CPU)


def test_a_checkpoint_alone_without_its_processor_is_refused(world: Path, tmp_path: Path) -> None:
    checkpoint = run_folders.checkpoint(world / "run" / "base", tmp_path / "alone", seed=1)
    (checkpoint / "preprocessor_config.json").unlink()
    with pytest.raises(CheckpointError, match=r"say how it sees images \(FileNotFoundError"):
        load_judge(checkpoint, CPU)


def test_a_checkpoint_without_its_tokenizer_is_refused(world: Path, tmp_path: Path) -> None:
    checkpoint = run_folders.checkpoint(world / "run" / "base", tmp_path / "alone", seed=1)
    for damaged in ("{", "{}", "[]", ""):
        (checkpoint / "tokenizer.json").write_text(damaged)
        with pytest.raises(CheckpointError, match="tokenizer and preprocessor files"):
            load_judge(checkpoint, CPU)
    (checkpoint / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"the tokenizer is missing.*Copy"):
        load_judge(checkpoint, CPU)


def test_the_table_of_judges_holds_what_training_writes() -> None:
    assert set(judge_type_by_class().values()) == {"scalar", "critic", "generative"}
    assert judge_type_by_class()["ScalarRewardModel"] == "scalar"


def test_the_card_in_a_checkpoint_says_what_the_recipe_said(world: Path, tmp_path: Path) -> None:
    """A checkpoint with its card is judged by it, wherever it lies; older ones are judged by the recipe above."""
    checkpoint = copied(world, tmp_path)
    (checkpoint.parent / "recipe.yaml").write_text(
        json.dumps(run_folders.recipe(checkpoint, [], system_prompt="Look twice."))
    )
    found = judge_card_of(checkpoint)
    scores = judged(checkpoint, world)
    assert found is not None
    (checkpoint / CARD).write_text(found.model_dump_json(indent=1))
    (checkpoint.parent / "recipe.yaml").unlink()
    assert judge_card_of(checkpoint) == found
    assert judged(checkpoint, world) == scores
    (checkpoint / CARD).write_text("{}")
    with pytest.raises(
        CheckpointError, match=r"judge.json is not a judge card as train/ writes it"
    ):
        load_judge(checkpoint, CPU)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("config.json", "[7]"),
        ("config.json", '{"architectures": 7}'),
        ("config.json", '{"architectures": [[]]}'),
        ("preprocessor_config.json", "[7]"),
        ("tokenizer_config.json", "null"),
        ("generation_config.json", "9" * 5000),
    ],
)
def test_settings_of_another_form_are_refused(
    file: str, text: str, world: Path, tmp_path: Path
) -> None:
    checkpoint = copied(world, tmp_path)
    (checkpoint / file).write_text(text, encoding="utf-8")
    with pytest.raises(CheckpointError, match=file.replace(".", r"\.")):
        load_judge(checkpoint, CPU)


def test_a_dtype_that_is_none_is_refused(world: Path, tmp_path: Path) -> None:
    checkpoint = copied(world, tmp_path)
    settings = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    (checkpoint / "config.json").write_text(json.dumps(settings | {"dtype": 7}), encoding="utf-8")
    with pytest.raises(CheckpointError, match="dtype is '7'"):
        load_judge(checkpoint, CPU)
