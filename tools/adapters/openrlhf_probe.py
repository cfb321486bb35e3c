"""python openrlhf_probe.py FILE KIND TOKENIZER ROWS: OpenRLHF's own executors load FILE; KIND is `reward_func` or `agent`.

ROWS: JSON, a list of `{"question", "images": [paths], "responses": [texts]}`. The last line printed: JSON, versions and rewards.
Only the engine that would sample the responses is a stand-in. Runs in OpenRLHF's environment, without this project.
"""

import asyncio
import json
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from openrlhf.datasets.prompts_dataset import preprocess_data
from openrlhf.trainer.ray.vllm_engine import _load_agent_executor
from openrlhf.utils.agent import SingleTurnAgentExecutor
from transformers import AutoProcessor


class Engine:
    """Writes given responses, one a call."""

    def __init__(self, processor: Any, responses: list[str]) -> None:
        self.tokenizer, self.responses = processor.tokenizer, iter(responses)

    async def generate(self, ids: list[int], settings: Any, multi_modal_data: Any = None) -> Any:
        """Answer as the Ray actor around vLLM does."""
        text = next(self.responses)
        tokens = self.tokenizer(text + "<|im_end|>")["input_ids"]
        return SimpleNamespace(
            outputs=[
                SimpleNamespace(token_ids=tokens, text=text, finish_reason="stop", logprobs=None)
            ]
        )


async def group(executor: Any, processor: Any, row: dict[str, Any]) -> list[float]:
    """Return the rewards of a row, its responses concurrently, as `generate_responses` does."""
    question = "<image>" * len(row["images"]) + row["question"]
    prompt, _ = preprocess_data(
        {"input": question}, apply_chat_template=processor.apply_chat_template
    )
    settings, engine = (
        SimpleNamespace(max_tokens=64, logprobs=None),
        Engine(processor, row["responses"]),
    )
    label, images = {"images": row["images"]}, row["images"] or None
    tasks = [
        executor.execute(prompt, label, settings, 4096, processor, engine, images=images)
        for _ in row["responses"]
    ]
    return [float(found["reward"]) for found in await asyncio.gather(*tasks)]


def main(file: str, kind: str, tokenizer: str, rows: str) -> None:
    """Print what the file gives."""
    executor = _load_agent_executor(file) if kind == "agent" else SingleTurnAgentExecutor(file)
    processor = AutoProcessor.from_pretrained(tokenizer)
    found = [
        asyncio.run(group(executor, processor, row))
        for row in json.loads(Path(rows).read_text(encoding="utf-8"))
    ]
    print(
        json.dumps(
            {
                "versions": {name: version(name) for name in ("openrlhf", "transformers", "ray")},
                "rewards": found,
            }
        )
    )


main(*sys.argv[1:])
