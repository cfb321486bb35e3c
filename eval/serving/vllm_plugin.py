"""The plug-in with which vLLM serves our scalar checkpoints, and the chat template for requests.

In vLLM's environment, with this project installed without its dependencies (`pip install --no-deps .`):

    python -m mmrm.eval.serving.vllm_plugin CHECKPOINT > reward.jinja
    vllm serve CHECKPOINT --chat-template reward.jinja

`POST /classify` with `{"model", "messages"}`, the answer as the last message and images as data URIs, gives the raw score as
`data[0].probs[0]`. vLLM computes in 16 bits what is stored in 32: `--dtype float32` for fp32 checkpoints.
"""

import json
import sys
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from mmrm.data.storage.manifest import verify_settings

ARCHITECTURE = "ScalarRewardModel"
MODEL = "mmrm.eval.serving.vllm_model:ServedModel"
SERVED = "qwen2_5_vl"

READS = {"end_of_turn": (-1, ".rstrip('\\n')"), "last_token": (-2, "")}
"""By the token that a head reads: the index in the prompt at which the answer's turn ends, and the
filter in the chat template that makes this token the last one."""

TEMPLATE = """\
{{%- if messages[-1]['role'] != 'assistant' -%}}
{{{{- raise_exception('the last message must be the answer that is scored, of the role assistant') -}}}}
{{%- endif -%}}
{{%- for message in messages -%}}
{{%- set parts = message['content'] if message['content'] is not string else [{{'text': message['content']}}] -%}}
{{%- set text = parts | selectattr('text', 'defined') | map(attribute='text') | join -%}}
{{%- if '<|vision_' in text or '<|image_pad|>' in text or '<|video_pad|>' in text -%}}
{{{{- raise_exception('a text contains a vision token: give images as image parts') -}}}}
{{%- endif -%}}
{{%- if '<image>' in text or '<video>' in text or '<audio>' in text -%}}
{{{{- raise_exception('a text contains a marker of an image or another medium: give images as image parts') -}}}}
{{%- endif -%}}
{{%- endfor -%}}
{system}{{%- set conversation -%}}{stock}{{%- endset -%}}
{{{{- conversation{cut} -}}}}
"""

SYSTEM = """\
{{%- if messages[0]['role'] != 'system' -%}}
{{%- set messages = [{{'role': 'system', 'content': {prompt}}}] + messages | list -%}}
{{%- endif -%}}
"""


def register() -> None:
    """Register the architecture of scalar checkpoints; vLLM calls it in each of its processes, and may do so again."""
    from vllm import ModelRegistry

    if ARCHITECTURE not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model(ARCHITECTURE, MODEL)


def read_at(head: dict[str, Any], checkpoint: object) -> tuple[int, str]:
    """Return the entry of `READS` for a checkpoint's `reward_head`.

    Raises: ValueError if the head cannot be served.
    """
    if head["read"] not in READS:
        raise ValueError(
            f"{checkpoint}: its head reads {head['read']!r}. vLLM can read one token, at the end of the prompt: it serves "
            f"heads that read {' or '.join(READS)}. Score with this project's own commands instead."
        )
    return READS[head["read"]]


def template(checkpoint: Path) -> str:
    """Return the chat template whose last token is the one that the checkpoint's head reads.

    It is the tokenizer's own template. As in training, a conversation without a system prompt gets
    the recipe's system prompt.
    """
    verify_settings(checkpoint)
    config = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    card = checkpoint / "judge.json"
    if config["model_type"] != SERVED:
        raise ValueError(
            f"{checkpoint} is a {config['model_type']!r} model. vLLM serves scalar checkpoints of {SERVED!r} by this plug-in, "
            "and no others yet: score with this project's own commands instead, or serve with eval/serve.py."
        )
    prompt = (
        json.loads(card.read_text(encoding="utf-8"))["backbone"]["system_prompt"]
        if card.is_file()
        else None
    )
    return TEMPLATE.format(
        system="" if prompt is None else SYSTEM.format(prompt=json.dumps(prompt)),
        stock=AutoTokenizer.from_pretrained(checkpoint).chat_template,
        cut=read_at(config["reward_head"], checkpoint)[1],
    )


if __name__ == "__main__":
    print(template(Path(sys.argv[1])), end="")
