"""Released judges: each row sees, is asked, computes and is read as its authors' code does it, on small random weights.

What their code does is written down again here, with its repository and file; the weights lie in their key layout.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import math
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from mmrm.data.errors import CheckpointError
from mmrm.data.preference import Response, text, text_pair
from mmrm.eval.candidates import Example
from mmrm.eval.judges import writing
from mmrm.eval.judges.checkpoint import Runtime
from mmrm.eval.judges.generative.judge import GenerativeJudge
from mmrm.eval.judges.loading import LoadedJudge, load_judge
from mmrm.eval.judges.pointwise import ExpectedPointJudge, PointJudge
from mmrm.eval.judges.registry import judge_config
from mmrm.eval.judges.released import templates as released_templates
from mmrm.eval.judges.released.config import ReleasedJudgeConfig, ReleasedModel
from mmrm.eval.judges.released.models import RELEASED
from mmrm.eval.judges.released.templates import PairTemplate, PointTemplate
from mmrm.eval.protocol import ProtocolConfig
from mmrm.eval.results.result import outcomes, read_result
from mmrm.eval.run import main
from mmrm.models.encoder import Conversation
from mmrm.models.generation import Generation
from mmrm.models.packing.segments import SegmentTree
from tests.eval.doubles import JudgeOfBenchmark
from tests.models import tiny
from tests.models.exactness import assert_exact

JUDGES = sorted((Path(__file__).parents[4] / "recipes" / "judges").glob("*.yaml"))
FILES = [path for path in JUDGES if "type: released" in path.read_text(encoding="utf-8")]
WRITING = [
    name
    for name, row in RELEASED.items()
    if isinstance(row.prompt_or_head, PairTemplate | PointTemplate)
]
QUESTION, FIRST, SECOND = "What is it?", "A cat.", "Two cats."


def png(width: int, height: int) -> bytes:
    buffer = io.BytesIO()
    tiny.picture(width, height, width).save(buffer, "PNG")
    return buffer.getvalue()


PICTURE = png(900, 700)
"""Larger than R1-Reward's scripts let an image be."""
EXAMPLE = Example(
    "key",
    (PICTURE,),
    (text("user", QUESTION, 1),),
    text_pair(FIRST, SECOND),
    "row 1",
    1,
    "group",
    "source",
    {},
)


def judge_file(
    folder: Path, model: ReleasedModel, *, released: bool = True, more: str = ""
) -> Path:
    """Write a tiny checkpoint as that row's authors would, and a judge file that names it."""
    family = RELEASED[model].family
    checkpoint = tiny.checkpoint(folder / "weights", released=released, family=family)
    if model == "skywork_vl_reward":
        torch.manual_seed(1)
        head = {"v_head.summary.weight": torch.randn(1, 32), "v_head.summary.bias": torch.randn(1)}
        save_file(head, checkpoint / "value_head.safetensors", metadata={"format": "pt"})
    file = folder / "judge.yaml"
    file.write_text(
        f"type: released\nmodel: {model}\ncheckpoint: {checkpoint}\n{more}", encoding="utf-8"
    )
    return file


def loaded(file: Path) -> LoadedJudge:
    return load_judge(file, Runtime(torch.device("cpu")))


def judge_of(found: LoadedJudge, **protocol: Any) -> JudgeOfBenchmark:
    return JudgeOfBenchmark(found.judge, ProtocolConfig(**protocol))


# --- what the authors' scripts do ---


def theirs(
    messages: list[dict[str, Any]],
    weights: Path,
    family: str,
    pixels: dict[str, int],
    answer: str = "",
) -> dict[str, Any]:
    """Return the model's inputs as every script makes them of a prompt and what is written after it, or of a whole conversation.

    `processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)`, then the processor, which repeats the
    image token once for each token of the image: CodeGoat24/UnifiedReward, benchmark_evaluation/Qwen_evaluation/
    test_qwen_vlrewardbench.py; yfzhang114/r1_reward, inference/VL-Reward-Bench/r1_reward.py.
    """
    tokenizer = tiny.tokenizer(family)
    kind = type(tiny.image_processor(family=family))
    written = tokenizer.apply_chat_template(
        messages,
        tokenize=False,
        add_generation_prompt=messages[-1]["role"] == "user",
        enable_thinking=False,  # read by the template of Qwen3.5 alone
    )
    seen = kind.from_pretrained(weights, **pixels)(
        images=[Image.open(io.BytesIO(PICTURE))], return_tensors="pt"
    )
    count = int(seen["image_grid_thw"].prod()) // 4
    ids = tokenizer(
        written.replace("<|image_pad|>", "<|image_pad|>" * count) + answer, return_tensors="pt"
    )["input_ids"]
    kinds = (ids == tokenizer.convert_tokens_to_ids("<|image_pad|>")).int()
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "mm_token_type_ids": kinds,
        **seen,
    }


def their_messages(model: ReleasedModel) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Return the messages of a row's script about QUESTION, and what it tells the processor."""
    image, system = {"type": "image"}, {"role": "system", "content": "You are a helpful assistant."}
    way: Any = RELEASED[model].prompt_or_head
    if (
        model == "sophia_thinking_reward"
    ):  # kxfan2002/SophiaVL-R1, verl/workers/reward/custom.py, get_process_reward
        asked = way.text.replace("{question}", f"<image> {QUESTION}").replace("{response}", FIRST)
        return [system, {"role": "user", "content": [{"type": "text", "text": asked}, image]}], {}
    asked = (
        way.text.replace("{question}", QUESTION)
        .replace("{first}", FIRST)
        .replace("{second}", SECOND)
    )
    user = {
        "role": "user",
        "content": [image, {"type": "text", "text": asked.replace("{response}", FIRST)}],
    }
    if (
        model == "llava_critic_r1"
    ):  # si0wang/LLaVA-Critic-R1, eval_llama32v/model_vlreward_llama32v.py
        return [system, user], {}
    return [user], {"max_pixels": 1003520 // 2} if model == "r1_reward" else {}


# --- tests ---

DIGESTS = {
    "r1_reward": "11256207408cdd9c",
    "unified_reward": "eb118b8ff32a4bbc",
    "unified_reward_points": "604b3965b38eee3e",
    "unified_reward_think": "0d1e8dfad98b9cc3",
    "unified_reward_qwen3vl": "eb118b8ff32a4bbc",
    "unified_reward_think_qwen3vl": "f5c2508192b0e417",
    "unified_reward_qwen35": "eb118b8ff32a4bbc",  # assumed to be asked like those on Qwen3-VL
    "llava_critic_r1": "18933ada9f6052f3",
    "sophia_thinking_reward": "fc684e1ee37bb191",
}
"""SHA-256 of what the expression in the authors' file makes of QUESTION, FIRST and SECOND ("A dog." where it shows one)."""


@pytest.mark.parametrize("model", WRITING)
def test_a_prompt_is_the_authors_word_for_word(model: ReleasedModel) -> None:
    way: Any = RELEASED[model].prompt_or_head
    example = Example(
        "key", (), (text("user", QUESTION),), text_pair(FIRST, SECOND), "", 0, "", "", {}
    )
    if isinstance(way, PointTemplate):
        [asked] = way.ask(example, Response.of_text("A dog."))
    else:
        [asked] = way.ask(example, 0)
    assert hashlib.sha256(asked["content"][-1]["text"].encode()).hexdigest()[:16] == DIGESTS[model]  # type: ignore[typeddict-item]
    assert pickle.loads(pickle.dumps(way)).text == way.text  # loader workers get it


def encoded(judge: GenerativeJudge | PointJudge, answer: str) -> tuple[SegmentTree, SegmentTree]:
    """Return what the judge encodes of EXAMPLE, and the same with an answer whose tokens are labels."""
    encoder = judge.packed.encoder
    unit = judge.units(dataclasses.replace(EXAMPLE, presentations=((0, 1),)))[0]
    [conversation], _ = judge.layout(unit)
    tree = judge.encode(unit)
    answered = Conversation(
        (*conversation.messages, text("assistant", answer)), [PICTURE], loss=True
    )
    return tree, encoder.encode_conversations([answered], None, "row")


@pytest.mark.slow
@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("released", [True, False])
@pytest.mark.parametrize("model", WRITING)
def test_log_probabilities_of_an_answer_are_the_authors(
    tmp_path: Path, model: ReleasedModel, released: bool
) -> None:
    judge, family = (
        judge_of(loaded(judge_file(tmp_path, model, released=released))).judging,
        RELEASED[model].family,
    )
    answer = (
        "Two cats.<answer>2</answer>"  # no marks of thoughts, which Qwen3.5's template rewrites
    )
    messages, pixels = their_messages(model)
    prompt = theirs(messages, tmp_path / "weights", family, pixels)
    tree, labelled = encoded(judge, answer)
    [asked] = tree.conversations()
    assert list(asked.ids) == prompt["input_ids"][0].tolist()
    inputs = theirs(messages, tmp_path / "weights", family, pixels, f"{answer}<|im_end|>")
    stock = tiny.stock_class(family).from_pretrained(
        tmp_path / "weights", dtype=torch.float32, attn_implementation="sdpa"
    )
    length = prompt["input_ids"].shape[1]
    with torch.no_grad():
        logits = stock(**inputs).logits[0, length - 1 : -1]
        wanted = logits.log_softmax(-1).gather(1, inputs["input_ids"][0, length:, None])[:, 0]
        found = judge.model(**judge.packed.encoder.pack([labelled]).label_inputs())
    assert_exact(found, wanted)


@pytest.mark.slow
@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("model", ["unified_reward", "sophia_thinking_reward", "llava_critic_r1"])
def test_what_is_written_is_the_authors(tmp_path: Path, model: ReleasedModel) -> None:
    """`model.generate(**inputs, max_new_tokens=...)` takes the repetition penalty of the checkpoint's generation_config.json.

    vLLM's server does so too; the sampling of LLaVA-Critic-R1's script, `SamplingParams(temperature=0)`, has none.
    """
    file, family = judge_file(tmp_path, model, more="max_new_tokens: 6\n"), RELEASED[model].family
    end, image = tiny.tokenizer().convert_tokens_to_ids(["<|im_end|>", "<|image_pad|>"])
    generation = {
        "repetition_penalty": 1.3,
        "do_sample": False,
        "eos_token_id": end,
        "suppress_tokens": [image],
    }
    (tmp_path / "weights" / "generation_config.json").write_text(json.dumps(generation))
    messages, pixels = their_messages(model)
    inputs = theirs(messages, tmp_path / "weights", family, pixels)
    stock = tiny.stock_class(family).from_pretrained(
        tmp_path / "weights", dtype=torch.float32, attn_implementation="sdpa"
    )
    said = {"repetition_penalty": 1.0} if model == "llava_critic_r1" else {}
    written, other = (
        tiny.tokenizer().decode(
            stock.generate(**inputs, max_new_tokens=6, **more)[0, inputs["input_ids"].shape[1] :]
        )
        for more in (said, {"repetition_penalty": 1.3 if said else 1.0})
    )
    [verdict] = judge_of(loaded(file), order="official").judge(
        [dataclasses.replace(EXAMPLE, official_first=0)]
    )
    found = verdict.texts[0]
    assert found == written.removesuffix("<|im_end|>") != other.removesuffix("<|im_end|>")


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("released", [True, False])
def test_a_score_of_the_value_head_is_the_authors(tmp_path: Path, released: bool) -> None:
    """Skywork/Skywork-VL-Reward-7B, model card; trl, models/modeling_value_head.py: the head on the last hidden states, all fp32.

    The card writes the whole conversation, without a generation prompt, and takes `values` at the last token that is no padding.
    """
    found = loaded(judge_file(tmp_path, "skywork_vl_reward", released=released))
    stock = tiny.stock_class().from_pretrained(
        tmp_path / "weights", dtype=torch.float32, attn_implementation="sdpa"
    )
    torch.manual_seed(1)
    weight, bias = torch.randn(1, 32), torch.randn(1)
    wanted = []
    for response in (FIRST, SECOND):
        user = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": QUESTION}]}
        inputs = theirs(
            [user, {"role": "assistant", "content": response}],
            tmp_path / "weights",
            tiny.FAMILY,
            {},
        )
        with torch.no_grad():
            hidden = stock(**inputs, output_hidden_states=True, use_cache=False).hidden_states[-1]
            values = torch.nn.functional.linear(hidden, weight, bias).squeeze(-1)
        last = inputs["attention_mask"].sum(dim=-1, keepdim=True) - 1
        wanted.append(float(values.gather(dim=-1, index=last)) - float(bias))
    scores = judge_of(found).judge([EXAMPLE])[0].values
    assert_exact(scores, wanted)
    again = found.score(
        list(EXAMPLE.prompt), [response.text for response in EXAMPLE.responses], EXAMPLE.images
    )
    assert_exact(again, wanted)
    assert abs(wanted[0] - wanted[1]) > 0.01


@pytest.mark.parametrize(
    ("read", "judgement", "position"),
    [
        ("answer_tag", "<think>1 is worse</think><answer> 2 </answer>", 1),
        ("answer_tag", "<answer>1</answer>", 0),
        ("answer_tag", "<think>Response 1 is better", None),
        ("answer_tag", "<answer>1/2</answer>", None),
        ("answer_is_better", "Both see it. Answer 2 is better, as it counts.", 1),
        ("answer_is_better", "Answer 1 is better or Answer 2 is better", None),
        (
            "answer_is_better",
            "<think>Answer 2 is better at first</think>\n<answer>Answer 1 is better</answer>",
            0,
        ),
        ("answer_is_better", "<think>Answer 2 is better</think><answer>neither</answer>", None),
        ("answer_is_better", "", None),
        ("boxed", r"<think>2 …</think> \boxed{Answer 1}", 0),
        ("boxed", r"\boxed{1} no: \boxed{\text{Answer 2 is better}}", 1),
        ("boxed", "Overall Judgment: Answer 2 is better.", 1),
        ("boxed", "**Overall Judgment**: Answer 1 is better.", 0),
        ("boxed", r"\boxed{12}", None),
        ("boxed", "Answer 1 sees more.", None),
    ],
)
def test_a_judgement_of_two_responses_is_read(
    read: str, judgement: str, position: int | None
) -> None:
    assert vars(released_templates)[read](judgement) == position


@pytest.mark.parametrize(
    ("read", "judgement", "score"),
    [
        ("final_score", "1. Good.\nFinal Score: 85/100", 85.0),
        ("final_score", "Final Score: 9\nno, Final Score:\n7", 7.0),
        ("final_score", "I rate it 85.", math.nan),
        ("final_score", "Final Score: high", math.nan),
        ("thinking_score", "<answer>0.7</answer>", 0.7),
        ("thinking_score", r"\boxed{1.0}", 1.0),
        ("thinking_score", " 0.75\n", 0.75),
        ("thinking_score", "<answer>7</answer>", math.nan),
        ("thinking_score", "1. It is sound.", math.nan),
    ],
)
def test_a_score_is_read(read: str, judgement: str, score: float) -> None:
    assert vars(released_templates)[read](judgement) == pytest.approx(score, nan_ok=True)


def test_what_names_no_score_is_unparsable_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, tokenizer = loaded(judge_file(tmp_path, "unified_reward_points")), tiny.tokenizer()

    def written(
        model: Any, batch: Any, *, seeds: Sequence[str], **settings: Any
    ) -> list[Generation]:
        texts = ["Final Score: 60" if seed.endswith("/0") else "No number." for seed in seeds]
        return [
            Generation(tuple(tokenizer(one)["input_ids"]), False, torch.zeros(32)) for one in texts
        ]

    monkeypatch.setattr(writing, "generate", written)
    judge = judge_of(found)
    [verdict] = judge.judge([EXAMPLE])
    assert verdict.texts == ("Final Score: 60", "No number.")
    assert verdict.values == pytest.approx((60.0, math.nan), nan_ok=True)
    assert outcomes([EXAMPLE], [verdict], ProtocolConfig()).unparsable.tolist() == [True]
    assert "2 judgements of" in judge.notes()[1]
    ranking = found.rank(list(EXAMPLE.prompt), [FIRST, SECOND, "-"], EXAMPLE.images)
    assert ranking.values == (60.0, 0.0, 0.0)
    assert (ranking.usage.judgements, ranking.usage.unread) == (3, 2)
    assert ranking.order == [0, 1, 2]


@pytest.mark.parametrize("model", ["r1_reward", "unified_reward_points", "skywork_vl_reward"])
def test_a_judge_file_runs_on_a_benchmark(
    tmp_path: Path, model: ReleasedModel, capsys: pytest.CaptureFixture[str]
) -> None:
    more = "" if model == "skywork_vl_reward" else "max_new_tokens: 3\n"
    file = judge_file(tmp_path, model, more=more)
    main([str(file), "--benchmarks", "vl_rewardbench=embedded,limit=3"])
    result = read_result(tmp_path / "judge" / "eval" / "vl_rewardbench.json")
    assert result.micro.n == 3
    assert f"Asked and read as the row {model}" in capsys.readouterr().out
    assert result.micro.unparsable == (
        0 if model == "skywork_vl_reward" else 3
    )  # three tokens say nothing


def test_every_row_has_a_judge_file() -> None:
    configs = [judge_config(path) for path in FILES]
    models = [config.model for config in configs if isinstance(config, ReleasedJudgeConfig)]
    assert models == [path.stem for path in FILES]
    assert sorted(models) == sorted(RELEASED)


def test_a_config_knows_whether_its_model_compares() -> None:
    for config in map(judge_config, FILES):
        assert isinstance(config, ReleasedJudgeConfig)
        assert config.compares == isinstance(RELEASED[config.model].prompt_or_head, PairTemplate)


def test_a_hub_id_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = judge_file(tmp_path, "r1_reward")
    expected = loaded(file).judge
    asked: list[tuple[str, list[str]]] = []

    def download(name: str, allow_patterns: list[str]) -> str:
        asked.append((name, allow_patterns))
        return str(tmp_path / "weights")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    file.write_text("type: released\nmodel: r1_reward\ncheckpoint: yifanzhang114/R1-Reward\n")
    found = loaded(file).judge
    patterns = ["*.safetensors", "*.json", "*.jinja", "*.txt", "complete"]
    assert asked == [("yifanzhang114/R1-Reward", patterns)]
    assert found.encode.encoder.config == expected.encode.encoder.config  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("model", "more", "message"),
    [
        ("skywork_vl_reward", "temperature: 1.0\n", "skywork_vl_reward writes nothing"),
        ("skywork_vl_reward", "comparisons: sorted\n", "compares no responses"),
        ("sophia_thinking_reward", "reading: expected\n", "possible for unified_reward_points"),
        (
            "unified_reward_qwen3vl",
            "",
            "holds a 'qwen2_5_vl' model; `model: unified_reward_qwen3vl` is asked of a whole 'qwen3_vl'",
        ),
    ],
)
def test_what_does_not_fit_is_refused(
    tmp_path: Path, model: ReleasedModel, more: str, message: str
) -> None:
    file = judge_file(tmp_path, "skywork_vl_reward")
    file.write_text(f"type: released\nmodel: {model}\ncheckpoint: {tmp_path / 'weights'}\n{more}")
    with pytest.raises(CheckpointError, match=message):
        loaded(file)


def test_the_expected_score_is_read_in_the_same_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lies in 0 to 100 and is read after the words that the authors' reader looks for."""
    file = judge_file(tmp_path, "unified_reward_points", more="reading: expected\n")
    judging: Any = loaded(file).judge
    assert isinstance(judging, ExpectedPointJudge)
    assert not judging.at_once
    tokenizer = judging.packed.encoder.tokenizer
    text = "It is blue.\nFinal Score: 40"
    ids = tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
    written = Generation(ids, truncated=False, end_hidden=torch.empty(0))
    monkeypatch.setattr(
        ExpectedPointJudge, "judgements", lambda judge, batch, units: [written] * len(units)
    )
    scores = loaded(file).rank("What?", ["a", "b"])
    assert scores.texts == (text, text)
    assert 0 < min(scores.values) < max(scores.values) < 100
    assert scores.usage.unread == 0
    file.write_text(file.read_text().replace("reading: expected\n", ""))
    assert type(loaded(file).judge) is PointJudge


def test_a_head_that_is_not_there_is_refused(tmp_path: Path) -> None:
    file = judge_file(tmp_path, "skywork_vl_reward")
    (tmp_path / "weights" / "value_head.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"1 missing: head\.0\.weight"):
        loaded(file)


def test_a_judge_that_compares_is_asked_once_when_greedy_and_is_no_member(tmp_path: Path) -> None:
    file = judge_file(tmp_path, "r1_reward")
    with pytest.raises(CheckpointError, match="3 greedy votes are all alike"):
        judge_of(loaded(file), votes=3)
    both = tmp_path / "both.yaml"
    both.write_text(f"type: ensemble\nmembers: [{file}, {file}]\n")
    with pytest.raises(CheckpointError, match="compares responses and gives no scores"):
        loaded(both)
