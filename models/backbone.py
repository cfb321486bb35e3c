"""Loads a backbone of any family, its processor and our checkpoints, and refuses what did not really load.

The backbone in 4 bits (QLoRA, arXiv 2305.14314): the language model's matrices only, on a CUDA device.
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


def resolve(path: str) -> str:
    """Return the folder or hub id that `path` means; raises CheckpointError for a folder that is not there."""
    folder = EMBEDDED if path == "embedded" else Path(path).expanduser()
    if folder.is_dir():
        return str(folder)
    if not HUB_ID.fullmatch(path):
        raise CheckpointError(
            f"backbone.path: there is no folder {folder} (looked from {Path.cwd()}). Give {BACKBONES}."
        )
    return path


def load_encoder(config: BackboneConfig, tower: BackboneConfig | None = None) -> Encoder:
    """Load the tokenizer and the image processor of a backbone; the vision tower may be another's (of adapters: the base's).

    Images always go through the PIL processor: it needs no torchvision, and every machine then makes the same patches.
    Raises CheckpointError where files, the chat template or the tokens of images are missing, or files
    are not as they were saved.
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
    absent = [token for token in filter(None, family.marks) if token not in tokenizer.get_vocab()]
    if absent or not tokenizer.chat_template:
        what = f"the tokens {', '.join(absent)}" if absent else "a chat template"
        raise CheckpointError(
            f"{path}: the tokenizer lacks {what}. Take the tokenizer files of a {family.title} model that was trained to chat."
        )
    return Encoder(tokenizer, image_processor, config, settings)


def load_scalar(
    config: BackboneConfig,
    head: HeadConfig | None = None,
    *,
    fresh_head: bool = True,
    nf4: bool = False,
) -> ScalarReward:
    """Load a backbone with a reward head, which may be new where `fresh_head` is true.

    `head` describes the new head (default: the paper's). A checkpoint that brings a head of this very description keeps
    it, and one that brings another is refused. Another trainer's has a single layer: ms-swift's `score`, or, where
    `fresh_head` is false, LLaMA-Factory's value head, whose bias shifts all scores alike and is left out. `nf4` loads the
    language model's matrices in 4 bits onto the current CUDA device. Raises CheckpointError or IncompleteCheckpointError.
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
    """Load a backbone with its LM head and a reward head; the rest is as in `load_scalar`.

    `critique` is stored as `config.critique`; None keeps what the checkpoint holds.
    """
    model: Critic = _load_with_head("critic", config, head, fresh_head=fresh_head, nf4=nf4)
    if critique is not None:
        model.config.critique = critique.model_dump()
    return model


def _load_with_head(
    kind: str, config: BackboneConfig, head: HeadConfig | None, *, fresh_head: bool, nf4: bool
) -> Any:
    settings = _read_config(config)
    own, wanted = vars(settings).get("reward_head"), (head or HeadConfig()).model_dump()
    if "assistant_turn" not in vars(settings):
        if own is not None and own["read"] == "last_token":
            own = own | {
                "read": "last_response_token"
            }  # what such a checkpoint was trained with under the other's name
        try:
            settings.assistant_turn = assistant_turn(load_encoder(config).tokenizer)
        except CheckpointError:  # weights alone: their config says how a turn ends, and nothing how the assistant's begins
            settings.assistant_turn = {"begin": [], "end": settings.text_config.eos_token_id}
    if own is None and not fresh_head and head is None:
        raise CheckpointError(
            f"{config.path} is not a reward model: its config.json names no `reward_head`. Give a checkpoint that "
            "train/rm.py wrote, or start a fresh head on this backbone."
        )
    if own is not None and (fresh_head or head is not None) and own != wanted:
        raise CheckpointError(
            f"{config.path} is a reward model with the head {own}, but the recipe asks for {wanted}. Describe the head "
            "as the checkpoint has it, or start from the backbone it was trained from."
        )
    settings.reward_head, settings.system_prompt = own or wanted, config.system_prompt
    value_head = Path(resolve(config.path), "value_head.safetensors")
    values = None
    if own is None and not fresh_head and value_head.is_file():
        refuse_other_numbers(config.path, [value_head])
        values = load_file(value_head)["v_head.summary.weight"]
    model = _load(
        kind, config, settings, nf4, fresh_head=own is None and (fresh_head or values is not None)
    )
    if values is not None:
        model.head.load_state_dict({"0.weight": values})
    return model


def load_language_model(config: BackboneConfig, *, nf4: bool = False) -> LabelModel:
    """Load a backbone with its LM head; it is saved as the stock class, in the current key layout."""
    model: LabelModel = _load("language_model", config, _read_config(config), nf4)
    return model


def set_attention(model: Any, kernel: Kernel = "auto") -> None:
    """Let a loaded model (any class of its family) take packed rows; padded calls and `generate` work as before."""
    check_transformers(model.config.model_type)
    register()
    planned = family_of(model.config.model_type).images.planned
    model.set_attn_implementation(
        {"text_config": TEXT[kernel], "vision_config": VISION[kernel] if planned else "sdpa"}
    )


def embed_patches(model: Any, kind: type[nn.Conv3d] = PatchProjection) -> None:
    """Let the vision tower of a loaded model embed its patches by `kind`, with the same parameters."""
    tower = model.model.get_submodule(family_of(model.config.model_type).tower)
    for name, found in list(tower.named_modules()):
        if not isinstance(found, nn.Conv3d):
            continue
        size: Any = found.kernel_size
        if size != found.stride or any(found.padding):
            raise RuntimeError(
                f"transformers {transformers.__version__}: {name} of the vision tower, {found}, no longer moves from patch to "
                f"patch. This project is tested with transformers {EXPECTED}; install one of those."
            )
        with torch.device("meta"):
            made = kind(
                found.in_channels, found.out_channels, size, size, bias=found.bias is not None
            )
        made.weight, made.bias = found.weight, found.bias
        tower.set_submodule(name, made)


def compute_in_half(model: Any, device: torch.device) -> None:
    """Let a model with fp32 weights compute in bf16: under autocast, also where `generate` calls its parts."""
    for part in filter(None, (model, model.model, model.get_output_embeddings())):
        # One context for each: entered twice, it would forget what was before it and never end.
        part.forward = torch.autocast(device.type, torch.bfloat16)(part.forward)


def freeze(model: Any, parts: Sequence[str]) -> None:
    """Stop the gradients of `vision_tower` (the tower without its projector), `projector`, `language_model`."""
    family = family_of(model.config.model_type)
    tower = model.model.get_submodule(family.tower)
    modules = {
        "vision_tower": [
            part
            for name, part in tower.named_children()
            if f"{family.tower}.{name}" not in family.projector
        ],
        "projector": [model.model.get_submodule(name) for name in family.projector],
        "language_model": filter(None, [model.model.language_model, model.get_output_embeddings()]),
    }
    for part in parts:
        for module in modules[part]:
            module.requires_grad_(False)


def _read_config(config: BackboneConfig) -> Any:
    path = resolve(config.path)
    if Path(path).is_dir():
        verify_settings(Path(path))
    try:
        found, _ = PreTrainedConfig.get_config_dict(path, revision=config.revision)
    except OSError as error:
        raise _unreadable(path, "config.json", error) from error
    if not found:
        raise CheckpointError(
            f"{path}: there is no config.json. Give a complete checkpoint folder."
        )
    family = family_of(found.get("model_type"), path)
    settings = family.parts().config.from_dict(found)
    family.read_config(settings, found)
    if "sliding_attention" in settings.text_config.to_dict().get("layer_types", ()):
        raise CheckpointError(
            f"{path}: sliding-window attention is switched on; set use_sliding_window to false in config.json"
        )
    return settings


def _load(name: str, config: BackboneConfig, settings: Any, nf4: bool, **kwargs: Any) -> Any:
    path, dtype, family = (
        resolve(config.path),
        getattr(torch, config.dtype),
        family_of(settings.model_type),
    )
    kind = family.parts()._asdict()[name]
    if Path(path).is_dir():
        verify_weights(Path(path))
    if nf4:
        kwargs |= nf4_arguments(dtype, torch.device("cuda", torch.cuda.current_device()), family)
    try:
        model = kind.from_pretrained(
            path, config=settings, revision=config.revision, dtype=dtype, **kwargs
        )
    except OSError as error:
        raise _unreadable(path, "the weights", error) from error
    set_attention(model, config.attention)
    embed_patches(model)
    freeze(model, config.freeze)
    return model


def _unreadable(path: str, what: str, error: OSError) -> CheckpointError:
    if Path(path).is_dir():
        return CheckpointError(f"{path}: {what} cannot be read: {error}")
    return CheckpointError(
        f"{path}: {what} cannot be fetched from the hub and is not in the local cache. Check the name and the network, "
        f"or download the model once and give its folder as backbone.path. The hub client said: {error}"
    )


def not_quantised(family: Family) -> list[str]:
    """Return what stays as it is: the vision tower with its projector, whose errors every text token sees, and both heads."""
    return [*(f"model.{name}" for name in family.vision_modules), "head", "lm_head"]


def nf4_arguments(dtype: torch.dtype, device: torch.device, family: Family) -> dict[str, Any]:
    """Return what `from_pretrained` needs to load weights as 4-bit normal floats that compute in `dtype` on `device`.

    The quantisation constants are quantised again, as in the paper: 0.5 bits a weight become 0.127.
    Raises: UserError without bitsandbytes.
    """
    if find_spec("bitsandbytes") is None:
        raise UserError(
            "optim.lora.quantise: nf4 needs the package bitsandbytes, which is not installed. Install it with "
            "`pip install 'multimodal-reward-models[quantisation]'` (in a clone: `pip install -e '.[quantisation]'`), or set "
            "optim.lora.quantise=none."
        )
    quantisation = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
        llm_int8_skip_modules=not_quantised(family),
    )
    return {"quantization_config": quantisation, "device_map": {"": device}}
