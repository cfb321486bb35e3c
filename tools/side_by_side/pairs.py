"""The same pairs and the same weights for every framework: what is trained on, and how each framework reads it."""

import io
import json
import math
import random
import shutil
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, count, islice
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, Qwen2Config

from mmrm.data.preference import Message, Preference, text, text_responses
from mmrm.data.preparation.mixing import Mixture, MixtureConfig
from mmrm.data.sources.ms_swift import MsSwiftConfig
from mmrm.data.synthetic.scenes import png
from mmrm.data.synthetic.world import ShapesGenerator
from mmrm.models.backbone import EMBEDDED

CLONE = Path(__file__).resolve().parents[2]
PAIRS = "pairs.jsonl"
SHAREGPT = "sharegpt.json"
TRL = "trl.jsonl"
TOKENS_A_WORD = 4.6
"""Of the embedded backbone's tokenizer in English prose: it was made for another, small vocabulary."""
PROMPT, RESPONSE = (38, 0.9), (131, 0.85)
"""Median and logarithmic deviation of lengths in tokens: the prompts of Multimodal RewardBench and the responses of
VL-RewardBench have these, at 4.4 characters a token."""
LONGEST = 1000
HEAD_SCALE = 0.1
"""Standard deviation of the head's first weights: small scores that are not all alike, so that a first loss tells something."""


RANKED_ANSWERS = 4
"""Answers to a prompt in the setting `ranked`; every two of them are a pair."""
PAIRS_OF_ANSWERS = RANKED_ANSWERS * (RANKED_ANSWERS - 1) // 2
QUESTIONS = 4
"""Questions about an image in the setting `questions`."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What is trained on."""

    name: str
    title: str
    side: int | None
    """Pixels of an image; None for text alone."""
    pairs_together: int = 1
    """Successive pairs with one prompt. This project trains them as one tree."""
    images_together: int = 1
    """Successive pairs whose prompts begin with one image, which this project trains as one tree."""

    @property
    def pairs_a_step(self) -> int:
        """The pairs of a step must be a multiple of this, so that no set is divided."""
        return self.pairs_together * self.images_together

    def records(self, num_pairs: int) -> list[Preference]:
        """Return `num_pairs` pairs, the same ones on every machine."""
        if self.side is None:
            return list(prose(num_pairs))
        if self.pairs_together > 1:
            return list(islice(pairs_of_ranked_answers(self.side), num_pairs))
        if self.images_together > 1:
            return list(islice(pairs_of_questions(self.side), num_pairs))
        return list(islice(shapes_pairs(self.side), num_pairs))


SETTINGS = {
    one.name: one
    for one in (
        Setting("small", "embedded world, images of 112 x 112 pixels", 112),
        Setting("large", "embedded world, images of 336 x 336 pixels", 336),
        Setting("text", "English prose, no images", None),
        Setting(
            "ranked",
            f"{RANKED_ANSWERS} ranked answers a prompt, images of 336 x 336 pixels",
            336,
            pairs_together=PAIRS_OF_ANSWERS,
        ),
        Setting(
            "questions",
            f"{QUESTIONS} questions about an image of 336 x 336 pixels",
            336,
            images_together=QUESTIONS,
        ),
    )
}


def shapes_pairs(side: int) -> Iterator[Preference]:
    """Yield pairs about scenes of the embedded world, whose images are squares of `side` pixels."""
    generator = ShapesGenerator("demo", 0, "train", text_only=0)
    for number in count():
        yield scaled(generator.item(number).preference(), side)


def pairs_of_ranked_answers(side: int) -> Iterator[Preference]:
    """Yield all pairs of RANKED_ANSWERS answers to a prompt, then those of the next prompt.

    The two answers of the prompt's own pair are ranked before answers to other questions.
    """
    pairs = shapes_pairs(side)
    for record in pairs:
        answers = [record.chosen, record.rejected]
        while len(answers) < RANKED_ANSWERS:
            other = next(pairs)
            answers += [
                answer for answer in (other.chosen, other.rejected) if answer not in answers
            ]
        for number, (better, worse) in enumerate(combinations(answers[:RANKED_ANSWERS], 2)):
            identity = f"{record.identity}:{number}"
            yield replace(record, identity=identity, responses=(better, worse))


def pairs_of_questions(side: int) -> Iterator[Preference]:
    """Yield QUESTIONS pairs with different questions about one image, then those of the next image.

    The questions were asked about scenes of their own, so that their answers are not right here.
    Speed does not depend on that.
    """
    asked: list[Preference] = []
    for record in shapes_pairs(side):
        if any(record.prompt == other.prompt for other in asked):
            continue
        asked.append(record)
        if len(asked) == QUESTIONS:
            for other in asked:
                yield replace(other, images=record.images)
            asked = []


def scaled(record: Preference, side: int) -> Preference:
    """Return `record` with its images as squares of `side` pixels."""
    images = []
    for image in record.images:
        assert isinstance(image, bytes)
        images.append(
            png(
                Image.open(io.BytesIO(image))
                .convert("RGB")
                .resize((side, side), Image.Resampling.NEAREST)
            )
        )
    return Preference(
        record.identity, record.prompt, (record.chosen, record.rejected), tuple(images)
    )


def prose(num_pairs: int) -> Iterator[Preference]:
    """Yield pairs of passages of this project's licence, whose words never change, with lengths as real pairs have them."""
    words, draw = (CLONE / "LICENSE").read_text(encoding="utf-8").split(), random.Random(0)

    def passage(median: float, deviation: float) -> str:
        tokens = min(median * math.exp(draw.gauss(0, deviation)), LONGEST)
        start = draw.randrange(len(words))
        return " ".join((words[start:] + words)[: max(2, round(tokens / TOKENS_A_WORD))])

    for number in range(num_pairs):
        yield Preference(
            f"prose:{number}",
            (text("user", passage(*PROMPT)),),
            text_responses(passage(*RESPONSE), passage(*RESPONSE)),
        )


def content(message: Message) -> str:
    """Return a turn as one text, with the mark that ms-swift and LLaMA-Factory take for the place of an image."""
    return "".join(
        part["text"] if part["type"] == "text" else "<image>" for part in message["content"]
    )


def ms_swift_row(record: Preference, images: Sequence[str]) -> dict[str, Any]:
    """Return a pair as ms-swift reads it; `images` are files."""
    turns = [{"role": turn["role"], "content": content(turn)} for turn in record.prompt]
    answer = {"role": "assistant", "content": record.chosen.text}
    return {"messages": [*turns, answer], "rejected_response": record.rejected.text} | (
        {"images": list(images)} if images else {}
    )


def sharegpt_row(record: Preference, images: Sequence[str]) -> dict[str, Any]:
    """Return a pair as LLaMA-Factory reads it."""
    names = {"user": "human", "assistant": "gpt", "system": "system"}
    turns = [{"from": names[turn["role"]], "value": content(turn)} for turn in record.prompt]
    answers = {
        key: {"from": "gpt", "value": one.text}
        for key, one in (("chosen", record.chosen), ("rejected", record.rejected))
    }
    return {"conversations": turns, **answers} | ({"images": list(images)} if images else {})


def trl_row(record: Preference) -> dict[str, Any]:
    """Return a pair of texts as TRL reads it."""
    answers = {"chosen": record.chosen.text, "rejected": record.rejected.text}
    turns = [{"role": turn["role"], "content": content(turn)} for turn in record.prompt]
    return {"prompt": turns} | {
        key: [{"role": "assistant", "content": one}] for key, one in answers.items()
    }


def write_pairs(records: Sequence[Preference], folder: Path) -> None:
    """Write `records` in every format, the images once: PAIRS (ms-swift's, which this project reads too), SHAREGPT, TRL."""
    (folder / "images").mkdir(parents=True)
    rows = []
    for number, record in enumerate(records):
        images = [
            folder / "images" / f"{number}-{place}.png" for place in range(len(record.images))
        ]
        for path, image in zip(images, record.images, strict=True):
            path.write_bytes(image if isinstance(image, bytes) else image.read_bytes())
        rows.append((record, list(map(str, images))))
    columns = {"messages": "conversations", "chosen": "chosen", "rejected": "rejected"}
    columns |= {"images": "images"} if any(images for _, images in rows) else {}
    known = {
        "pairs": {
            "file_name": SHAREGPT,
            "formatting": "sharegpt",
            "ranking": True,
            "columns": columns,
        }
    }
    write_lines(folder / PAIRS, (ms_swift_row(*row) for row in rows))
    write_lines(folder / TRL, (trl_row(record) for record, images in rows if not images))
    (folder / SHAREGPT).write_text(
        json.dumps([sharegpt_row(*row) for row in rows]), encoding="utf-8"
    )
    (folder / "dataset_info.json").write_text(json.dumps(known), encoding="utf-8")


def write_lines(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def trained_order(folder: Path, setting: Setting) -> list[Preference]:
    """Return the pairs of `folder` in the order in which this project's first epoch trains them: the others do not shuffle."""
    source = MsSwiftConfig(type="ms_swift", path=str(folder / PAIRS), images=str(folder / "images"))
    mixture = Mixture(MixtureConfig(sources=[source], cache=str(folder / "cache")))
    order = mixture.order(0, setting.pairs_together, setting.images_together)
    return [mixture[int(index)] for index in order]


def lengths(records: Sequence[Preference], weights: Path) -> str:
    """Say how long the texts are in tokens."""
    tokenizer = AutoTokenizer.from_pretrained(weights)
    prompts = [
        len(tokenizer(content(turn)).input_ids) for record in records for turn in record.prompt
    ]
    answers = [
        len(tokenizer(one.text).input_ids)
        for record in records
        for one in (record.chosen, record.rejected)
    ]
    told = (
        f"{name} of {statistics.median(found):.0f} tokens (at most {max(found)})"
        for name, found in (("prompts", prompts), ("responses", answers))
    )
    return f"{len(records)} pairs, {', '.join(told)}, images not counted"


def write_weights(folder: Path, text_folder: Path) -> None:
    """Write the embedded backbone with a head of one layer, under the names that ms-swift and LLaMA-Factory look for.

    `text_folder` receives the same language model and head as Qwen2's sequence classifier, for TRL, which trains no reward
    model of Qwen2.5-VL: on text the two compute the same.
    """
    tensors = load_file(EMBEDDED / "model.safetensors")
    config = json.loads((EMBEDDED / "config.json").read_text(encoding="utf-8"))
    language = config["text_config"]
    score = (
        torch.randn(1, language["hidden_size"], generator=torch.Generator().manual_seed(0))
        * HEAD_SCALE
    )
    shutil.copytree(EMBEDDED, folder)
    save_file(tensors | {"score.weight": score}, folder / "model.safetensors", {"format": "pt"})
    values = {"v_head.summary.weight": score, "v_head.summary.bias": torch.zeros(1)}
    save_file(values, folder / "value_head.safetensors")
    config["summary_dropout_prob"] = (
        0.0  # LLaMA-Factory's value head otherwise drops a tenth of its inputs
    )
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    text_folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(EMBEDDED / name, text_folder / name)
    prefix = "model.language_model."
    own = {
        name.replace(prefix, "model."): one
        for name, one in tensors.items()
        if name.startswith(prefix)
    }
    save_file(own | {"score.weight": score}, text_folder / "model.safetensors", {"format": "pt"})
    left = {"model_type", "rope_parameters", "dtype"}
    rope = {"rope_type": "default", "rope_theta": language["rope_parameters"]["rope_theta"]}
    kept = {name: value for name, value in language.items() if name not in left}
    Qwen2Config(
        **kept, rope_parameters=rope, num_labels=1, architectures=["Qwen2ForSequenceClassification"]
    ).save_pretrained(text_folder)
