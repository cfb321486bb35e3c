"""The scalar reward model: a vision-language backbone and a small head that turns hidden states into a score.

This file travels with every checkpoint as its remote code, and what it imports by a dot with it: torch, transformers and Pillow
are all it needs. Elsewhere:

    model = AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=True)
    processor = AutoProcessor.from_pretrained(folder, trust_remote_code=True)
    scores = model.score(processor, messages, responses)
"""

from __future__ import annotations

import inspect
import json
import logging
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from huggingface_hub import try_to_load_from_cache
from safetensors import safe_open
from torch import Tensor, nn
from transformers import (
    InternVLModel,
    InternVLPreTrainedModel,
    PreTrainedModel,
    Qwen2_5_VLModel,
    Qwen2_5_VLPreTrainedModel,
    Qwen2VLModel,
    Qwen2VLPreTrainedModel,
    Qwen3VLModel,
    Qwen3VLPreTrainedModel,
    VideoLlama3Model,
    VideoLlama3PreTrainedModel,
)
from transformers.modeling_outputs import SequenceClassifierOutput

from .decoding import upright_rgb
from .images import images_of, refuse_wrong_images
from .markers import MarkerError
from .processor import padded_batch  # relative, because these files travel too

RELEASED_LAYOUT = {
    r"^visual": "model.visual",
    r"^model(?!\.(language_model|visual))": "model.language_model",
    r"^score\.": "head.0.",
}
"""Names in the released Qwen2-VL and Qwen2.5-VL checkpoints, and of ms-swift's head -> names in the current classes, which pass
unchanged."""
RELEASED_TILES = {
    r"^language_model\.model": "model.language_model",
    r"^language_model\.lm_head": "lm_head",
    r"^(vision_tower|multi_modal_projector)": r"model.\1",
}
"""The same of InternVL 3, whose 3.5 has the current names."""
RELEASED_CURRENT = {r"^score\.": "head.0."}
"""The same of families that were released with the current names."""

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "none": nn.Identity,
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
}


class IncompleteCheckpointError(ValueError):
    """A checkpoint whose tensors are not exactly the model's."""


def refuse_incomplete(path: Any, info: dict[str, Any], fresh: str | None = None) -> None:
    """Raise `IncompleteCheckpointError` unless every tensor was loaded and every tensor on disk was used.

    `info` is transformers' loading report; `fresh` is the prefix of the parameters that may be newly initialised.
    """
    found = {
        "missing": [
            key for key in info["missing_keys"] if fresh is None or not key.startswith(fresh)
        ],
        "unexpected": info["unexpected_keys"],
        "of another shape": info["mismatched_keys"],
    }
    lines = [
        f"  {len(keys)} {what}: {', '.join(sorted(map(str, keys))[:5])}{' ...' if len(keys) > 5 else ''}"
        for what, keys in found.items()
        if keys
    ]
    if lines:
        raise IncompleteCheckpointError(
            f"{path} does not hold exactly this model's tensors; nothing was trained or scored with it.\n"
            + "\n".join(lines)
            + "\nA model with such gaps would run with random weights. Use a complete checkpoint "
            "(or a checkpoint of this project, whose config.json names its reward head)."
        )


FLOATING = ("F64", "F32", "F16", "BF16", "float64", "float32", "float16", "bfloat16")
"""Number formats of weights, as safetensors and as torch name them."""
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
"""Names of weights that are in one file. Weights in several files have an index `NAME.index.json`."""


def refuse_other_numbers(path: Any, files: Iterable[Path]) -> None:
    """Raise `IncompleteCheckpointError` for a tensor in `files` that does not hold floating-point numbers.

    Loading would convert integers without their scales: small weights become 0, and so do scores.
    """
    others = []
    for file in files:
        for name, dtype in _stored_dtypes(file).items():
            if dtype not in FLOATING:
                others.append(f"{name} ({dtype})")
    if not others:
        return
    shown = ", ".join(sorted(others)[:5]) + (" ..." if len(others) > 5 else "")
    raise IncompleteCheckpointError(
        f"{path} holds {len(others)} tensors that are not 16, 32 or 64 bit floating-point numbers: {shown}. Required are weights "
        "as they were trained: converted to another format they lose their scales, and scores mean nothing. Use the original "
        "checkpoint, or one whose config.json describes its quantisation."
    )


def _stored_dtypes(file: Path) -> dict[str, str]:
    """Return the number format of each tensor in a file of weights; reads no values."""
    if file.suffix == ".safetensors":
        with safe_open(file, "pt") as tensors:
            return {name: tensors.get_slice(name).get_dtype() for name in tensors.keys()}  # noqa: SIM118
    state = torch.load(file, map_location="meta", weights_only=True)
    return {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in state.items()}


def weight_files(path: Any, **hub: Any) -> list[Path]:
    """Return the files of weights that transformers loads from a folder, or from the hub's cache; none if it loads others.

    `hub` holds `revision` and `cache_dir` of a hub id.
    """

    def local(name: str) -> Path | None:
        if Path(path).is_dir():
            file = Path(path, name)
            return file if file.is_file() else None
        cached = try_to_load_from_cache(str(path), name, **hub)
        return Path(cached) if isinstance(cached, str) else None

    for name in WEIGHT_FILES:
        whole = local(name)
        index = local(f"{name}.index.json")
        if whole is not None:
            return [whole]
        if index is not None:
            shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            return [index.with_name(shard) for shard in sorted(shards)]
    return []


@contextmanager
def held_report() -> Iterator[list[logging.LogRecord]]:
    """Hold back transformers' report of what a checkpoint lacks; what is left in the list at the end is printed after all."""
    logger, held = logging.getLogger("transformers.modeling_utils"), list[logging.LogRecord]()

    def passes(record: logging.LogRecord) -> bool:
        if record.funcName != "log_state_dict_report":
            return True
        held.append(record)
        return False

    logger.addFilter(passes)
    try:
        yield held
    finally:
        logger.removeFilter(passes)
        for record in held:
            logger.handle(record)


class CompleteCheckpoint(PreTrainedModel):  # type: ignore[misc]
    """Loads a checkpoint completely or not at all, and writes it in the current key layout only.

    The second half matters on resume: what is saved in the released layout, a plain `load_state_dict` skips silently.
    """

    released_layout = RELEASED_LAYOUT
    decode = staticmethod(upright_rgb)
    """How training and evaluation decode: what `Image.open` gives becomes upright RGB, for the image processor."""

    @classmethod
    def from_pretrained(
        cls,
        path: Any,
        *args: Any,
        fresh_head: bool = False,
        output_loading_info: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Load as transformers does; with `fresh_head` the head, and nothing else, may be newly initialised.

        Raises IncompleteCheckpointError naming the tensors that are missing, unexpected, of another shape, or that hold
        integers although config.json describes no quantisation.
        """
        kwargs.setdefault("key_mapping", cls.released_layout)
        kwargs["ignore_mismatched_sizes"] = (
            True  # reported by us, with the missing ones, instead of one by one
        )
        with held_report() as held:
            model, info = super().from_pretrained(path, *args, output_loading_info=True, **kwargs)
            refuse_incomplete(path, info, "head." if fresh_head else None)
            held.clear()  # it named the fresh head and nothing else
        is_quantised = "quantization_config" in vars(model.config)
        if not is_quantised or kwargs.get("quantization_config") is not None:
            hub = {name: kwargs[name] for name in ("revision", "cache_dir") if name in kwargs}
            refuse_other_numbers(path, weight_files(path, **hub))
        return (model, info) if output_loading_info else model

    def _init_weights(self, module: nn.Module) -> None:
        """Initialise as transformers does, except that a new reward head starts at zero."""
        if isinstance(module, ScoreLinear):
            nn.init.zeros_(module.weight)
        else:
            super()._init_weights(module)

    def save_pretrained(
        self, save_directory: Any, *args: Any, save_original_format: bool = False, **kwargs: Any
    ) -> None:
        """Save as transformers does, in the current key layout whatever the layout that was loaded."""
        super().save_pretrained(
            save_directory, *args, save_original_format=save_original_format, **kwargs
        )
        if (
            self._auto_class is not None
        ):  # transformers copies our `decoding.py` and `markers.py`, which only name where these files lie
            shutil.copyfile(inspect.getfile(upright_rgb), Path(save_directory, "decoding.py"))
            shutil.copyfile(inspect.getfile(MarkerError), Path(save_directory, "markers.py"))


class Fp32Linear(nn.Linear):
    """A linear layer that computes in fp32 whatever its storage, the input or an autocast around it."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in) of any float dtype to (..., out) fp32."""
        with torch.autocast(x.device.type, enabled=False):
            bias = None if self.bias is None else self.bias.float()
            return F.linear(x.float(), self.weight.float(), bias)


class ScoreLinear(Fp32Linear):
    """The head's last layer. It starts at zero, so every score is 0 and every pair a tie before anything was learned.

    A random layer would lean to one side by luck of its seed (ours; the papers do not say how they start).
    It has no bias: a Bradley-Terry loss sees differences of scores only and would give it no gradient.
    """

    def __init__(self, features: int) -> None:
        super().__init__(features, 1, bias=False)


class RewardHead(nn.Sequential):
    """Hidden states to scores, as `config.reward_head` says: linear layers with an activation between them, in fp32.

    Dropout comes before every linear layer, as in MM-RLHF's head (arXiv 2502.10391). The first has no module of its own, so
    that parameters keep the names of older checkpoints.
    """

    def __init__(self, config: Any) -> None:
        shape, features = config.reward_head, config.text_config.hidden_size
        width = shape["width"] or features
        parts: list[nn.Module] = []
        for _ in range(shape["layers"] - 1):
            parts += [
                Fp32Linear(features, width),
                ACTIVATIONS[shape["activation"]](),
                nn.Dropout(shape["dropout"]),
            ]
            features = width
        super().__init__(*parts, ScoreLinear(features))
        self.dropout = shape["dropout"]

    def forward(self, hidden: Tensor) -> Tensor:
        """Map (..., hidden) to scores (..., 1) fp32."""
        hidden = F.dropout(hidden, self.dropout, self.training)
        for layer in self:
            hidden = layer(hidden)
        return hidden


class ScalarReward(CompleteCheckpoint):
    """Backbone and reward head. `config.reward_head` holds `layers, activation, width, dropout, read`."""

    stock: type[PreTrainedModel]
    """The backbone's class, which each family's own names."""

    _keys_to_ignore_on_load_unexpected = (
        r"^lm_head\.",
    )  # the 7B backbone brings one; a score has no use for it
    _auto_class = "AutoModelForSequenceClassification"  # so `save_pretrained` copies this file and names it in config.json

    def __init__(self, config: Any) -> None:
        config.num_labels, config.problem_type = (
            1,
            "regression",
        )  # TRL asks for the one; vLLM would squash the score without
        vars(config)["num_labels"] = 1  # transformers itself writes `id2label` alone
        super().__init__(config)
        self.model = self.stock(config)
        self.head = RewardHead(config)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Any = None,
        pixel_values: Tensor | None = None,
        image_grid_thw: Tensor | None = None,
        response_mask: Tensor | None = None,
        read_positions: Tensor | None = None,
        read_owners: Tensor | None = None,
        continuations: int = 0,
        **backbone: Any,
    ) -> Tensor | SequenceClassifierOutput:
        """Score a packed row, or a padded batch of whole conversations.

        Packed (`read_positions`, `read_owners` (R,) given; see the batch that this project packs): `input_ids` is
        (1, T); returns scores (continuations,) fp32, each the head's value of the mean hidden state of its reads.

        Padded (remote users): `input_ids` and `attention_mask` (B, T), whole conversations as the chat template writes
        them, padded on either side; `pixel_values` and `image_grid_thw` as the stock processor gives them. Returns logits
        (B, 1) fp32. A head that reads the mean needs `response_mask` (B, T), 1 on the response's own tokens. Raises
        ValueError for what cannot be scored: see `reads` and `refuse_wrong_images`.
        """
        images = {"pixel_values": pixel_values, "image_grid_thw": image_grid_thw}
        inputs = {
            **{name: given for name, given in images.items() if given is not None},
            "use_cache": False,
            **backbone,
        }
        if read_positions is None or read_owners is None:
            return SequenceClassifierOutput(
                logits=self.scores(
                    pooled(self, input_ids, attention_mask, response_mask, **inputs)
                )[:, None]
            )
        hidden = self.model(
            input_ids=input_ids, attention_mask=attention_mask, **inputs
        ).last_hidden_state[0]
        return self.scores(mean_by_owner(hidden, read_positions, read_owners, continuations))

    def scores(self, hidden: Tensor) -> Tensor:
        """Map pooled hidden states (C, hidden) to scores (C,) fp32."""
        scores: Tensor = self.head(hidden).squeeze(-1)
        return scores

    @torch.no_grad()
    def score(
        self,
        processor: Any,
        messages: Any,
        responses: Sequence[str],
        images: Iterable[Any] = (),
        batch_size: int = 8,
    ) -> list[float]:
        """Return the score of each response to one prompt, which `read_conversation` describes; higher is better.

        `processor` is the checkpoint's; a stock one with torchvision resizes images a little differently. Rows are padded, up
        to `batch_size` at a time. Raises ConversationError for what cannot be scored.
        """
        pictures, found = list(images), []
        for first in range(0, len(responses), batch_size):
            batch = padded_batch(
                self.config, processor, messages, responses[first : first + batch_size], pictures
            )
            if self.config.reward_head["read"] != "mean":
                del batch["response_mask"]
            found += (
                self(**{name: tensor.to(self.device) for name, tensor in batch.items()})
                .logits[:, 0]
                .tolist()
            )
        return found


class ScalarRewardModel(ScalarReward, Qwen2_5_VLPreTrainedModel):  # type: ignore[misc]
    """On Qwen2.5-VL; the name is that of older checkpoints."""

    stock = Qwen2_5_VLModel


class Qwen2VLScalarRewardModel(ScalarReward, Qwen2VLPreTrainedModel):  # type: ignore[misc]
    """On Qwen2-VL."""

    stock = Qwen2VLModel


class Qwen3VLScalarRewardModel(ScalarReward, Qwen3VLPreTrainedModel):  # type: ignore[misc]
    """On Qwen3-VL."""

    stock = Qwen3VLModel


class VideoLlama3ScalarRewardModel(ScalarReward, VideoLlama3PreTrainedModel):  # type: ignore[misc]
    """On VideoLLaMA3."""

    stock = VideoLlama3Model
    released_layout = RELEASED_CURRENT


class InternVLScalarRewardModel(ScalarReward, InternVLPreTrainedModel):  # type: ignore[misc]
    """On InternVL."""

    stock = InternVLModel
    released_layout = RELEASED_TILES


def mean_by_owner(hidden: Tensor, positions: Tensor, owners: Tensor, count: int) -> Tensor:
    """Mean over each owner's positions: hidden (T, H), positions and owners (R,); returns (count, H) fp32."""
    total = hidden.new_zeros(count, hidden.shape[1], dtype=torch.float32).index_add(
        0, owners, hidden[positions].float()
    )
    reads = torch.zeros(count, device=hidden.device).index_add(
        0, owners, torch.ones_like(owners, dtype=torch.float32)
    )
    return total / reads[:, None]


def reads(
    config: Any, input_ids: Tensor, mask: Tensor | None, response: Tensor | None = None
) -> Tensor:
    """Return what of each row of a padded batch the head reads, (B, T) bool.

    Raises ValueError for a row without an end of turn, or whose last end of turn is not the assistant's: the response was
    cut off or is not there. A head that reads the mean goes by `response` (B, T) instead.
    """
    read, begin, end = (
        config.reward_head["read"],
        *(config.assistant_turn[name] for name in ("begin", "end")),
    )
    if mask is None and len(input_ids) > 1:
        raise ValueError(
            "several rows need an attention_mask: without it nothing tells padding from text"
        )
    if read == "mean":
        if response is None or not response.any(1).all():
            raise ValueError(
                "this reward head reads the mean over the response: pass `response_mask`, 1 on its tokens"
            )
        return response.bool()
    real = torch.ones_like(input_ids, dtype=torch.bool) if mask is None else mask.bool()
    place = torch.arange(input_ids.shape[1], device=input_ids.device)

    def last(which: Tensor) -> Tensor:
        return torch.where(which, place, -1).amax(1, keepdim=True)

    ends = real & (input_ids == end)
    begins = torch.ones_like(ends)
    for i, token in enumerate(begin):
        begins &= input_ids.roll(-i, 1) == token
    closed = last(ends)
    wrong = (
        (last(begins & (place < closed)) <= last(ends & (place < closed)))[:, 0]
        .nonzero()[:, 0]
        .tolist()
    )
    if wrong:
        raise ValueError(
            f"rows {wrong} hold no whole answer: required is a turn of the assistant's that ends with the token {end}, and the "
            "row has no such token or ends another turn with it. A score read elsewhere means nothing: write the conversation "
            "with the tokenizer's chat template, the answer as its last turn, and do not truncate it"
        )
    found: Tensor = place == (
        last(real) if read == "last_token" else closed - int(read == "last_response_token")
    )
    return found


def pooled(
    model: Any,
    input_ids: Tensor,
    mask: Tensor | None,
    response: Tensor | None = None,
    **inputs: Any,
) -> Tensor:
    """Return the mean (B, H) fp32 of the hidden states that the head reads of a padded batch.

    Raises ValueError for what cannot be scored: see `reads` and `refuse_wrong_images`.
    """
    refuse_wrong_images(model.config, input_ids, **inputs)
    where = reads(model.config, input_ids, mask, response)
    inputs = {
        **images_of(model.config.model_type).kinds(model.config, input_ids),
        "use_cache": False,
        **inputs,
    }
    hidden = model.model(input_ids=input_ids, attention_mask=mask, **inputs).last_hidden_state
    owners, places = where.nonzero(as_tuple=True)
    return mean_by_owner(
        hidden.flatten(0, 1), owners * hidden.shape[1] + places, owners, len(hidden)
    )
