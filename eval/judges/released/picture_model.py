"""Released reward models that score a picture: how their files become a model and an encoder.

They are Qwen2-VL or Qwen2.5-VL with one or more reward heads. Their authors publish a file of
tensors. config.json, tokenizer and image processor are those of the backbone that they trained,
with one more special token, at which the scores are read.
"""

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from mmrm.data.errors import CheckpointError
from mmrm.models.backbone import load_encoder, load_scalar_from_tensors
from mmrm.models.config import BackboneConfig
from mmrm.models.encoder import Encoder
from mmrm.models.heads.gaussian_head import GaussianHeadConfig
from mmrm.models.portable.reward import (
    IncompleteCheckpointError,
    RewardHead,
    ScalarReward,
)

REWARD_TOKEN = "<|Reward|>"
"""The special token that the authors add to the vocabulary, and at which scores are read."""
PIXELS = 256 * 28 * 28
"""Every picture is made this large, smaller ones too, so that it has about 256 tokens."""
HEAD = GaussianHeadConfig(
    type="gaussian", layers=3, activation="relu", width=[1024, 16], read="last_token"
)
"""The authors' head `ranknet` with its default sizes: a mean and a logarithm of the deviation. Our
conversations end with the reward token, which makes it the last one."""
HEAD_LAYERS = {"0": "0", "3": "3", "5": "6"}
"""The linear layers of the head by their index in the authors' `nn.Sequential`, and in ours, which
also has a dropout after the second activation."""

EMBEDDING_NAMES = ("model.embed_tokens.weight", "model.language_model.embed_tokens.weight")
"""Names of the embedding of the vocabulary, in older and in newer versions of transformers."""
UNREADABLE = (
    OSError,
    ValueError,
    RuntimeError,
    EOFError,
    LookupError,
    SafetensorError,
    pickle.UnpicklingError,
)
"""Errors of `load_file` and `torch.load` for a damaged file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureReward:
    """A released reward model that scores a picture, with the settings of its authors' script."""

    weight_files: tuple[str, ...]
    """Names of the file of tensors, in the order in which the authors' script looks for them."""
    prompts: tuple[str, ...]
    """The question about the picture for each head, with `{text_prompt}` and the reward token."""
    heads: tuple[str, ...]
    """The beginning of the names of each head's tensors in the file. The numbers of a picture are
    the means of all heads' numbers, each read at the end of the head's own question."""
    num_source_pictures: int
    """Number of images of the prompt: 1 for a model of edits, which sees the picture before the
    edit, and 0 for a model of pictures that are made of a text."""


class HeadsSideBySide(nn.ModuleList):
    """Several reward heads on the same hidden states."""

    def forward(self, hidden: Tensor) -> Tensor:
        """Map (..., hidden) to (..., heads x columns) fp32, the columns of the first head first."""
        return torch.cat([head(hidden) for head in self], dim=-1)


def load_picture_model(
    checkpoint: Path, backbone: Path, row: PictureReward
) -> tuple[ScalarReward, Encoder]:
    """Load a released model that scores pictures, and the encoder of its questions.

    The authors' classes call the backbone with embeddings in place of token ids. It then counts the
    tokens of images like those of text, in training as in their inference, so the encoder does too.

    Args:
        checkpoint: The folder with the file of tensors.
        backbone: The folder with config.json, tokenizer and image processor of the backbone.
        row: The settings of the released model.

    Raises:
        CheckpointError: A file is missing or cannot be read, its tensors are not exactly the
            model's, or the vocabulary is not that of the backbone and the reward token.
    """
    file = _weight_file(checkpoint, row.weight_files)
    stored = _read_tensors(file)
    embedding = _embedding(file, stored)
    config = BackboneConfig(
        path=str(backbone),
        dtype="float32" if embedding.dtype == torch.float32 else "bfloat16",
        min_pixels=PIXELS,
        max_pixels=PIXELS,
    )
    encoder = load_encoder(config, added_tokens=[REWARD_TOKEN])
    encoder.count_images_as_text()
    _refuse_other_vocabulary(file, len(embedding), len(encoder.tokenizer))

    heads = [_head_tensors(file, stored, prefix) for prefix in row.heads]
    tensors: dict[str, Tensor] = {}
    for name, tensor in stored.items():
        is_of_head = name.startswith(tuple(f"{prefix}." for prefix in row.heads))
        is_lm_head = name.startswith("lm_head.")  # no score depends on it
        if not is_of_head and not is_lm_head:
            tensors[name] = tensor
    tensors |= {f"head.{name}": tensor for name, tensor in heads[0].items()}
    try:
        model = load_scalar_from_tensors(config, HEAD, tensors, file)
    except IncompleteCheckpointError as error:
        raise CheckpointError(str(error)) from error

    modules = [model.head]
    for head_tensors in heads[1:]:
        head = RewardHead(model.config)
        head.float().load_state_dict(head_tensors)
        modules.append(head)
    model.set_submodule("head", HeadsSideBySide(modules))
    return model, encoder


def _weight_file(folder: Path, names: Sequence[str]) -> Path:
    """Return the first of the named files that is in a folder."""
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise CheckpointError(
        f"{folder} has no {' and no '.join(names)}. The authors publish the weights of this model "
        "in one file of this name. Give the hub id that recipes/judges/ names, or a folder with "
        "the file."
    )


def _read_tensors(file: Path) -> dict[str, Tensor]:
    """Return the tensors of a file by name.

    The file is in the format of safetensors, or was written by `torch.save`. The latter may hold
    the tensors under the key `model`, as the authors' scripts allow.

    Raises:
        CheckpointError: The file cannot be read, or holds something else than floating-point
            tensors.
    """
    try:
        content = _stored_content(file)
    except UNREADABLE as error:
        raise CheckpointError(
            f"{file} cannot be read ({type(error).__name__}: {error}). It was probably cut off "
            "while it was copied: fetch it again."
        ) from error
    inner_content = content.get("model")
    if isinstance(inner_content, dict):
        content = inner_content
    tensors: dict[str, Tensor] = {}
    for name, value in content.items():
        if not isinstance(value, Tensor) or not value.is_floating_point():
            raise CheckpointError(
                f"{file}: {name} is no tensor of floating-point numbers. Required are the weights "
                "as the authors published them."
            )
        tensors[name] = value
    return tensors


def _stored_content(file: Path) -> Mapping[str, object]:
    """Return the content of a file in the format of safetensors or of `torch.save`."""
    if file.suffix == ".safetensors":
        tensors: dict[str, Tensor] = load_file(file)
        return tensors
    content: Mapping[str, object] = torch.load(file, map_location="cpu", weights_only=True)
    return content


def _embedding(file: Path, tensors: Mapping[str, Tensor]) -> Tensor:
    """Return the embedding of the vocabulary, (tokens, hidden)."""
    for name in EMBEDDING_NAMES:
        if name in tensors:
            return tensors[name]
    raise CheckpointError(
        f"{file} has no tensor {' and no '.join(EMBEDDING_NAMES)}. It is no complete model: "
        "adapters have to be merged into their backbone first."
    )


def _refuse_other_vocabulary(file: Path, num_rows: int, num_tokens: int) -> None:
    """Raise CheckpointError unless the embedding has one row for each token of the tokenizer.

    The authors resize the embedding to the tokenizer with the reward token. Another size means that
    the reward token has another id, and that scores would be read at a token without meaning.

    Args:
        file: The file of tensors, for the message.
        num_rows: Number of rows of the embedding in the file.
        num_tokens: Number of tokens of the tokenizer, with the reward token.
    """
    if num_rows == num_tokens:
        return
    raise CheckpointError(
        f"{file}: the embedding has {num_rows:,} rows, and the tokenizer of the backbone with "
        f"{REWARD_TOKEN} has {num_tokens:,} tokens. Give the model that was trained as `backbone`."
    )


def _head_tensors(file: Path, tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors of one reward head by their names in `RewardHead`.

    The authors' second number is the logarithm of the deviation. Ours is that of the variance,
    which is twice as large.

    Args:
        file: The file of tensors, for messages.
        tensors: All of its tensors.
        prefix: The beginning of the names of the head's tensors.

    Raises:
        CheckpointError: The head has other layers.
    """
    names = {name for name in tensors if name.startswith(f"{prefix}.")}
    expected_names: dict[str, str] = {}
    for theirs, ours in HEAD_LAYERS.items():
        for kind in ("weight", "bias"):
            expected_names[f"{prefix}.{theirs}.{kind}"] = f"{ours}.{kind}"
    if names != set(expected_names):
        raise CheckpointError(
            f"{file} has the tensors {', '.join(sorted(names)) or 'none'} of a reward head "
            f"{prefix}, and the released model has {', '.join(sorted(expected_names))}. Heads of "
            "other sizes are not supported."
        )
    head = {ours: tensors[theirs] for theirs, ours in expected_names.items()}
    to_log_variance = torch.tensor([1.0, 2.0])
    last_layer = HEAD_LAYERS["5"]
    for kind in ("weight", "bias"):
        last_tensor = head[f"{last_layer}.{kind}"]
        factors = to_log_variance.to(last_tensor.dtype)
        if kind == "weight":
            factors = factors[:, None]
        head[f"{last_layer}.{kind}"] = last_tensor * factors
    return head
