"""TRL trains two steps of GRPO on a reward of ours, images included, its groups split over ranks; then every reward is checked.

    torchrun --nproc-per-node 2 tools/adapters/train_trl.py CHECKPOINT [--url http://127.0.0.1:8000]

The policy is the embedded backbone; the reward is the checkpoint, in process, or behind eval/serve.py through the adapter. Images
need torchvision (TRL's processor does): without it the prompts are text. Prints the largest difference of the rewards that TRL
trained on to `score()`.
"""

import argparse
import io
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from PIL import Image
from torch import distributed
from transformers import AutoProcessor, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # the clone, installed or not

from mmrm.data.synthetic.rng import Rng
from mmrm.data.synthetic.scenes import LEVELS, draw, png, sample
from mmrm.eval.adapters.trl_reward import Reward, last_text
from mmrm.eval.judges.checkpoint import Runtime
from mmrm.eval.judges.loading import load_judge
from mmrm.models.backbone import EMBEDDED
from mmrm.models.distributed import gather

GROUP, ROWS, STEPS = 8, 4, 2


def main() -> None:
    """Train, and compare on every rank."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--url")
    options = parser.parse_args()
    judge = load_judge(options.checkpoint, Runtime(torch.device("cpu")))
    served = Reward(options.url) if options.url else None
    images = find_spec("torchvision") is not None
    seen: list[tuple[Any, str, float]] = []

    async def reward(prompts: list[Any], completions: list[Any], **columns: Any) -> list[float]:
        scores = (
            await served(prompts, completions, **columns)
            if served
            else judge.reward(prompts, completions, **columns)
        )
        seen.extend(zip(prompts, map(last_text, completions), scores, strict=True))
        return scores

    questions = [f"How many shapes are there in picture {number}?" for number in range(STEPS)]
    rows: dict[str, list[Any]] = {
        "prompt": [[{"role": "user", "content": question}] for question in questions]
    }
    if images:
        rows["images"] = [
            [Image.open(io.BytesIO(png(draw(sample(Rng(number), LEVELS["demo"])))))]
            for number in range(STEPS)
        ]
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=str(EMBEDDED),
            processing_class=AutoProcessor.from_pretrained(EMBEDDED)
            if images
            else AutoTokenizer.from_pretrained(EMBEDDED),
            reward_funcs=reward,
            train_dataset=Dataset.from_dict(rows),
            args=GRPOConfig(
                output_dir=folder,
                max_steps=STEPS,
                per_device_train_batch_size=ROWS,
                num_generations=GROUP,
                max_completion_length=8,
                use_cpu=True,
                report_to=[],
                logging_steps=1,
                save_strategy="no",
                disable_tqdm=True,
                ddp_find_unused_parameters=True,  # the vision tower, of text
            ),
        )
        trainer.train()
    apart = []
    for prompt, completion, score in seen:
        apart.append(abs(judge.score(prompt, [completion])[0] - score))
    everywhere = gather(({last_text(prompt) for prompt, _, _ in seen}, max(apart), len(apart)))
    if distributed.get_rank() == 0:
        split = sum(len(everywhere[0][0] & other) for other, _, _ in everywhere[1:])
        largest, count = max(one for _, one, _ in everywhere), sum(one for _, _, one in everywhere)
        what = "with images" if images else "text"
        print(
            f"{STEPS} steps, {count} rewards {what}, {split} groups on both ranks, largest difference to score() {largest:.1e}"
        )


if __name__ == "__main__":
    main()
