"""Loading of a backbone of any family, of its processor, and of this project's checkpoints.

Checkpoints that do not load completely are refused. A backbone can be loaded in 4 bits on a CUDA
device (QLoRA, arXiv 2305.14314); only the matrices of the language model are then quantised.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from torch import nn
from transformers import AutoTokenizer, BitsAndBytesConfig, PreTrainedConfig

from mmrm.data.errors import CheckpointError, UserError
from mmrm.data.storage.manifest import verify_settings, verify_weights
from mmrm.models.compatibility import EXPECTED, check_transformers
from mmrm.models.config import HUB_ID, BackboneConfig, CritiqueConfig, HeadConfig
from mmrm.models.encoder import Encoder, assistant_turn
from mmrm.models.families.family import Family
from mmrm.models.families.registry import BACKBONES, family_of
from mmrm.models.packing.attention import TEXT, VISION, Kernel, PatchProjection, register
from mmrm.models.portable.critic import Critic
from mmrm.models.portable.language_model import LabelModel
from mmrm.models.portable.reward import ScalarReward, refuse_other_numbers

EMBEDDED = Path(__file__).resolve().parent / "embedded"
"""Folder of the tiny backbone of this repository."""
VALUE_HEAD = "value_head.safetensors"
"""File in which LLaMA-Factory saves its value head."""


def resolve(path: str) -> str:
    """Return the folder or hub id that a recipe's `backbone.path` stands for.

    Raises:
        CheckpointError: There is no such folder, and the path is not a hub id.
    """
    folder = EMBEDDED if path == "embedded" else Path(path).expanduser()
    if folder.is_dir():
        return str(folder)
    if not HUB_ID.fullmatch(path):
        raise CheckpointError(
            f"backbone.path: there is no folder {folder} (looked from {Path.cwd()}). "
            f"Give {BACKBONES}."
        )
    return path


def load_encoder(config: BackboneConfig, tower: BackboneConfig | None = None) -> Encoder:
    """Load the tokenizer and the image processor of a backbone.

    Images always go through the PIL processor. It needs no torchvision, and every machine makes the
    same patches.

    Args:
        config: Which backbone, and the limits of its images.
        tower: The backbone whose vision tower is used, if it is another: of adapters, their base.

    Raises:
        CheckpointError: Files, the chat template or the tokens of images are missing, or files
            differ from those that were saved.
    """
    path = resolve(config.path)
    if Path(path).is_dir():
        verify_settings(Path(path))
    settings = _read_config(tower or config)
    family = family_of(settings.model_type)
    limits = family.images.arguments(settings.vision_config, config)
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, revision=config.revision)
        image_processor = family.parts().image_processor.from_pretrained(
            path, revision=config.revision, **limits
        )
    except OSError as error:
        raise _unreadable(path, "its tokenizer and preprocessor files", error) from error
    _refuse_unsuited_tokenizer(path, tokenizer, family)
    return Encoder(tokenizer, image_processor, config, settings)


def _refuse_unsuited_tokenizer(path: str, tokenizer: Any, family: Family) -> None:
    """Raise CheckpointError if the tokenizer lacks the tokens of images or a chat template."""
    vocabulary = tokenizer.get_vocab()
    missing_tokens = [mark for mark in family.marks if mark and mark not in vocabulary]
    if not missing_tokens and tokenizer.chat_template:
        return
    missing = f"the tokens {', '.join(missing_tokens)}" if missing_tokens else "a chat template"
    raise CheckpointError(
        f"{path}: the tokenizer lacks {missing}. Use the tokenizer files of a {family.title} model "
        "that was trained to chat."
    )


def load_scalar(
    config: BackboneConfig,
    head: HeadConfig | None = None,
    *,
    fresh_head: bool = True,
    nf4: bool = False,
) -> ScalarReward:
    """Load a backbone with a reward head.

    A checkpoint of this project keeps its head, which must be as `head` describes it. Heads of
    other trainers have a single layer: ms-swift's `score`, or, if `fresh_head` is false,
    LLaMA-Factory's value head, whose bias shifts all scores equally and is left out.

    Args:
        config: Which checkpoint.
        head: The new or expected head; None is the paper's, or with `fresh_head` false any.
        fresh_head: A checkpoint without a head gets a new one. If false, it is refused.
        nf4: Load the language model's matrices in 4 bits onto the current CUDA device.

    Raises:
        CheckpointError: The checkpoint cannot be read, or its head is another or missing.
        IncompleteCheckpointError: The tensors are not exactly the model's.
    """
    model: ScalarReward = _load_with_head("scalar", config, head, fresh_head=fresh_head, nf4=nf4)
    return model


def load_critic(
    config: BackboneConfig,
    head: HeadConfig | None = None,
    *,
    critique: CritiqueConfig | None = None,
    fresh_head: bool = True,
    nf4: bool = False,
) -> Critic:
    """Load a backbone with its LM head and a reward head; other arguments are as in `load_scalar`.

    `critique` is stored as `config.critique`; None keeps the one in the checkpoint.
    """
    model: Critic = _load_with_head("critic", config, head, fresh_head=fresh_head, nf4=nf4)
    if critique is not None:
        model.config.critique = critique.model_dump()
    return model


def _load_with_head(
    kind: str, config: BackboneConfig, head: HeadConfig | None, *, fresh_head: bool, nf4: bool
) -> Any:
    """Load a model with a reward head; `kind` is "scalar" or "critic"."""
    settings = _read_config(config)
    stored_head = vars(settings).get("reward_head")
    if "assistant_turn" not in vars(settings):
        if stored_head is not None and stored_head["read"] == "last_token":
            # Checkpoints without `assistant_turn` were trained with what now has another name.
            stored_head = stored_head | {"read": "last_response_token"}
        settings.assistant_turn = _assistant_turn(config, settings)
    expected_head = (head or HeadConfig()).model_dump()
    if stored_head is None and not fresh_head and head is None:
        raise CheckpointError(
            f"{config.path} is not a reward model: its config.json names no `reward_head`. Give a "
            "checkpoint that train/rm.py wrote, or start a fresh head on this backbone."
        )
    is_head_given = fresh_head or head is not None
    if stored_head is not None and is_head_given and stored_head != expected_head:
        raise CheckpointError(
            f"{config.path} is a reward model with the head {stored_head}, but the recipe's `head` "
            f"is {expected_head}. Describe the head as the checkpoint has it, or start from the "
            "backbone it was trained from."
        )
    settings.reward_head = stored_head or expected_head
    settings.system_prompt = config.system_prompt

    value_head = None
    if stored_head is None and not fresh_head:
        value_head = _read_value_head(config)
    may_be_fresh = stored_head is None and (fresh_head or value_head is not None)
    model = _load(kind, config, settings, nf4, fresh_head=may_be_fresh)
    if value_head is not None:
        model.head.load_state_dict({"0.weight": value_head})
    return model


def _assistant_turn(config: BackboneConfig, settings: Any) -> dict[str, Any]:
    """Return the tokens that begin and end an assistant's turn."""
    try:
        return assistant_turn(load_encoder(config).tokenizer)
    except CheckpointError:
        # Weights without a tokenizer. Their config tells how a turn ends, and not how it begins.
        return {"begin": [], "end": settings.text_config.eos_token_id}


def _read_value_head(config: BackboneConfig) -> torch.Tensor | None:
    """Return the weight (1, hidden) of LLaMA-Factory's value head; None if there is none."""
    path = Path(resolve(config.path), VALUE_HEAD)
    if not path.is_file():
        return None
    refuse_other_numbers(config.path, [path])
    weight: torch.Tensor = load_file(path)["v_head.summary.weight"]
    return weight


def load_language_model(config: BackboneConfig, *, nf4: bool = False) -> LabelModel:
    """Load a backbone with its LM head; it is saved as the stock class in the current layout."""
    model: LabelModel = _load("language_model", config, _read_config(config), nf4)
    return model


def set_attention(model: Any, kernel: Kernel = "auto") -> None:
    """Let a loaded model (any class of its family) compute packed rows.

    Padded calls and `generate` work as before.
    """
    check_transformers(model.config.model_type)
    register()
    is_planned = family_of(model.config.model_type).images.planned
    model.set_attn_implementation(
        {"text_config": TEXT[kernel], "vision_config": VISION[kernel] if is_planned else "sdpa"}
    )


def embed_patches(model: Any, kind: type[nn.Conv3d] = PatchProjection) -> None:
    """Let the vision tower of a loaded model embed patches by `kind`, with its own parameters."""
    tower = model.model.get_submodule(family_of(model.config.model_type).tower)
    for name, module in list(tower.named_modules()):
        if not isinstance(module, nn.Conv3d):
            continue
        size: Any = module.kernel_size
        if size != module.stride or any(module.padding):
            raise RuntimeError(
                f"transformers {transformers.__version__}: {name} of the vision tower, {module}, "
                "no longer moves from patch to patch, so it is not a matrix product. This project "
                f"is tested with transformers {EXPECTED}; install one of these versions."
            )
        with torch.device("meta"):
            projection = kind(
                module.in_channels, module.out_channels, size, size, bias=module.bias is not None
            )
        projection.weight = module.weight
        projection.bias = module.bias
        tower.set_submodule(name, projection)


def compute_in_half(model: Any, device: torch.device) -> None:
    """Let a model with fp32 weights compute in bf16 under autocast.

    `generate` calls parts of the model, so the backbone and the LM head also get autocast.
    """
    for module in (model, model.model, model.get_output_embeddings()):
        if module is not None:
            # One context for each: a context that is entered twice forgets the state before it.
            module.forward = torch.autocast(device.type, torch.bfloat16)(module.forward)


def freeze(model: Any, parts: Sequence[str]) -> None:
    """Stop the gradients of some parts of a model.

    Args:
        model: A loaded model.
        parts: `vision_tower` (without its projector), `projector` or `language_model` (with the LM
            head, if there is one).
    """
    family = family_of(model.config.model_type)
    tower_modules = []
    for name, module in model.model.get_submodule(family.tower).named_children():
        if f"{family.tower}.{name}" not in family.projector:
            tower_modules.append(module)
    language_modules = [model.model.language_model]
    if model.get_output_embeddings() is not None:
        language_modules.append(model.get_output_embeddings())
    modules_by_part = {
        "vision_tower": tower_modules,
        "projector": [model.model.get_submodule(name) for name in family.projector],
        "language_model": language_modules,
    }
    for part in parts:
        for module in modules_by_part[part]:
            module.requires_grad_(False)


def _read_config(config: BackboneConfig) -> Any:
    """Return the backbone's configuration of transformers.

    Raises:
        CheckpointError: It cannot be read, or packed rows would not be exact for the model.
    """
    path = resolve(config.path)
    if Path(path).is_dir():
        verify_settings(Path(path))
    try:
        content, _ = PreTrainedConfig.get_config_dict(path, revision=config.revision)
    except OSError as error:
        raise _unreadable(path, "config.json", error) from error
    if not content:
        raise CheckpointError(
            f"{path}: there is no config.json. Give a complete checkpoint folder."
        )
    family = family_of(content.get("model_type"), path)
    settings = family.parts().config.from_dict(content)
    family.read_config(settings, content)
    if "sliding_attention" in settings.text_config.to_dict().get("layer_types", ()):
        raise CheckpointError(
            f"{path}: config.json switches sliding-window attention on, for which packed rows are "
            "not exact. Set use_sliding_window to false in config.json."
        )
    return settings


def _load(kind: str, config: BackboneConfig, settings: Any, nf4: bool, **kwargs: Any) -> Any:
    """Load the weights of a model.

    Args:
        kind: "scalar", "critic" or "language_model".
        config: Which checkpoint, its dtype and the parts to freeze.
        settings: The configuration of transformers.
        nf4: Load the language model's matrices in 4 bits.
        kwargs: Further arguments of `from_pretrained`.
    """
    path = resolve(config.path)
    dtype = getattr(torch, config.dtype)
    family = family_of(settings.model_type)
    model_class = family.parts()._asdict()[kind]
    if Path(path).is_dir():
        verify_weights(Path(path))
    if nf4:
        device = torch.device("cuda", torch.cuda.current_device())
        kwargs |= nf4_arguments(dtype, device, family)
    try:
        model = model_class.from_pretrained(
            path, config=settings, revision=config.revision, dtype=dtype, **kwargs
        )
    except OSError as error:
        raise _unreadable(path, "the weights", error) from error
    set_attention(model, config.attention)
    embed_patches(model)
    freeze(model, config.freeze)
    return model


def _unreadable(path: str, what: str, error: OSError) -> CheckpointError:
    """Return the error for files that cannot be read from a folder or fetched from the hub."""
    if Path(path).is_dir():
        return CheckpointError(f"{path}: {what} cannot be read: {error}")
    return CheckpointError(
        f"{path}: {what} cannot be fetched from the hub and is not in the local cache. Check the "
        "name and the network, or download the model once and give its folder as backbone.path. "
        f"The error of the hub's client: {error}"
    )


def not_quantised(family: Family) -> list[str]:
    """Return the names of the modules that keep their dtype.

    They are the vision tower with its projector, whose errors would reach every text token, and
    both heads.
    """
    vision_modules = [f"model.{name}" for name in family.vision_modules]
    return [*vision_modules, "head", "lm_head"]


def nf4_arguments(dtype: torch.dtype, device: torch.device, family: Family) -> dict[str, Any]:
    """Return the arguments of `from_pretrained` that load weights as 4-bit normal floats.

    The quantisation constants are quantised again, as in the paper: 0.5 bits a weight become 0.127.

    Args:
        dtype: Dtype in which the model computes.
        device: A CUDA device.
        family: The model's family.

    Raises:
        UserError: bitsandbytes is not installed.
    """
    if find_spec("bitsandbytes") is None:
        raise UserError(
            "optim.lora.quantise=nf4 needs the package bitsandbytes, which is not installed. "
            "Install it with `pip install 'multimodal-reward-models[quantisation]'` (in a clone: "
            "`pip install -e '.[quantisation]'`), or set optim.lora.quantise=none."
        )
    quantisation = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
        llm_int8_skip_modules=not_quantised(family),
    )
    return {"quantization_config": quantisation, "device_map": {"": device}}
