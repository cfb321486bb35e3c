"""Joint reward models as judges: scores at each read, orders, limits, files, the command and the server."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mmrm.data.errors import CheckpointError, RecordError
from mmrm.data.preference import Message
from mmrm.eval.benchmarks.preference_folder import PREFERENCE_FOLDER
from mmrm.eval.benchmarks.registry import BenchmarkConfig
from mmrm.eval.candidates import Candidates, Scores
from mmrm.eval.judges.checkpoint import Runtime
from mmrm.eval.judges.joint.judge import JointJudge
from mmrm.eval.judges.judge_card import JudgeCard, judge_card
from mmrm.eval.judges.loading import load_judge
from mmrm.eval.judges.messages import candidates_of
from mmrm.eval.judges.registry import judge_config
from mmrm.eval.judges.scalar.judge import ScalarJudge
from mmrm.eval.protocol import ProtocolConfig
from mmrm.eval.results.result import read_result
from mmrm.eval.score import main as score_file
from mmrm.eval.suite.suite import Suite
from mmrm.models.encoder import Conversation
from mmrm.models.portable.orders import rotations
from mmrm.models.portable.processor import RewardProcessor
from mmrm.models.portable.reward import ScalarReward
from tests.eval.doubles import scores_under
from tests.eval.judges.joint.make import joint_checkpoint
from tests.eval.make import example
from tests.models import stock, tiny
from tests.models.exactness import assert_exact, float64

pytestmark = pytest.mark.usefixtures("module_in_float64")

RESPONSES = ["A red square.", "Blue", "Yes, it is a picture of a circle."]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return joint_checkpoint(tmp_path_factory.mktemp("end_of_turn"))


@pytest.fixture(scope="module")
def judge(folder: Path) -> JointJudge:
    return loaded(folder)


def loaded(path: Path, budget: int | None = None) -> JointJudge:
    judge: Any = load_judge(path, Runtime(CPU, budget)).judge
    assert isinstance(judge, JointJudge)
    return judge


def asked(responses: list[str], pictures: int = 1) -> Candidates:
    images = [tiny.picture(60 + 30 * number, 80, number) for number in range(pictures)]
    return candidates_of("What is in it?", responses, images)


def conversation(candidates: Candidates, order: tuple[int, ...]) -> list[Message]:
    answers = [candidates.responses[index].turn for index in order]
    return [*candidates.prompt, *answers]


def stock_scores(model: ScalarReward, turns: list[Message], pictures: int, count: int) -> Tensor:
    """Return the scores at the last `count` ends of turns, of the stock model and the written-out head."""
    images = [tiny.picture(60 + 30 * number, 80, number) for number in range(pictures)]
    inputs = stock.padded_inputs([(images, [tiny.encoder().render(turns)])])
    hidden = stock.hidden_states(stock.backbone(model.model), inputs)[0]
    end_id = tiny.tokenizer().convert_tokens_to_ids("<|im_end|>")
    ends = (inputs["input_ids"][0] == end_id).nonzero()[-count:, 0]
    first, bias, second = model.head.parameters()
    return F.linear(F.silu(F.linear(hidden[ends], first, bias)), second)[:, 0]


@pytest.mark.numerics
@pytest.mark.parametrize("pictures", [0, 2])
def test_scores_are_the_stock_models_at_each_read_averaged_over_the_orders(
    judge: JointJudge, pictures: int
) -> None:
    candidates = asked(RESPONSES, pictures)
    found = judge.score_batch([candidates])[0].values
    orders = judge.orders_of(candidates)
    assert len(orders) == 3
    sums = [0.0] * 3
    model: Any = judge.model
    by_order = []
    for order in orders:
        scores = stock_scores(model, conversation(candidates, order), pictures, 3).tolist()
        by_order.append([scores[order.index(index)] for index in range(3)])
        for index in range(3):
            sums[index] += by_order[-1][index]
    assert by_order[0] != pytest.approx(by_order[1], abs=1e-3)  # the order matters
    assert_exact(found, [total / 3 for total in sums])


@pytest.mark.numerics
@pytest.mark.parametrize("read", ["end_of_turn", "mean"])
def test_a_later_response_does_not_change_an_earlier_score(tmp_path: Path, read: Any) -> None:
    judge = loaded(joint_checkpoint(tmp_path, read))
    encoder = judge.packed.encoder

    def scores(last: str) -> list[float]:
        candidates = asked([*RESPONSES[:2], last])
        messages = conversation(candidates, (0, 1, 2))
        turns = Conversation(messages, candidates.images)
        tree = encoder.encode_joint(turns, 3, judge.read, "a record")
        values: list[float] = judge.model(**encoder.pack([tree]).score_inputs()).tolist()
        return values

    short = scores("No.")
    long = scores("Yes, and it is large and blue.")
    assert_exact(short[:2], long[:2])
    assert abs(short[2] - long[2]) > 1e-3


@given(st.integers(1, 9), st.integers(1, 12))
def test_with_enough_orders_each_response_is_once_in_every_place(count: int, most: int) -> None:
    order = list(range(count))
    random.Random(count).shuffle(order)
    found = rotations(order, most)
    assert len(found) == len(set(found)) == min(count, most)
    for place in range(count):
        shown = [one[place] for one in found]
        assert len(set(shown)) == len(shown)


def shown_orders(judge: JointJudge, protocol: ProtocolConfig, better: Any) -> list[Any]:
    """Return the orders in which a judge under a protocol reads the responses of a row."""
    from mmrm.eval.protocol import with_presentations

    row = with_presentations([example("a", better)], protocol)
    benchmark_judge: Any = judge.under(protocol, PREFERENCE_FOLDER)
    return [unit.shown for unit in benchmark_judge.units(row[0])]


def test_a_protocol_decides_the_orders_of_two_responses(judge: JointJudge) -> None:
    assert shown_orders(judge, ProtocolConfig(), 0) == [(0, 1), (1, 0)]
    assert shown_orders(judge, ProtocolConfig(votes=3), 0) == [(0, 1), (1, 0)]
    assert shown_orders(judge, ProtocolConfig(order="winner_first", votes=2), 1) == [(1, 0)]


def test_other_orders_are_drawn_for_each_prompt_from_the_seed(judge: JointJudge) -> None:
    many = [asked([f"{number} {word}" for word in "abcd"], 0) for number in range(20)]
    orders = [judge.orders_of(candidates) for candidates in many]
    assert orders == [judge.orders_of(candidates) for candidates in many]
    assert len({found[0] for found in orders}) > 5
    other_seed = replace(judge, seed=1)
    assert orders != [other_seed.orders_of(candidates) for candidates in many]
    benchmark_judge: Any = judge.under(ProtocolConfig(seed=1), PREFERENCE_FOLDER)
    assert benchmark_judge.orders_of(many[0]) == other_seed.orders_of(many[0])
    assert len(replace(judge, orders=2).orders_of(many[0])) == 2
    assert judge.orders_of(asked(["a"], 0)) == [(0,)]
    assert sorted(judge.orders_of(asked(["a", "b"], 0))) == [(0, 1), (1, 0)]


@pytest.mark.numerics
def test_scores_do_not_depend_on_the_neighbours_and_the_budget(
    folder: Path, judge: JointJudge
) -> None:
    batch = [asked(RESPONSES, number % 3) for number in range(4)] + [asked(["only"], 1)]
    together = [scores.values for scores in judge.score_batch(batch)]
    small = loaded(folder, budget=160)
    for candidates, values in zip(batch, together, strict=True):
        assert_exact(small.score_batch([candidates])[0].values, values)


def test_more_responses_than_in_training_are_named(
    judge: JointJudge, capsys: pytest.CaptureFixture[str]
) -> None:
    four = asked([*RESPONSES, "No."], 0)
    judge.score_batch([four])
    judge.score_batch([four])
    printed = capsys.readouterr().err
    assert printed.count("4 responses are scored in one conversation, and the checkpoint was") == 1
    assert "trained on at most 3" in printed
    benchmark_judge = judge.under(ProtocolConfig(), PREFERENCE_FOLDER)
    scores = benchmark_judge.score_batch([four, asked(RESPONSES, 0)])
    assert capsys.readouterr().err == ""
    notes = benchmark_judge.notes(scores)
    assert "1 of 2 rows have more than 3 responses, up to 4." in notes[-1]
    assert len(benchmark_judge.notes(scores[1:])) == len(notes) - 1


def test_more_than_a_row_holds_is_an_error_except_in_a_benchmark(
    folder: Path, tmp_path: Path
) -> None:
    small = loaded(folder, budget=100)
    long = asked(["red square " * 20, "blue circle " * 20], 0)
    with pytest.raises(RecordError, match=r"all 2 responses takes .* a row holds 100.*--token-bud"):
        small.score_batch([long])
    alone = asked(["red square " * 40], 0)
    assert len(small.score_batch([alone])[0].values) == 1  # one response cannot be divided
    row = example("a", responses=(long.responses[0].text, long.responses[1].text))
    assert len(scores_under(small, [row])[0].values) == 2


def test_a_checkpoint_names_its_kind_of_judge(folder: Path, tmp_path: Path) -> None:
    assert json.loads((folder / "config.json").read_text())["joint_responses"] == 3
    assert judge_config(folder).type == "joint"
    assert loaded(folder).most_trained == 3
    file = tmp_path / "joint.yaml"
    file.write_text(f"type: joint\ncheckpoint: {folder}\norders: 1\nseed: 5\n")
    found = loaded(file)
    assert (found.orders, found.seed) == (1, 5)


def test_no_other_kind_of_judge_loads_the_checkpoint(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "judge.yaml"
    # A head of one layer, as the kind of judge for other trainers' checkpoints expects it.
    linear = joint_checkpoint(tmp_path, layers=1)
    file.write_text(f"type: scalar\ncheckpoint: {linear}\nread: end_of_turn\n")
    with pytest.raises(CheckpointError, match="to score all responses in one conversation"):
        load_judge(file, Runtime(CPU))
    settings = json.loads((folder / "config.json").read_text())
    del settings["joint_responses"]
    scalar = tmp_path / "scalar"
    scalar.mkdir()
    for path in folder.iterdir():
        if path.is_file() and path.name != "config.json":
            (scalar / path.name).write_bytes(path.read_bytes())
    (scalar / "config.json").write_text(json.dumps(settings))
    assert judge_config(scalar).type == "scalar"
    file.write_text(f"type: joint\ncheckpoint: {scalar}\n")
    with pytest.raises(CheckpointError, match="is a 'scalar' judge, which was not trained"):
        load_judge(file, Runtime(CPU))


RECIPE: dict[str, Any] = {
    "backbone": {"path": "tiny"},
    "method": {"type": "naive"},
    "evaluation": {"benchmarks": [], "protocol": {}, "baselines": True},
    "optim": {"token_budget": "auto", "lora": None},
    "deepspeed": "none",
    "workers": 0,
}


def test_a_card_has_the_number_of_responses_only_if_it_is_used() -> None:
    recipe = {**RECIPE, "backbone": {"path": "tiny", "dtype": "float32"}}
    plain = judge_card(recipe, "scalar", None)
    assert "joint_responses" not in plain.model_dump_json()
    joint = judge_card(recipe, "joint", None, 4)
    assert JudgeCard.model_validate_json(joint.model_dump_json()) == joint
    assert json.loads(joint.model_dump_json())["joint_responses"] == 4


@pytest.mark.numerics
@pytest.mark.parametrize("read", ["end_of_turn", "mean"])
def test_the_remote_code_scores_all_responses_together(tmp_path: Path, read: Any) -> None:
    judge = loaded(joint_checkpoint(tmp_path, read))
    model: Any = judge.model
    processor = RewardProcessor(tiny.image_processor(), tiny.tokenizer())
    pictures = [tiny.picture(60 + 30 * number, 80, number) for number in range(2)]
    # Both orders of two responses, as the judge reads them.
    wanted = judge.score_batch([asked(RESPONSES[:2], 2)])[0]
    found = model.score(processor, "What is in it?", RESPONSES[:2], images=pictures)
    assert_exact(found, wanted.values)
    # The rotations of the given order of three.
    candidates = asked(RESPONSES, 2)
    by_order: list[list[float]] = []
    for order in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
        turns = Conversation(conversation(candidates, order), candidates.images)
        tree = judge.packed.encoder.encode_joint(turns, 3, judge.read, "a record")
        values = model(**judge.packed.encoder.pack([tree]).score_inputs()).tolist()
        by_order.append([values[order.index(index)] for index in range(3)])
    means = [fmean(values) for values in zip(*by_order, strict=True)]
    assert_exact(model.score(processor, "What is in it?", RESPONSES, images=pictures), means)


@pytest.mark.parametrize(
    "family",
    ["qwen2_vl", "qwen3_vl", "qwen3_vl_moe", "internvl", "video_llama_3", "glm4v", "cosmos3_edge"],
)
@pytest.mark.numerics
def test_every_family_scores_together(tmp_path: Path, family: str) -> None:
    judge = loaded(joint_checkpoint(tmp_path, family=family))
    processor = RewardProcessor(tiny.image_processor(family=family), tiny.tokenizer(family))
    model: Any = judge.model
    wanted = judge.score_batch([asked(RESPONSES[:2], 1)])[0]
    pictures = [tiny.picture(60, 80, 0)]
    assert_exact(
        model.score(processor, "What is in it?", RESPONSES[:2], images=pictures), wanted.values
    )


def test_a_file_is_scored_record_by_record(folder: Path, tmp_path: Path) -> None:
    rows = [
        {"prompt": "What is in it?", "responses": RESPONSES},
        {"prompt": "What is in it?", "responses": ["red " * 80, "blue " * 80]},
        {"prompt": "What is in it?", "responses": RESPONSES[:2]},
    ]
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "out.jsonl"
    score_file([str(folder), str(source), str(out), "--token-budget", "250"])
    found = [json.loads(line) for line in out.read_text().splitlines()]
    judge = loaded(folder)
    wanted: list[Scores] = judge.score_batch([asked(RESPONSES, 0), asked(RESPONSES[:2], 0)])
    assert [len(row["scores"]) for row in found] == [3, 2]
    assert_exact(found[1]["scores"], wanted[1].values)
    errors = (tmp_path / "out.jsonl.errors.jsonl").read_text()
    assert "raise --token-budget" in errors


def test_a_result_says_that_responses_were_scored_together(
    judge: JointJudge, tmp_path: Path
) -> None:
    rows = [
        {"prompt": f"What is in {number}?", "chosen": RESPONSES[0], "rejected": RESPONSES[1]}
        for number in range(3)
    ]
    source = tmp_path / "pairs.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    benchmark = BenchmarkConfig(name="preference_folder", location=str(source))
    suite = Suite.load([benchmark], ProtocolConfig())
    together = suite.evaluate("preference_folder", judge, tmp_path / "joint", with_notes=True)
    description = together.result.description
    assert description.startswith("all responses scored together (two responses: both orders), ")
    assert any("read in one conversation" in note for note in together.result.notes)
    stored = read_result(tmp_path / "joint" / "preference_folder.json")
    assert stored == together.result
    assert stored.joint
    model: Any = judge.model
    alone = ScalarJudge(model=model, packed=judge.packed, read=judge.read, columns=model.columns)
    result = suite.evaluate("preference_folder", alone, tmp_path / "alone").result
    assert result.description.startswith("each response scored by itself, ")
    assert "joint" not in json.loads((tmp_path / "alone" / "preference_folder.json").read_text())


@pytest.mark.slow
def test_a_server_gives_the_judges_scores(folder: Path) -> None:
    pytest.importorskip("fastapi", reason="the extra `serve` is not installed")
    from mmrm.eval.serving.service import load_served
    from tests.eval.serving.client import serving

    groups = [
        {"messages": "What is in it?", "responses": RESPONSES},
        {"messages": "What is in it?", "responses": RESPONSES[:2]},
        {"messages": "What is in it?", "responses": ["red " * 300, "blue " * 300]},
    ]
    answers: list[Any] = []

    async def use(client: Any, service: Any) -> None:
        answer = await client.post("/v1/rewards", content=json.dumps({"groups": groups}))
        answers.append(answer.json())

    with float64():
        to_serve = load_served(folder, "joint", Runtime(CPU, 500))
        serving(to_serve, use)
    found = answers[0]["groups"]
    judge = loaded(folder)
    # A server gives a group the key of its own content, as `candidates_of` does.
    wanted = judge.score_batch([asked(RESPONSES, 0), asked(RESPONSES[:2], 0)])
    for group, scores in zip(found[:2], wanted, strict=True):
        assert_exact(group["scores"], scores.values)
    assert "error" in found[2]
