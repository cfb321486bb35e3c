"""Released models that score pictures, for tests: their files and inputs as their authors make them.

The weights are small and random, in the layout of the authors' version of transformers.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

from mmrm.data.preference import Response, text
from mmrm.eval.candidates import Candidates
from mmrm.eval.judges.checkpoint import Runtime
from mmrm.eval.judges.loading import load_judge
from mmrm.eval.judges.released.config import ReleasedModel
from mmrm.eval.judges.released.models import RELEASED
from mmrm.eval.judges.released.picture_judge import PictureJudge
from mmrm.eval.judges.released.picture_model import PictureReward
from tests.models import tiny

TOKEN = "<|Reward|>"
PROMPT = "a fox {first}, on a chair"


def png(width: int, height: int, seed: int) -> bytes:
    buffer = io.BytesIO()
    tiny.picture(width, height, seed).save(buffer, "PNG")
    return buffer.getvalue()


SOURCE = png(300, 200, 1)
PICTURES = (png(640, 400, 2), png(90, 130, 3))
"""One that is made smaller, and one that is enlarged."""


def row_of(model: ReleasedModel) -> PictureReward:
    row = RELEASED[model].prompt_or_head
    assert isinstance(row, PictureReward)
    return row


def candidates_for(model: ReleasedModel, prompt: str = PROMPT) -> Candidates:
    """Return two pictures that were made of a text, or of the picture SOURCE and a text."""
    sources = (SOURCE,) * row_of(model).num_source_pictures
    responses = tuple(Response((picture,)) for picture in PICTURES)
    return Candidates("key", sources, (text("user", prompt, len(sources)),), responses, "row 1")


@dataclass(frozen=True)
class Released:
    """A released model: the files that its authors would write, and its modules."""

    judge_file: Path
    weights: Path
    backbone: Path
    stock: Any
    """The backbone as a class of transformers."""
    heads: list[nn.Sequential]


def stock_backbone(family: str) -> Any:
    """Return a random backbone whose vocabulary has one more token.

    Its images are 32 numbers wide, like the hidden states.
    """
    stock = tiny.language_model(5, family)
    stock.resize_token_embeddings(len(tiny.tokenizer(family)) + 1, mean_resizing=False)
    torch.manual_seed(6)
    nn.init.normal_(stock.get_input_embeddings().weight, std=0.5)
    return stock


def their_head() -> nn.Sequential:
    """Return a random head `ranknet`.

    TIGER-AI-Lab/EditReward edb027e, EditReward/model/qwen2_5_vl_trainer.py; hpsv3 1.0.0,
    hpsv3/model/qwen2vl_trainer.py.
    """
    head = nn.Sequential(
        nn.Linear(32, 1024),
        nn.ReLU(),
        nn.Dropout(0.05),
        nn.Linear(1024, 16),
        nn.ReLU(),
        nn.Linear(16, 2),
    )
    tiny.stir(head, 0.2)
    return head.eval()


def their_tensors(
    model: ReleasedModel, stock: Any, heads: list[nn.Sequential]
) -> dict[str, Tensor]:
    """Return the tensors of a model by the names in its authors' version of transformers."""
    tensors = {}
    for name, tensor in stock.state_dict().items():
        if model == "hpsv3":  # 4.45.2
            name = name.replace("model.visual.", "visual.")
            name = name.replace("model.language_model.", "model.")
        tensors[name] = tensor.clone()
    for prefix, head in zip(row_of(model).heads, heads, strict=True):
        for name, tensor in head.state_dict().items():
            tensors[f"{prefix}.{name}"] = tensor.clone()
    return tensors


def released(
    folder: Path, model: ReleasedModel, *, weights: str | None = None, more: str = ""
) -> Released:
    """Write a released model with its backbone, and a judge file that names both."""
    family = RELEASED[model].family
    backbone = tiny.checkpoint(folder / "backbone", family=family)
    torch.manual_seed(4)
    heads = [their_head() for _ in row_of(model).heads]
    stock = stock_backbone(family)
    tensors = their_tensors(model, stock, heads)
    weight_file = folder / "weights" / (weights or row_of(model).weight_files[0])
    weight_file.parent.mkdir()
    if weight_file.suffix == ".safetensors":
        save_file(tensors, weight_file, metadata={"format": "pt"})
    else:
        torch.save({"model": tensors}, weight_file)
    judge_file = folder / "judge.yaml"
    judge_file.write_text(
        f"type: released\nmodel: {model}\ncheckpoint: {weight_file.parent}\n"
        f"backbone: {backbone}\n{more}"
    )
    return Released(judge_file, weight_file, backbone, stock, heads)


def picture_judge(file: Path) -> PictureJudge:
    judge = load_judge(file, Runtime(torch.device("cpu"))).judge
    assert isinstance(judge, PictureJudge)
    return judge


def their_inputs(
    model: ReleasedModel, question: str, pictures: list[bytes], backbone: Path
) -> dict[str, Tensor]:
    """Return the inputs that the authors make of a question and its pictures.

    `process_vision_info` of dataset/utils.py resizes each picture to 256 x 28 x 28 pixels, and the
    processor repeats the image token. hpsv3/inference.py; EditReward/inference_edit.py.
    """
    family = RELEASED[model].family
    tokenizer = tiny.tokenizer(family)
    tokenizer = type(tokenizer).from_pretrained(backbone)
    tokenizer.add_special_tokens({"additional_special_tokens": [TOKEN]})
    images = [{"type": "image"} for _ in pictures]
    messages = [{"role": "user", "content": [*images, {"type": "text", "text": question}]}]
    written = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    resized = []
    for picture in pictures:
        image = Image.open(io.BytesIO(picture)).convert("RGB")
        height, width = smart_resize(image.height, image.width, 256 * 28 * 28)
        resized.append(image.resize((width, height), Image.Resampling.BICUBIC))
    processor_class = type(tiny.image_processor(family=family))
    processor = processor_class.from_pretrained(backbone, min_pixels=3136, max_pixels=1003520)
    pixels = processor(images=resized, return_tensors="pt")
    for grid in pixels["image_grid_thw"]:
        count = int(grid.prod()) // 4
        written = written.replace("<|image_pad|>", "<|placeholder|>" * count, 1)
    written = written.replace("<|placeholder|>", "<|image_pad|>")
    return {"input_ids": tokenizer(written, return_tensors="pt")["input_ids"], **pixels}


def smart_resize(height: int, width: int, pixels: int) -> tuple[int, int]:
    """Return the size to which the authors resize a picture: dataset/utils.py, `smart_resize`."""
    new_height = max(28, round(height / 28) * 28)
    new_width = max(28, round(width / 28) * 28)
    if new_height * new_width > pixels:
        shrink = (height * width / pixels) ** 0.5
        return int(height / shrink // 28) * 28, int(width / shrink // 28) * 28
    if new_height * new_width < pixels:
        growth = (pixels / (height * width)) ** 0.5
        return -int(-height * growth // 28) * 28, -int(-width * growth // 28) * 28
    return new_height, new_width


def their_question(prompt: str, text_prompt: str) -> str:
    """Return a question with the text of the record in the place that the authors format."""
    return prompt.replace("{text_prompt}", text_prompt)


def questions_about(
    files: Released, model: ReleasedModel, picture: bytes
) -> list[dict[str, Tensor]]:
    """Return the inputs of each question about a picture, as the authors make them."""
    sources = [SOURCE] * row_of(model).num_source_pictures
    inputs = []
    for prompt in row_of(model).prompts:
        question = their_question(prompt, PROMPT)
        inputs.append(their_inputs(model, question, [*sources, picture], files.backbone))
    return inputs
