"""Loading of a backbone of any family, of its processor, and of this project's checkpoints.

Checkpoints that do not load completely are refused. A backbone can be loaded in 4 bits on a CUDA
device (QLoRA, arXiv 2305.14314); only the matrices of the language model are then quantised.
"""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoTokenizer, BitsAndBytesConfig, PreTrainedConfig

from mmrm.data.errors import CheckpointError, UserError
from mmrm.data.storage.manifest import require_json_settings, verify_settings, verify_weights
from mmrm.models.compatibility import check_transformers
from mmrm.models.config import (
    HUB_ID,
    TESTED_TRANSFORMERS,
    BackboneConfig,
    CritiqueConfig,
    HeadConfig,
)
from mmrm.models.encoder import Encoder, assistant_turn
from mmrm.models.families.family import Family
from mmrm.models.families.registry import BACKBONES, family_of
from mmrm.models.heads.score_head import ScoreHeadConfig
from mmrm.models.packing.attention import (
    TEXT,
    VISION,
    Kernel,
    PatchProjection,
    register,
    take_plans,
)
from mmrm.models.packing.image_places import place_images
from mmrm.models.packing.last_layer import skip_unread_positions
from mmrm.models.portable.critic import Critic
from mmrm.models.portable.head_columns import columns_of
from mmrm.models.portable.language_model import LabelModel
from mmrm.models.portable.reward import ScalarReward, refuse_other_numbers
from mmrm.models.portable.videos import SETTINGS as VIDEO_SETTINGS

EMBEDDED = Path(__file__).resolve().parent / "embedded"
"""Folder of the tiny backbone of this repository."""
VOCABULARY_FILES = ("tokenizer.json", "vocab.json", "tokenizer.model")
"""Files of which a tokenizer needs at least one."""
VALUE_HEAD = "value_head.safetensors"
"""File in which LLaMA-Factory saves its value head."""


def resolve(path: str) -> str:
    """Return the folder or hub id that a recipe's `backbone.path` stands for.

    The word `embedded` stands for the tiny backbone of this repository.

    Raises:
        CheckpointError: There is no such folder, and `path` has not the form of a hub id.
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


def load_encoder(
    config: BackboneConfig,
    tower: BackboneConfig | None = None,
    added_tokens: Sequence[str] = (),
) -> Encoder:
    """Load the tokenizer and the image processor of a backbone, and return its encoder.

    Images always go through the PIL processor. It needs no torchvision, and makes the same patches
    on every machine.

    Args:
        config: The backbone, and the limits of its images.
        tower: The backbone whose vision tower is used, if it is not `config`'s. A folder of LoRA
            adapters has none, so this is then the model that they were trained on.
        added_tokens: Special tokens that are added to the tokenizer, at the end of its vocabulary.

    Raises:
        CheckpointError: Files, the chat template or the tokens of images are missing, or files
            differ from those that were saved.
    """
    path = resolve(config.path)
    if Path(path).is_dir():
        verify_settings(Path(path))
        require_json_settings(Path(path))
        _require_tokenizer_file(Path(path))
    model_config = _read_config(tower or config)
    family = family_of(model_config.model_type)
    image_limits = family.images.arguments(model_config.vision_config, config)
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, revision=config.revision)
        image_processor = family.parts().image_processor.from_pretrained(
            path, revision=config.revision, **image_limits
        )
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise _unreadable(path, "its tokenizer and preprocessor files", error) from error
    _refuse_unsuited_tokenizer(path, tokenizer, family)
    tokenizer.add_tokens(list(added_tokens), special_tokens=True)
    return Encoder(tokenizer, image_processor, config, model_config)


def _require_tokenizer_file(folder: Path) -> None:
    """Raise CheckpointError if a folder holds no vocabulary.

    Transformers would make a tokenizer without words, and the scores would be of no text.
    """
    if any((folder / name).is_file() for name in VOCABULARY_FILES):
        return
    raise CheckpointError(
        f"{folder}: the tokenizer is missing, there is none of {', '.join(VOCABULARY_FILES)}. Copy "
        "the tokenizer files of the backbone into the folder, or take another checkpoint."
    )


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
    """Load a scalar reward model: a backbone with a reward head.

    The head is the one in the checkpoint, or a new one if `fresh_head` allows it. It may be a head
    of this project, or a single layer of another trainer: ms-swift's `score`, or, if `fresh_head`
    is false, LLaMA-Factory's value head. The bias of a value head is left out, because it shifts
    all scores equally.

    Args:
        config: The checkpoint, and how to load it.
        head: A new head is made like this, and a head in the checkpoint must be like this. None
            stands for a head of one score with the paper's layers. If `fresh_head` is false, None accepts any head.
        fresh_head: A checkpoint without a head gets a new one. If false, it is refused.
        nf4: Load the language model's matrices in 4 bits onto the current CUDA device.

    Raises:
        CheckpointError: The checkpoint cannot be read, or its head is missing or not `head`.
        IncompleteCheckpointError: The tensors are not exactly the model's.
    """
    model: ScalarReward = _load_with_head("scalar", config, head, fresh_head=fresh_head, nf4=nf4)
    return model


def load_scalar_from_tensors(
    config: BackboneConfig, head: HeadConfig, tensors: Mapping[str, Tensor], source: Path
) -> ScalarReward:
    """Load a scalar reward model of which another trainer saved only the tensors.

    The number of rows of the embedding is that of the tensors: the trainer may have added special
    tokens to the vocabulary.

    Args:
        config: The backbone from which the model was trained, whose config.json describes it. Its
            weights are not read.
        head: The reward head.
        tensors: All tensors of the model by name: those of the backbone as in a released
            checkpoint of the family, and those of the head as `head.0.weight` and so on.
        source: The file that the tensors come from, for messages.

    Raises:
        CheckpointError: The configuration of the backbone cannot be read.
        IncompleteCheckpointError: The tensors are not exactly the model's.
    """
    model_config = _read_config(config)
    model_config.assistant_turn = _assistant_turn(config, model_config)
    model_config.reward_head = head.model_dump()
    _note_inputs(model_config, config)
    for name, tensor in tensors.items():
        if name.endswith("embed_tokens.weight"):
            model_config.text_config.vocab_size = len(tensor)
    model_class = family_of(model_config.model_type).parts().scalar
    model: ScalarReward = model_class.from_pretrained(
        source, config=model_config, dtype=getattr(torch, config.dtype), tensors=dict(tensors)
    )
    # The head has been converted to the backbone's dtype, and its tensors may be more precise.
    head_tensors = {
        name.removeprefix("head."): tensor
        for name, tensor in tensors.items()
        if name.startswith("head.")
    }
    model.head.float().load_state_dict(head_tensors)
    _prepare_for_packed_rows(model, config)
    return model


def _note_inputs(model_config: Any, config: BackboneConfig) -> None:
    """Note in a model's configuration how its conversations and videos are prepared.

    `save_pretrained` writes these settings into config.json, where the remote code of the
    checkpoint finds them.
    """
    model_config.system_prompt = config.system_prompt
    pixels_of_image = {
        "min_image_pixels": config.min_pixels,
        "max_image_pixels": config.max_pixels,
    }
    setattr(model_config, VIDEO_SETTINGS, config.videos.model_dump() | pixels_of_image)


def set_joint_responses(model: ScalarReward, count: int | None) -> None:
    """Note in a model's configuration how many responses it learns to score in one conversation.

    `save_pretrained` writes the number into config.json, as `joint_responses`. Those who load the
    checkpoint then know that a score depends on the other responses.

    Args:
        model: The model, which may have been loaded from a joint checkpoint.
        count: Largest number of responses of a conversation. None removes the note, because each
            response has a conversation of its own.
    """
    if count is not None:
        model.config.joint_responses = count
    elif "joint_responses" in vars(model.config):
        del model.config.joint_responses


def load_critic(
    config: BackboneConfig,
    head: HeadConfig | None = None,
    *,
    critique: CritiqueConfig | None = None,
    fresh_head: bool = True,
    nf4: bool = False,
) -> Critic:
    """Load a critic: a backbone with its LM head and a reward head.

    `critique` is the request for a critique, which the loaded model gets as `config.critique`. With
    None it keeps the request in the checkpoint. The other arguments are those of `load_scalar`.
    """
    model: Critic = _load_with_head("critic", config, head, fresh_head=fresh_head, nf4=nf4)
    if critique is not None:
        model.config.critique = critique.model_dump()
    return model


def _load_with_head(
    kind: str, config: BackboneConfig, head: HeadConfig | None, *, fresh_head: bool, nf4: bool
) -> Any:
    """Load a model with a reward head.

    Args:
        kind: "scalar" or "critic".
        config: As in `load_scalar`.
        head: As in `load_scalar`.
        fresh_head: As in `load_scalar`.
        nf4: As in `load_scalar`.
    """
    model_config = _read_config(config)
    stored_head = vars(model_config).get("reward_head")
    if stored_head is not None:
        _refuse_unknown_head(config, stored_head)
    if "assistant_turn" not in vars(model_config):
        if stored_head is not None and stored_head["read"] == "last_token":
            # An old checkpoint. In these, `last_token` meant what is now `last_response_token`.
            stored_head = stored_head | {"read": "last_response_token"}
        model_config.assistant_turn = _assistant_turn(config, model_config)
    expected_head = (head or ScoreHeadConfig()).model_dump()
    # `head` may describe a head of another trainer, which config.json does not name.
    if stored_head is None and head is None and not fresh_head:
        raise CheckpointError(
            f"{config.path} is not a reward model: its config.json names no `reward_head`. Give a "
            "checkpoint that train/rm.py wrote, or start a fresh head on this backbone."
        )
    must_be_expected_head = fresh_head or head is not None
    if stored_head is not None and must_be_expected_head and stored_head != expected_head:
        raise CheckpointError(
            f"{config.path} is a reward model with the head {stored_head}, but the recipe's `head` "
            f"is {expected_head}. Describe the head as the checkpoint has it, or start from the "
            "backbone it was trained from."
        )
    model_config.reward_head = stored_head or expected_head
    _note_inputs(model_config, config)

    value_head = None
    if stored_head is None and not fresh_head:
        value_head = _read_value_head(config)
    # A value head is loaded below, in place of the fresh head.
    may_be_fresh = stored_head is None and (fresh_head or value_head is not None)
    model = _load(kind, config, model_config, nf4, fresh_head=may_be_fresh)
    if value_head is not None:
        model.head.load_state_dict({"0.weight": value_head})  # a head with a single layer
    return model


def _refuse_unknown_head(config: BackboneConfig, stored_head: dict[str, Any]) -> None:
    """Raise CheckpointError if a checkpoint has a head of a type that this version does not know."""
    try:
        columns_of(stored_head)
    except ValueError as error:
        raise CheckpointError(f"{config.path}: {error}") from error


def _assistant_turn(config: BackboneConfig, model_config: Any) -> dict[str, Any]:
    """Return the tokens around an assistant's turn, as `mmrm.models.encoder.assistant_turn` does.

    Raises: CheckpointError for a folder without a tokenizer, if config.json names several tokens at
    which a text may end.
    """
    try:
        encoder = load_encoder(config)
    except CheckpointError:
        # A folder without a tokenizer. config.json has the end of a turn, but not its beginning.
        end = model_config.text_config.eos_token_id
        if isinstance(end, list):
            raise
        return {"begin": [], "end": end}
    return assistant_turn(encoder.tokenizer, encoder.turn_rules)


def _read_value_head(config: BackboneConfig) -> torch.Tensor | None:
    """Return the weight of LLaMA-Factory's value head, (1, hidden); None if there is none.

    It is in a file next to the weights of the model.
    """
    path = Path(resolve(config.path), VALUE_HEAD)
    if not path.is_file():
        return None
    refuse_other_numbers(config.path, [path])
    weight: torch.Tensor = load_file(path)["v_head.summary.weight"]
    return weight


def load_language_model(config: BackboneConfig, *, nf4: bool = False) -> LabelModel:
    """Load a backbone with its LM head, as a model that writes text.

    `save_pretrained` saves it as transformers' own class of the family. With `nf4`, the language
    model's matrices are loaded in 4 bits onto the current CUDA device.
    """
    model: LabelModel = _load("language_model", config, _read_config(config), nf4)
    return model


def set_attention(model: Any, kernel: Kernel = "auto") -> None:
    """Set the attention functions of a loaded model to those that can compute packed rows.

    The MLP of its last layer then skips positions whose hidden states are not read. Padded batches
    and `generate` work as before.

    Args:
        model: A model of any class of its family.
        kernel: The attention kernel, as in `backbone.attention` of a recipe.
    """
    check_transformers(model.config.model_type)
    register()
    family = family_of(model.config.model_type)
    take_plans(model, family.parts().plan_classes)
    # The routers of experts count the tokens of all positions.
    if family.experts is None:
        skip_unread_positions(model)
    vision_attention = VISION[kernel] if family.images.attends_in_runs else "sdpa"
    model.set_attn_implementation({"text_config": TEXT[kernel], "vision_config": vision_attention})


def embed_patches(model: Any, layer_class: type[nn.Conv3d] = PatchProjection) -> None:
    """Replace the 3D convolutions of a loaded model's vision tower by layers of another class.

    These convolutions embed patches. The new layers take over their parameters.
    """
    tower = model.model.get_submodule(family_of(model.config.model_type).tower)
    for name, module in list(tower.named_modules()):
        if not isinstance(module, nn.Conv3d):
            continue
        patch_size: Any = module.kernel_size
        moves_by_patches = module.stride == patch_size and not any(module.padding)
        if not moves_by_patches:
            raise RuntimeError(
                f"transformers {transformers.__version__}: {name} of the vision tower, {module}, "
                "no longer moves from patch to patch, so it is not a matrix product. This project "
                f"is tested with transformers {TESTED_TRANSFORMERS}; install one of these versions."
            )
        with torch.device("meta"):  # no memory: the parameters are replaced below
            projection = layer_class(
                module.in_channels,
                module.out_channels,
                kernel_size=patch_size,
                stride=patch_size,
                bias=module.bias is not None,
            )
        projection.weight = module.weight
        projection.bias = module.bias
        tower.set_submodule(name, projection)


def copy_grids(model: Any) -> None:
    """Let the modules of a loaded model that index grids by tensors take grids from the host.

    A row's grids are on the host, so that no forward pass waits for the device. To index them by a
    tensor of the device, they have to be there as well.
    """
    for name in family_of(model.config.model_type).takes_grids:
        model.model.get_submodule(name).register_forward_pre_hook(_with_one_device)


def _with_one_device(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the arguments of a module on the device of the first one; torch calls it as a hook."""
    device = args[0].device
    return tuple(argument.to(device) for argument in args)


def compute_in_half(model: Any, device: torch.device) -> None:
    """Let a model with fp32 weights compute in bf16 on `device`, by autocast.

    `generate` calls parts of the model, so the backbone and the LM head also get autocast.
    """
    for module in (model, model.model, model.get_output_embeddings()):
        if module is not None:  # a scalar model has no LM head
            # One context for each: a context that is entered twice forgets the state before it.
            module.forward = torch.autocast(device.type, torch.bfloat16)(module.forward)


def freeze(model: Any, parts: Sequence[str]) -> None:
    """Exclude some parts of a model from training, by `requires_grad`.

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
    """Return the configuration of the checkpoint `config.path`, an object of transformers.

    Raises:
        CheckpointError: It cannot be read, or this project does not support the model.
    """
    path = resolve(config.path)
    if Path(path).is_dir():
        verify_settings(Path(path))
        require_json_settings(Path(path))
    try:
        content, _ = PreTrainedConfig.get_config_dict(path, revision=config.revision)
    except OSError as error:
        raise _unreadable(path, "config.json", error) from error
    if not content:
        raise CheckpointError(
            f"{path}: there is no config.json. Give a complete checkpoint folder."
        )
    family = family_of(content.get("model_type"), path)
    model_config = family.parts().config.from_dict(content)
    family.correct_config(model_config, content)
    if "sliding_attention" in model_config.text_config.to_dict().get("layer_types", ()):
        raise CheckpointError(
            f"{path}: config.json switches sliding-window attention on, for which packed rows are "
            "not exact. Set use_sliding_window to false in config.json."
        )
    return model_config


def _load(kind: str, config: BackboneConfig, model_config: Any, nf4: bool, **kwargs: Any) -> Any:
    """Load a model with its weights, for packed rows, and freeze the parts that the recipe names.

    Args:
        kind: "scalar", "critic" or "language_model".
        config: The checkpoint, its dtype and the parts to freeze.
        model_config: The model's configuration in transformers.
        nf4: Load the language model's matrices in 4 bits onto the current CUDA device.
        kwargs: Further arguments of `from_pretrained`.
    """
    path = resolve(config.path)
    dtype = getattr(torch, config.dtype)
    family = family_of(model_config.model_type)
    model_class = family.parts()._asdict()[kind]
    if Path(path).is_dir():
        verify_weights(Path(path))
    if nf4:
        device = torch.device("cuda", torch.cuda.current_device())
        kwargs |= nf4_arguments(dtype, device, family)
    try:
        model = model_class.from_pretrained(
            path, config=model_config, revision=config.revision, dtype=dtype, **kwargs
        )
    except OSError as error:
        raise _unreadable(path, "the weights", error) from error
    _prepare_for_packed_rows(model, config)
    return model


def _prepare_for_packed_rows(model: Any, config: BackboneConfig) -> None:
    """Let a loaded model compute packed rows, and freeze the parts that the recipe names."""
    set_attention(model, config.attention)
    place_images(model.model)
    copy_grids(model)
    embed_patches(model)
    freeze(model, config.freeze)


def _unreadable(path: str, files: str, error: Exception) -> CheckpointError:
    """Return the error for files that cannot be read from a folder or fetched from the hub.

    Args:
        path: The folder or hub id.
        files: The files in words.
        error: The error of reading or fetching them.
    """
    if Path(path).is_dir():
        return CheckpointError(f"{path}: {files} cannot be read: {error}")
    return CheckpointError(
        f"{path}: {files} cannot be fetched from the hub and is not in the local cache. Check the "
        "name and the network, or download the model once and give its folder as backbone.path. "
        f"The error of the hub's client: {error}"
    )


def not_quantised(family: Family) -> list[str]:
    """Return the names of the modules that are not quantised when a model is loaded in 4 bits.

    They are the vision tower with its projector, whose errors would reach every text token, the
    reward head and the LM head.
    """
    vision_modules = [f"model.{name}" for name in family.vision_modules]
    return [*vision_modules, "head", "lm_head"]


def nf4_arguments(dtype: torch.dtype, device: torch.device, family: Family) -> dict[str, Any]:
    """Return the arguments of `from_pretrained` that load weights as 4-bit normal floats.

    The scales of the 4-bit weights are quantised as well, as in QLoRA's paper (arXiv 2305.14314).
    They then take 0.127 bits a weight instead of 0.5.

    Args:
        dtype: Dtype in which the model computes.
        device: The CUDA device that gets the model.
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
