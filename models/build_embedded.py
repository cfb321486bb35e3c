"""Builds the embedded backbone before any training: a tiny Qwen2.5-VL of the real architecture, and a tokenizer of its own.

python models/build_embedded.py FOLDER     # then train/sft.py recipes/shapes/backbone.yaml backbone.path=FOLDER

The folder is an ordinary Hugging Face checkpoint. What is small is width and depth: vision windows, M-RoPE, grouped-query
attention, the tied LM head, the special tokens and the chat template are Qwen2.5-VL's.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Tokenizer,
    Qwen2VLImageProcessorPil,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the clone, installed or not

from mmrm.data.display.command import command
from mmrm.data.synthetic.world import ShapesWorld
from mmrm.models.backbone import EMBEDDED

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)

CHAT_WORDS = "You are a helpful assistant. system user assistant yes no"
VOCABULARY, LESSONS = 1024, 1500
WIDTH, HEADS, KEY_HEADS, DEPTH, VISION_DEPTH, VISION_WIDTH = 128, 4, 2, 8, 2, 128


def train_tokenizer(texts: Iterable[str]) -> Any:
    """Return a byte-level BPE tokenizer of at most VOCABULARY entries, special tokens included: it can write any text."""
    learner = Tokenizer(BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    size = VOCABULARY - len(SPECIAL)
    learner.train_from_iterator(
        texts, BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    )
    learned = json.loads(learner.to_str())["model"]
    merges = [tuple(pair) for pair in learned["merges"]]
    tokenizer = Qwen2Tokenizer(
        vocab=learned["vocab"], merges=merges, extra_special_tokens=list(SPECIAL[1:])
    )
    tokenizer.chat_template = (EMBEDDED / "chat_template.jinja").read_text(
        encoding="utf-8"
    )  # Qwen2.5-VL's own
    tokenizer.eos_token, tokenizer.pad_token = (
        "<|im_end|>",
        "<|endoftext|>",
    )  # as Qwen2.5-VL-Instruct has them
    return tokenizer


def corpus() -> Iterable[str]:
    """Yield the texts that the tokenizer should write in few tokens: both levels of the world, and the chat's own words."""
    for level in ("demo", "hard"):
        world = ShapesWorld(level, seed=0, split="pretrain")
        yield from world.corpus(LESSONS)
        for item in map(world.item, range(LESSONS)):
            yield f"{item.question}\nResponse 1: {item.chosen}\nResponse 2: {item.rejected}\nWhich response is better?"
            yield from (
                f"<think>{item.rationale(first)}</think><answer>{2 - first}</answer>"
                for first in (True, False)
            )
    yield from [CHAT_WORDS] * 100


def architecture(ids: Mapping[str, int]) -> Qwen2_5_VLConfig:
    """Return the configuration, with the ids of SPECIAL: heads of 32 numbers, rotary parts 4 : 6 : 6 (time, row, column)."""
    text = {
        "hidden_size": WIDTH,
        "intermediate_size": 3 * WIDTH,
        "num_hidden_layers": DEPTH,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_HEADS,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 32768,
        "rope_parameters": {
            "rope_type": "default",
            "mrope_section": [4, 6, 6],
            "rope_theta": 10000.0,
        },
        "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
    }
    vision = {
        "hidden_size": VISION_WIDTH,
        "intermediate_size": 3 * VISION_WIDTH,
        "depth": VISION_DEPTH,
        "num_heads": 4,
        "out_hidden_size": WIDTH,
        "fullatt_block_indexes": [VISION_DEPTH - 1],
        "window_size": 56,
    }
    marks = {
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
    }
    return Qwen2_5_VLConfig(
        text_config=text, vision_config=vision, tie_word_embeddings=True, **marks
    )


def build(folder: Path, seed: int = 0) -> int:
    """Write config, random weights, tokenizer and image processor into `folder`; return the number of parameters."""
    tokenizer = train_tokenizer(corpus())
    torch.manual_seed(seed)
    model = Qwen2_5_VLForConditionalGeneration(
        architecture({token: tokenizer.convert_tokens_to_ids(token) for token in SPECIAL})
    )
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder, save_original_format=False)
    tokenizer.save_pretrained(folder)
    Qwen2VLImageProcessorPil(min_pixels=28 * 28, max_pixels=28 * 28 * 256).save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with command():
        print(f"{options.folder}: {build(options.folder, options.seed):,} parameters, untrained")
