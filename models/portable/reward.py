"""The scalar reward model: a vision-language backbone, and a small head that computes scores.

It also has what all models of this folder share: strict loading of checkpoints, the reward head,
and the reading of padded batches.

This file is saved with every checkpoint as its remote code, together with the files that it imports
relatively. They need torch, transformers and Pillow. In another project:

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
    Cosmos3EdgeModel,
    Cosmos3EdgePreTrainedModel,
    Glm4vModel,
    Glm4vPreTrainedModel,
    InternVLModel,
    InternVLPreTrainedModel,
    PreTrainedModel,
    Qwen2_5_VLModel,
    Qwen2_5_VLPreTrainedModel,
    Qwen2VLModel,
    Qwen2VLPreTrainedModel,
    Qwen3_5Model,
    Qwen3_5PreTrainedModel,
    Qwen3VLModel,
    Qwen3VLMoeModel,
    Qwen3VLMoePreTrainedModel,
    Qwen3VLPreTrainedModel,
    VideoLlama3Model,
    VideoLlama3PreTrainedModel,
)
from transformers.modeling_outputs import SequenceClassifierOutput

from .conversations import Response
from .decoding import upright_rgb
from .frame_sampling import VideoError
from .head_columns import HeadColumns, columns_of, hidden_widths
from .images import images_of, refuse_wrong_images
from .markers import MarkerError
from .orders import rotations
from .positions import mrope
from .processor import joint_batch, padded_batch  # relative, because these files travel too
from .turns import TurnRules

RELEASED_LAYOUT = {
    r"^visual": "model.visual",
    r"^model(?!\.(language_model|visual))": "model.language_model",
    r"^score\.": "head.0.",
}
"""Patterns of the names of tensors in the released Qwen2-VL and Qwen2.5-VL checkpoints, and in
ms-swift's head, and the names that they have in the current classes. No pattern matches a current
name."""
RELEASED_TILES = {
    r"^language_model\.model": "model.language_model",
    r"^language_model\.lm_head": "lm_head",
    r"^(vision_tower|multi_modal_projector)": r"model.\1",
}
"""The same for InternVL 3. InternVL 3.5 has the current names."""
RELEASED_CURRENT = {r"^score\.": "head.0."}
"""The same for families that were released with the current names."""
EXPERT_WEIGHTS = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")
"""Ends of the names of the weights of experts in Qwen3-VL."""

MULTI_TOKEN_PREDICTION = r"^mtp\."
"""Names of the tensors in released Qwen3.5 checkpoints that predict several tokens at once.
Transformers has no classes for them and does not load them. Neither scores nor texts need them."""

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "none": nn.Identity,
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
}


FLOATING = ("F64", "F32", "F16", "BF16", "float64", "float32", "float16", "bfloat16")
"""Number formats of weights, as safetensors and as torch name them."""
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
"""Names of weights that are in one file. Weights in several files have an index
`NAME.index.json`."""
MAX_NAMED = 5
"""Largest number of tensors that an error names."""


class IncompleteCheckpointError(ValueError):
    """Raised for a checkpoint whose tensors are not exactly those of the model."""


def refuse_incomplete(path: Any, info: dict[str, Any], fresh_prefix: str | None = None) -> None:
    """Raise unless every tensor of the model was loaded and every stored tensor was used.

    Args:
        path: The checkpoint, for the message.
        info: The loading report of transformers: the names of tensors under `missing_keys`,
            `unexpected_keys` and `mismatched_keys`.
        fresh_prefix: Parameters whose names begin with it may be missing and newly initialised;
            None if no parameter may.

    Raises:
        IncompleteCheckpointError: Names the tensors.
    """
    missing_keys = info["missing_keys"]
    if fresh_prefix is not None:
        missing_keys = [key for key in missing_keys if not key.startswith(fresh_prefix)]
    keys_by_fault = {
        "missing": missing_keys,
        "unexpected": info["unexpected_keys"],
        "of another shape": info["mismatched_keys"],
    }
    lines = []
    for fault, keys in keys_by_fault.items():
        if keys:
            lines.append(f"  {len(keys)} {fault}: {_first_names(map(str, keys))}")
    if not lines:
        return
    raise IncompleteCheckpointError(
        f"{path} does not hold exactly this model's tensors; nothing was trained or scored with "
        "it.\n"
        + "\n".join(lines)
        + "\nA model with such gaps would run with random weights. Use a complete checkpoint "
        "(or a checkpoint of this project, whose config.json names its reward head)."
    )


def _first_names(names: Iterable[str]) -> str:
    """Return the first names in alphabetical order, followed by dots if there are further ones."""
    ordered = sorted(names)
    listed = ", ".join(ordered[:MAX_NAMED])
    return f"{listed} ..." if len(ordered) > MAX_NAMED else listed


def refuse_other_numbers(path: Any, files: Iterable[Path]) -> None:
    """Raise unless all tensors in `files` hold floating-point numbers.

    Integers are quantised weights. Loading would convert them to floating-point numbers without
    their scales, and the model would compute meaningless scores.

    Args:
        path: The checkpoint, for the message.
        files: Its files of weights.

    Raises:
        IncompleteCheckpointError: Names the tensors of another format.
    """
    wrong_tensors = []
    for file in files:
        for name, dtype in _stored_dtypes(file).items():
            if dtype not in FLOATING:
                wrong_tensors.append(f"{name} ({dtype})")
    if not wrong_tensors:
        return
    raise IncompleteCheckpointError(
        f"{path} holds {len(wrong_tensors)} tensors that are not 16, 32 or 64 bit floating-point "
        f"numbers: {_first_names(wrong_tensors)}. Weights are required as they were trained: "
        "converted to another format they lose their scales, and scores mean nothing. Use the "
        "original checkpoint, or one whose config.json describes its quantisation."
    )


def _stored_dtypes(file: Path) -> dict[str, str]:
    """Return the number format of each tensor in a file of weights, by the tensor's name.

    Values are not read.
    """
    if file.suffix == ".safetensors":
        with safe_open(file, "pt") as tensors:
            names = tensors.keys()
            return {name: tensors.get_slice(name).get_dtype() for name in names}
    state = torch.load(file, map_location="meta", weights_only=True)
    return {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in state.items()}


def weight_files(path: Any, **hub: Any) -> list[Path]:
    """Return the files of weights from which transformers loads a checkpoint.

    The list is empty if the files have names other than those in WEIGHT_FILES.

    Args:
        path: A folder, or a hub id whose files are already in the hub's cache.
        hub: `revision` and `cache_dir` of a hub id.
    """
    for name in WEIGHT_FILES:
        single_file = _local_file(path, name, hub)
        if single_file is not None:
            return [single_file]
        index = _local_file(path, f"{name}.index.json", hub)
        if index is not None:
            shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            return [index.with_name(shard) for shard in sorted(shards)]
    return []


def _local_file(path: Any, name: str, hub: dict[str, Any]) -> Path | None:
    """Return the path of a checkpoint's file on this machine; None if there is no such file.

    Args:
        path: A folder, or a hub id whose files are in the hub's cache.
        name: Name of the file.
        hub: `revision` and `cache_dir` of a hub id.
    """
    if Path(path).is_dir():
        file = Path(path, name)
        return file if file.is_file() else None
    cached = try_to_load_from_cache(str(path), name, **hub)
    return Path(cached) if isinstance(cached, str) else None


@contextmanager
def hold_back_load_report() -> Iterator[list[logging.LogRecord]]:
    """Hold back transformers' log of missing and unexpected tensors inside the context.

    The context yields the list of the log records that were held back. The caller may remove
    records from it. The remaining ones are logged at the end.
    """
    logger = logging.getLogger("transformers.modeling_utils")
    held: list[logging.LogRecord] = []

    def hold_load_report(record: logging.LogRecord) -> bool:
        # The name of the function of transformers that logs the report.
        if record.funcName != "log_state_dict_report":
            return True
        held.append(record)
        return False

    logger.addFilter(hold_load_report)
    try:
        yield held
    finally:
        logger.removeFilter(hold_load_report)
        for record in held:
            logger.handle(record)


class CompleteCheckpoint(PreTrainedModel):  # type: ignore[misc]
    """The base of all models: loads a checkpoint completely or not at all.

    Checkpoints may name their tensors as the released ones do, or as the current classes of
    transformers do. They are saved with the current names only, because a run is resumed by
    `load_state_dict`, which silently skips tensors with other names.
    """

    released_layout = RELEASED_LAYOUT
    """Patterns of the names in the family's released checkpoints, and the current names."""
    expert_weights: tuple[str, ...] = ()
    """Ends of the names of the parameters with the weights of experts, which released checkpoints
    hold transposed."""
    decode = staticmethod(upright_rgb)
    """Turns an image from `Image.open` into upright RGB for the image processor, as in training."""

    @classmethod
    def from_pretrained(
        cls,
        path: Any,
        *args: Any,
        fresh_head: bool = False,
        tensors: dict[str, Tensor] | None = None,
        output_loading_info: bool = False,
        **kwargs: Any,
    ) -> Any:
        """Load a checkpoint as transformers does, and raise if its tensors are not the model's.

        Args:
            path: Folder or hub id. With `tensors`, the file that they come from, for messages.
            args: As in transformers.
            fresh_head: The reward head may be missing, and is then newly initialised.
            tensors: The tensors of the model by name, in place of files; `config` is then needed.
            output_loading_info: Also return the loading report.
            kwargs: As in transformers.

        Raises:
            IncompleteCheckpointError: Tensors are missing, unexpected, of another shape, or hold
                integers although config.json describes no quantisation.
        """
        kwargs.setdefault("key_mapping", cls.released_layout)
        if cls.expert_weights:
            # Imported only where it is needed: it uses parts of transformers that may change.
            from .expert_layout import register_expert_layout

            register_expert_layout(cls.config_class.model_type, cls.expert_weights)
        # Tensors of another shape are then reported below, together with the missing ones.
        kwargs["ignore_mismatched_sizes"] = True
        loaded_path = path
        if tensors is not None:
            # Transformers takes either files or tensors.
            loaded_path = None
            kwargs["state_dict"] = tensors
        with hold_back_load_report() as held_records:
            model, info = super().from_pretrained(
                loaded_path, *args, output_loading_info=True, **kwargs
            )
            refuse_incomplete(path, info, "head." if fresh_head else None)
            held_records.clear()  # the report named the fresh head and nothing else
        # A checkpoint that was saved quantised may hold integers. One that is quantised only now,
        # while it is loaded, may not.
        is_quantised = "quantization_config" in vars(model.config)
        is_quantised_now = kwargs.get("quantization_config") is not None
        has_float_files = not is_quantised or is_quantised_now
        if has_float_files and tensors is None:
            hub = {name: kwargs[name] for name in ("revision", "cache_dir") if name in kwargs}
            refuse_other_numbers(path, weight_files(path, **hub))
        return (model, info) if output_loading_info else model

    def _init_weights(self, module: nn.Module) -> None:
        """Initialise a module as transformers does, but the last layer of a head with zeros."""
        if isinstance(module, ScoreLinear):
            nn.init.zeros_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        else:
            super()._init_weights(module)

    def save_pretrained(
        self, save_directory: Any, *args: Any, save_original_format: bool = False, **kwargs: Any
    ) -> None:
        """Save as transformers does, with current names of tensors whatever names were loaded."""
        super().save_pretrained(
            save_directory, *args, save_original_format=save_original_format, **kwargs
        )
        if self._auto_class is not None:
            # Transformers copied these four files of this folder. They only import from files
            # outside of it, which are saved in their place.
            original_by_name: dict[str, Any] = {
                "decoding.py": upright_rgb,
                "frame_sampling.py": VideoError,
                "markers.py": MarkerError,
                "positions.py": mrope,
            }
            for name, imported in original_by_name.items():
                shutil.copyfile(inspect.getfile(imported), Path(save_directory, name))


class Fp32Linear(nn.Linear):
    """A linear layer that always computes in fp32, also under autocast."""

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., in) of any float dtype to (..., out) fp32."""
        with torch.autocast(x.device.type, enabled=False):
            bias = None if self.bias is None else self.bias.float()
            return F.linear(x.float(), self.weight.float(), bias)


class ScoreLinear(Fp32Linear):
    """The last layer of the head, with an output for each of the head's columns.

    It starts with zeros, so before training every score is 0 and every pair a tie. A random layer
    would prefer one response by chance. (The papers do not say how they start.) The log-variance of
    a Gaussian head starts at 0 as well, so every standard deviation starts at 1.
    """

    def __init__(self, features: int, columns: HeadColumns) -> None:
        super().__init__(features, len(columns.names), bias=columns.has_bias)


class RewardHead(nn.Sequential):
    """Linear layers with activations between them, in fp32, as `config.reward_head` describes.

    Dropout comes before every linear layer, as in MM-RLHF's head (arXiv 2502.10391). The first
    dropout has no module of its own, so that parameters keep the names of older checkpoints.
    """

    def __init__(self, config: Any) -> None:
        head_config = config.reward_head
        num_inputs = config.text_config.hidden_size
        widths = hidden_widths(head_config["layers"], head_config["width"], num_inputs)
        layers: list[nn.Module] = []
        for width in widths:
            layers.append(Fp32Linear(num_inputs, width))
            layers.append(ACTIVATIONS[head_config["activation"]]())
            layers.append(nn.Dropout(head_config["dropout"]))
            num_inputs = width
        super().__init__(*layers, ScoreLinear(num_inputs, columns_of(head_config)))
        self.dropout = head_config["dropout"]

    def forward(self, hidden: Tensor) -> Tensor:
        """Map (..., hidden) to (..., columns) fp32."""
        hidden = F.dropout(hidden, self.dropout, self.training)
        for layer in self:
            hidden = layer(hidden)
        return hidden


class ScalarReward(CompleteCheckpoint):
    """A backbone and a reward head; the base of the classes of all families.

    `config.reward_head` describes the head with the keys `layers`, `activation`, `width`, `dropout`
    and `read`, which says from which tokens' hidden states a score is computed. Its `type` says
    which columns the head computes; without this key it is a head of one score.
    """

    stock: type[PreTrainedModel]
    """Transformers' class of the backbone; the class of each family sets it."""

    # The 7B backbone has an LM head, which scores do not use.
    _keys_to_ignore_on_load_unexpected: tuple[str, ...] = (r"^lm_head\.",)
    # `save_pretrained` therefore copies this file and names it in config.json.
    _auto_class = "AutoModelForSequenceClassification"

    def __init__(self, config: Any) -> None:
        columns = columns_of(config.reward_head)
        num_columns = len(columns.names)
        config.num_labels = num_columns
        if num_columns > 1:
            config.id2label = dict(enumerate(columns.names))
            config.label2id = {name: index for index, name in enumerate(columns.names)}
        # Without a problem type, vLLM would apply a sigmoid to the score.
        config.problem_type = "regression"
        # TRL reads `num_labels` from config.json, into which transformers writes `id2label` alone.
        vars(config)["num_labels"] = num_columns
        super().__init__(config)
        self.columns = columns
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

        With `read_positions` and `read_owners` the input is a packed row of this project. The
        result is then (continuations,) fp32, or (continuations, columns) fp32 if the head computes
        several columns. They are computed from the mean of the hidden states at the read positions
        of a continuation. Without these arguments the input is a padded batch, and the result has
        the columns as logits (B, columns) fp32.

        Args:
            input_ids: (1, T) packed, or (B, T): whole conversations as the chat template writes
                them, padded on either side.
            attention_mask: The `AttentionPlan` of a packed row, or (B, T), 0 on padding.
            pixel_values: As the stock processor returns them.
            image_grid_thw: As the stock processor returns them.
            response_mask: (B, T), 1 on the response's own tokens; needed for a padded batch by a
                head that reads their mean.
            read_positions: (R,) int64, the positions in a packed row at which scores are read.
            read_owners: (R,) int64, the continuation that gets the score of each position.
            continuations: Number of continuations of a packed row.
            backbone: Further arguments of the backbone.

        Raises:
            ValueError: The padded batch cannot be scored: see `read_mask` and
                `refuse_wrong_images`.
        """
        inputs: dict[str, Any] = {}
        if pixel_values is not None:
            inputs["pixel_values"] = pixel_values
        if image_grid_thw is not None:
            inputs["image_grid_thw"] = image_grid_thw
        inputs = {**inputs, "use_cache": False, **backbone}
        if read_positions is None or read_owners is None:
            hidden = pooled(self, input_ids, attention_mask, response_mask, **inputs)
            return SequenceClassifierOutput(logits=self.head(hidden))
        output = self.model(input_ids=input_ids, attention_mask=attention_mask, **inputs)
        hidden = output.last_hidden_state[0]
        return self.scores(mean_by_owner(hidden, read_positions, read_owners, continuations))

    def scores(self, hidden: Tensor) -> Tensor:
        """Map pooled hidden states (C, hidden) to (C,) fp32, or (C, columns) for several columns."""
        columns: Tensor = self.head(hidden)
        if columns.shape[-1] == 1:
            return columns.squeeze(-1)
        return columns

    def score(
        self,
        processor: Any,
        messages: Any,
        responses: Sequence[Response],
        images: Iterable[Any] = (),
        batch_size: int = 8,
        videos: Iterable[Any] = (),
    ) -> list[float]:
        """Return the score of each response to one prompt; higher is better.

        A head of several columns has one score as well, by which it ranks responses: the weighted
        sum of its attributes, or its mean. The arguments are those of `score_columns`.

        Raises:
            ConversationError: The conversation cannot be scored.
        """
        columns = self._columns(processor, messages, responses, images, batch_size, videos)
        scores: list[float] = self.columns.ranking_scores(columns).tolist()
        return scores

    def score_columns(
        self,
        processor: Any,
        messages: Any,
        responses: Sequence[Response],
        images: Iterable[Any] = (),
        batch_size: int = 8,
        videos: Iterable[Any] = (),
    ) -> dict[str, list[float]]:
        """Return all numbers that the head computes for each response, by the name of the column.

        The names are `score`; or those of the attributes; or `mean` and `log_variance`, of which
        exp(log_variance / 2) is the standard deviation of a score.

        Args:
            processor: The processor of the checkpoint, from `AutoProcessor.from_pretrained`. A
                stock processor with torchvision resizes images a little differently.
            messages: The prompt, in one of the forms of `read_conversation`.
            responses: The responses to score: texts, or lists of parts of which some are images or
                videos.
            images: Images of the prompt that are not inside `messages`.
            batch_size: Number of conversations that are padded and computed together.
            videos: Videos of the prompt that are not inside `messages`. Frames are sampled as in
                training, with PyAV.

        Raises:
            ConversationError: The conversation cannot be scored.
        """
        columns = self._columns(processor, messages, responses, images, batch_size, videos)
        values_by_name = zip(self.columns.names, columns.unbind(-1), strict=True)
        return {name: values.tolist() for name, values in values_by_name}

    @torch.no_grad()
    def _columns(
        self,
        processor: Any,
        messages: Any,
        responses: Sequence[Response],
        images: Iterable[Any],
        batch_size: int,
        videos: Iterable[Any],
    ) -> Tensor:
        """Return the columns of the head for each response, (responses, columns) fp32.

        The arguments are those of `score_columns`.
        """
        images = list(images)
        videos = list(videos)
        if "joint_responses" in vars(self.config):
            return self._joint_columns(processor, messages, responses, images, videos)
        chunks = [torch.empty(0, len(self.columns.names))]
        for start in range(0, len(responses), batch_size):
            chunk = responses[start : start + batch_size]
            batch = padded_batch(self.config, processor, messages, chunk, images, videos)
            if self.config.reward_head["read"] != "mean":
                del batch["response_mask"]
            inputs = {name: tensor.to(self.device) for name, tensor in batch.items()}
            chunks.append(self(**inputs).logits.cpu())
        return torch.cat(chunks)

    def _joint_columns(
        self,
        processor: Any,
        messages: Any,
        responses: Sequence[Response],
        images: Sequence[Any],
        videos: Sequence[Any],
    ) -> Tensor:
        """Return the columns of a joint reward model for each response, (responses, columns) fp32.

        Such a model was trained to score all responses in one conversation, in which each sees the
        ones before it. Two responses are read in both orders, and more in several rotations of the
        given order. The columns are averaged over the orders. The arguments are those of
        `score_columns`.
        """
        num_responses = len(responses)
        sums = torch.zeros(num_responses, len(self.columns.names))
        orders = rotations(range(num_responses))
        for order in orders:
            shown = [responses[index] for index in order]
            batch, positions, owners = joint_batch(
                self.config, processor, messages, shown, images, videos
            )
            inputs = {name: tensor.to(self.device) for name, tensor in batch.items()}
            input_ids = inputs["input_ids"]
            token_kinds = images_of(self.config.model_type).token_kinds(self.config, input_ids)
            hidden = self.model(**inputs, **token_kinds, use_cache=False).last_hidden_state[0]
            read = mean_by_owner(
                hidden, positions.to(self.device), owners.to(self.device), num_responses
            )
            sums[list(order)] += self.head(read).cpu()
        return sums / max(len(orders), 1)


class ScalarRewardModel(ScalarReward, Qwen2_5_VLPreTrainedModel):  # type: ignore[misc]
    """The scalar model on Qwen2.5-VL; older checkpoints have this name, without the family."""

    stock = Qwen2_5_VLModel


class Qwen2VLScalarRewardModel(ScalarReward, Qwen2VLPreTrainedModel):  # type: ignore[misc]
    """The scalar model on Qwen2-VL."""

    stock = Qwen2VLModel


class Qwen3VLScalarRewardModel(ScalarReward, Qwen3VLPreTrainedModel):  # type: ignore[misc]
    """The scalar model on Qwen3-VL."""

    stock = Qwen3VLModel


class Qwen3VLMoeScalarRewardModel(ScalarReward, Qwen3VLMoePreTrainedModel):  # type: ignore[misc]
    """The scalar model on Qwen3-VL with experts."""

    stock = Qwen3VLMoeModel
    released_layout = RELEASED_CURRENT
    expert_weights = EXPERT_WEIGHTS


class Qwen3_5ScalarRewardModel(ScalarReward, Qwen3_5PreTrainedModel):  # type: ignore[misc]
    """The scalar model on Qwen3.5, dense."""

    stock = Qwen3_5Model
    released_layout = RELEASED_CURRENT
    _keys_to_ignore_on_load_unexpected = (
        *ScalarReward._keys_to_ignore_on_load_unexpected,
        MULTI_TOKEN_PREDICTION,
    )


class VideoLlama3ScalarRewardModel(ScalarReward, VideoLlama3PreTrainedModel):  # type: ignore[misc]
    """The scalar model on VideoLLaMA3."""

    stock = VideoLlama3Model
    released_layout = RELEASED_CURRENT


class Glm4vScalarRewardModel(ScalarReward, Glm4vPreTrainedModel):  # type: ignore[misc]
    """The scalar model on GLM-4.1V."""

    stock = Glm4vModel
    released_layout = RELEASED_CURRENT


class Cosmos3EdgeScalarRewardModel(ScalarReward, Cosmos3EdgePreTrainedModel):  # type: ignore[misc]
    """The scalar model on Cosmos3-Edge."""

    stock = Cosmos3EdgeModel
    released_layout = RELEASED_CURRENT


class InternVLScalarRewardModel(ScalarReward, InternVLPreTrainedModel):  # type: ignore[misc]
    """The scalar model on InternVL."""

    stock = InternVLModel
    released_layout = RELEASED_TILES


def mean_by_owner(hidden: Tensor, positions: Tensor, owners: Tensor, count: int) -> Tensor:
    """Return the mean hidden state over the positions of each owner, (count, H) fp32.

    An owner is a continuation of a packed row, or a row of a padded batch.

    Args:
        hidden: Hidden states, (T, H).
        positions: (R,) int64, indices into `hidden`.
        owners: (R,) int64, the owner of each position.
        count: Number of owners.
    """
    sums = hidden.new_zeros(count, hidden.shape[1], dtype=torch.float32)
    sums = sums.index_add(0, owners, hidden[positions].float())
    num_reads = torch.zeros(count, device=hidden.device)
    num_reads = num_reads.index_add(0, owners, torch.ones_like(owners, dtype=torch.float32))
    return sums / num_reads[:, None]


def read_mask(
    config: Any,
    input_ids: Tensor,
    attention_mask: Tensor | None,
    response_mask: Tensor | None = None,
) -> Tensor:
    """Return a mask of the tokens of a padded batch from which scores are computed, (B, T) bool.

    Args:
        config: The model's configuration, with `reward_head` and `assistant_turn`.
        input_ids: (B, T).
        attention_mask: (B, T), 0 on padding; None for a single row without padding.
        response_mask: (B, T), 1 on the response's own tokens; needed by a head that reads their
            mean.

    Raises:
        ValueError: A mask is missing, a row has no end of turn, or the last end of turn is not the
            assistant's: the response is missing or was cut off.
    """
    read = config.reward_head["read"]
    if attention_mask is None and len(input_ids) > 1:
        raise ValueError(
            "several rows need an attention_mask, because without it padding cannot be told from "
            "text: pass the one that the tokenizer returns"
        )
    if read == "mean":
        if response_mask is None or not response_mask.any(1).all():
            raise ValueError(
                "this reward head reads the mean over the response, but a row has no response "
                "tokens: pass `response_mask`, 1 on the response's own tokens"
            )
        return response_mask.bool()

    is_token = torch.ones_like(input_ids, dtype=torch.bool)
    if attention_mask is not None:
        is_token = attention_mask.bool()
    last_end = _last_end_of_turn(config, input_ids, is_token)
    if read == "last_token":
        read_index = _last_index(is_token)
    elif read == "last_response_token":
        read_index = last_end - 1
    else:
        read_index = last_end
    is_read: Tensor = torch.arange(input_ids.shape[1], device=input_ids.device) == read_index
    return is_read


def _last_end_of_turn(config: Any, input_ids: Tensor, is_token: Tensor) -> Tensor:
    """Return the index of the last end-of-turn token in every row, (B, 1) int64.

    In some families, the token that ends an answer also begins the user's next turn
    (`TurnRules.added_end`). There it has to be the last token of the row: behind any other such
    token, an unfinished turn follows.

    Args:
        config: The model's configuration, with `assistant_turn`.
        input_ids: (B, T).
        is_token: (B, T) bool, False on padding.

    Raises:
        ValueError: That turn is not the assistant's, or a row has no end-of-turn token.
    """
    begin_ids = config.assistant_turn["begin"]
    end_id = config.assistant_turn["end"]
    index = torch.arange(input_ids.shape[1], device=input_ids.device)
    is_end = is_token & (input_ids == end_id)
    # True where all of `begin_ids` follow one another. (Everywhere if there are none, as in a
    # checkpoint that was saved without a tokenizer.)
    is_begin = torch.ones_like(is_end)
    for offset, token in enumerate(begin_ids):
        is_begin &= input_ids.roll(-offset, 1) == token

    last_end = _last_index(is_end)
    # The last turn is the assistant's if an assistant's turn begins after the turn before it ended.
    is_before_last_end = index < last_end
    last_begin = _last_index(is_begin & is_before_last_end)
    previous_end = _last_index(is_end & is_before_last_end)
    is_invalid = (last_begin <= previous_end)[:, 0]
    added_end = TurnRules.of(config).added_end
    advice = ""
    if added_end:
        is_invalid |= (last_end < _last_index(is_token))[:, 0]
        advice = f". The template does not write {added_end!r} behind the last answer: append it"
    invalid_rows = is_invalid.nonzero()[:, 0].tolist()
    if invalid_rows:
        raise ValueError(
            f"rows {invalid_rows} hold no whole answer. The last turn must be the assistant's and "
            f"end with the token {end_id}, but a row has no such token or ends another turn with "
            "it. A score that is read elsewhere means nothing: write the conversation with the "
            "tokenizer's chat template, with the answer as its last turn, and do not truncate "
            f"it{advice}"
        )
    return last_end


def _last_index(is_marked: Tensor) -> Tensor:
    """Return the index of the last True in every row, (B, 1) int64; -1 for a row without one.

    `is_marked` is (B, T) bool.
    """
    index = torch.arange(is_marked.shape[1], device=is_marked.device)
    return torch.where(is_marked, index, -1).amax(1, keepdim=True)


def pooled(
    model: Any,
    input_ids: Tensor,
    attention_mask: Tensor | None,
    response_mask: Tensor | None = None,
    **inputs: Any,
) -> Tensor:
    """Return the hidden states of a padded batch that the reward head takes, (B, H) fp32.

    For each conversation, this is the mean hidden state of the tokens from which its score is
    computed.

    Args:
        model: A model of this folder with a reward head.
        input_ids: (B, T).
        attention_mask: As in `read_mask`.
        response_mask: As in `read_mask`.
        inputs: Further arguments of the backbone, such as images.

    Raises:
        ValueError: The batch cannot be scored: see `read_mask` and `refuse_wrong_images`.
    """
    refuse_wrong_images(model.config, input_ids, **inputs)
    is_read = read_mask(model.config, input_ids, attention_mask, response_mask)
    token_kinds = images_of(model.config.model_type).token_kinds(model.config, input_ids)
    inputs = {**token_kinds, "use_cache": False, **inputs}
    output = model.model(input_ids=input_ids, attention_mask=attention_mask, **inputs)
    hidden = output.last_hidden_state
    num_rows, length, _ = hidden.shape
    rows, columns = is_read.nonzero(as_tuple=True)
    positions = rows * length + columns  # in all rows, one after another
    return mean_by_owner(hidden.flatten(0, 1), positions, rows, num_rows)
