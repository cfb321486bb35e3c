"""The plug-in with which vLLM serves our scalar checkpoints, and the chat template for requests.

`SERVED_MODELS` has a row for each family of backbones that vLLM serves. Checkpoints of the other
families, joint reward models and heads that read several tokens are refused by name.

In vLLM's environment, with this project installed without its dependencies
(`pip install --no-deps .`):

    python -m mmrm.eval.serving.vllm_plugin CHECKPOINT > reward.jinja
    vllm serve CHECKPOINT --chat-template reward.jinja

`POST /classify` takes `{"model", "messages"}`, with the answer as the last message and images as
data URIs. It returns the raw score as `data[0].probs[0]`. By default, vLLM computes fp32 checkpoints
in 16 bits. Give `--dtype float32` for them.

If the head computes several numbers, an option of `vllm serve` declares those of the answer, in the
order of `probs`: the score, and attributes by name, or the standard deviation `std` of a Gaussian
head.

    --hf-overrides '{"served_numbers": ["score", "helpfulness"]}'
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from mmrm.data.errors import CheckpointError, UserError
from mmrm.data.storage.manifest import verify_settings
from mmrm.models.families.registry import FAMILIES, family_of

SERVED_MODELS = {
    "qwen2_vl": "mmrm.eval.serving.vllm_families:ServedQwen2VL",
    "qwen2_5_vl": "mmrm.eval.serving.vllm_families:ServedQwen2_5VL",
    "qwen3_vl": "mmrm.eval.serving.vllm_families:ServedQwen3VL",
    "internvl": "mmrm.eval.serving.vllm_families:ServedInternVL",
}
"""`model_type` of the families that vLLM serves, to the import path of their class for vLLM."""
REFUSED_MODEL = "mmrm.eval.serving.vllm_model:RefusedModel"
"""The class for the other families. It is created to raise an error that names the family."""


@dataclass(frozen=True, slots=True)
class HeadRead:
    """The token of a prompt that a reward head reads. In vLLM it has to be the last one."""

    end_index: int
    """Index, from the end of the prompt, of the token that ends the answer's turn."""
    template_filter: str
    """The filter at the end of the chat template that makes the token that is read the last one."""


HEAD_READS = {
    "end_of_turn": HeadRead(-1, ".rstrip('\\n')"),
    "last_token": HeadRead(-2, ""),  # the newline after the end of the turn
}
"""The token that a head reads, by the value of `read` in its configuration."""

TEMPLATE = """\
{{%- if messages[-1]['role'] != 'assistant' -%}}
{{{{- raise_exception('the last message must be the answer that is scored, of the role assistant') -}}}}
{{%- endif -%}}
{{%- for message in messages -%}}
{{%- set parts = message['content'] if message['content'] is not string else [{{'text': message['content']}}] -%}}
{{%- set text = parts | selectattr('text', 'defined') | map(attribute='text') | join -%}}
{{%- for token in {vision_tokens} if token in text -%}}
{{{{- raise_exception('a text contains the vision token ' ~ token ~ ': give images as image parts') -}}}}
{{%- endfor -%}}
{{%- if '<image>' in text or '<video>' in text or '<audio>' in text -%}}
{{{{- raise_exception('a text contains a marker of an image or another medium: give images as image parts') -}}}}
{{%- endif -%}}
{{%- endfor -%}}
{system}{{%- set conversation -%}}{stock}{{%- endset -%}}
{{{{- conversation{cut} -}}}}
"""

UNUSED_VISION_TOKEN = "<|vision_pad|>"
"""A special token in the vocabularies of Qwen's families. No template writes it, so no family has it."""

SYSTEM = """\
{{%- if messages[0]['role'] != 'system' -%}}
{{%- set messages = [{{'role': 'system', 'content': {prompt}}}] + messages | list -%}}
{{%- endif -%}}
"""


def register() -> None:
    """Register the architectures of scalar checkpoints of all families in vLLM.

    vLLM calls this function in each of its processes, perhaps more than once.
    """
    from vllm import ModelRegistry

    registered = ModelRegistry.get_supported_archs()
    for model_type, family in FAMILIES.items():
        architecture = family.parts().scalar.__name__
        if architecture not in registered:
            ModelRegistry.register_model(architecture, SERVED_MODELS.get(model_type, REFUSED_MODEL))


def refuse_other_families(model_type: str, checkpoint: object) -> None:
    """Raise CheckpointError if vLLM does not serve a family of backbones.

    Args:
        model_type: The value of `model_type` in the checkpoint's config.json.
        checkpoint: The checkpoint's path or name, for the message.
    """
    family = family_of(model_type, checkpoint)
    if model_type not in SERVED_MODELS:
        served_titles = ", ".join(FAMILIES[served].title for served in SERVED_MODELS)
        raise CheckpointError(
            f"{checkpoint} is a {model_type!r} model, of the family {family.title}. vLLM serves "
            f"scalar checkpoints of {served_titles} by this plug-in: for other families it has no "
            "class here. Score with this project's own commands, or serve with eval/serve.py."
        )


def head_read_of(head: dict[str, Any], checkpoint: object) -> HeadRead:
    """Return the token that a reward head reads.

    Args:
        head: `reward_head` in the checkpoint's config.json.
        checkpoint: The checkpoint's path or name, for the message.

    Raises:
        CheckpointError: If vLLM cannot serve the head.
    """
    if head["read"] not in HEAD_READS:
        raise CheckpointError(
            f"{checkpoint}: its head reads {head['read']!r}. vLLM can read one token, at the end "
            f"of the prompt: it serves heads that read {' or '.join(HEAD_READS)}. Score with this "
            "project's own commands instead."
        )
    return HEAD_READS[head["read"]]


def refuse_joint(config: Mapping[str, Any], checkpoint: object) -> None:
    """Raise CheckpointError for a joint reward model, whose responses vLLM would score one by one.

    Args:
        config: The content of the checkpoint's config.json.
        checkpoint: The checkpoint's path or name, for the message.
    """
    if "joint_responses" in config:
        raise CheckpointError(
            f"{checkpoint} was trained to score all responses in one conversation. A request to "
            "vLLM has one response, whose score would mean nothing. Serve the checkpoint with "
            "eval/serve.py instead."
        )


def template(checkpoint: Path) -> str:
    """Return the chat template with which vLLM has to render the requests to a checkpoint.

    It is the tokenizer's own template, changed so that the last token is the one that the
    checkpoint's head reads. As in training, a conversation without a system prompt gets the
    recipe's system prompt.

    Raises:
        CheckpointError: If this plug-in cannot serve the checkpoint.
    """
    verify_settings(checkpoint)
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    refuse_other_families(config["model_type"], checkpoint)
    refuse_joint(config, checkpoint)
    system_prompt = None
    card_file = checkpoint / "judge.json"  # holds the recipe's settings of the judge
    if card_file.is_file():
        card = json.loads(card_file.read_text(encoding="utf-8"))
        system_prompt = card["backbone"]["system_prompt"]
    code_for_system_prompt = ""
    if system_prompt is not None:
        code_for_system_prompt = SYSTEM.format(prompt=json.dumps(system_prompt))
    vision_tokens = [*FAMILIES[config["model_type"]].vision_text, UNUSED_VISION_TOKEN]
    return TEMPLATE.format(
        vision_tokens=json.dumps(vision_tokens),
        system=code_for_system_prompt,
        stock=AutoTokenizer.from_pretrained(checkpoint).chat_template,
        cut=head_read_of(config["reward_head"], checkpoint).template_filter,
    )


if __name__ == "__main__":
    try:
        print(template(Path(sys.argv[1])), end="")
    except UserError as error:
        sys.exit(str(error))
