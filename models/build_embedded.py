"""Build the embedded backbone: a tiny Qwen2.5-VL with random weights, and its own tokenizer.

    python models/build_embedded.py FOLDER

Then train it with `train/sft.py recipes/shapes/backbone.yaml backbone.path=FOLDER`.

The folder is an ordinary Hugging Face checkpoint with the real architecture. Only its width and
depth are small: vision windows, M-RoPE, grouped-query attention, the tied LM head, the special
tokens and the chat template are those of Qwen2.5-VL.
"""

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

if not __package__:  # started by its path: import the mmrm of its own clone
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mmrm.data.display.command import exit_on_user_error
from mmrm.data.display.command_parser import CommandParser
from mmrm.data.synthetic.world import ShapesGenerator
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
"""Special tokens of Qwen2.5-VL."""
CHAT_WORDS = "You are a helpful assistant. system user assistant yes no"
"""Words that the chat template and short answers use."""
VOCABULARY = 1024
"""The largest number of tokens, with the special tokens."""
EXAMPLES = 1500
"""The number of generated examples of each kind, at each level, that the tokenizer learns from."""
CHAT_WORDS_REPEATS = 100
"""The number of times that `CHAT_WORDS` are repeated, so that each of these words is one token."""
MIN_PIXELS = 28 * 28
"""The size of the smallest image: one token."""
MAX_PIXELS = 256 * MIN_PIXELS
"""The size of the largest image: 256 tokens."""
WIDTH = 128
HEADS = 4
KEY_HEADS = 2
DEPTH = 8
VISION_DEPTH = 2
VISION_WIDTH = 128


def train_tokenizer(texts: Iterable[str]) -> Any:
    """Return a tokenizer like that of Qwen2.5-VL, whose vocabulary is learned from `texts`.

    It is a byte-level BPE, so it can encode any text. It has at most VOCABULARY tokens, with the
    special tokens.
    """
    learner = Tokenizer(BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    learner.train_from_iterator(texts, trainer)
    learned = json.loads(learner.to_str())["model"]
    merges = [tuple(pair) for pair in learned["merges"]]
    # Qwen2Tokenizer adds the first special token itself.
    tokenizer = Qwen2Tokenizer(
        vocab=learned["vocab"], merges=merges, extra_special_tokens=list(SPECIAL[1:])
    )
    # As in Qwen2.5-VL-Instruct.
    tokenizer.chat_template = (EMBEDDED / "chat_template.jinja").read_text(encoding="utf-8")
    tokenizer.eos_token = "<|im_end|>"
    tokenizer.pad_token = "<|endoftext|>"
    return tokenizer


def corpus() -> Iterable[str]:
    """Yield the texts from which the tokenizer learns its vocabulary.

    They are questions about generated pictures of shapes, with responses and judgements, of both
    levels of difficulty, and then the words of the chat template.
    """
    for level in ("demo", "hard"):
        shapes = ShapesGenerator(level, seed=0, split="pretrain")
        yield from shapes.corpus(EXAMPLES)
        for number in range(EXAMPLES):
            item = shapes.item(number)
            yield (
                f"{item.question}\nResponse 1: {item.chosen}\nResponse 2: {item.rejected}\n"
                "Which response is better?"
            )
            yield f"<think>{item.rationale(chosen_first=True)}</think><answer>1</answer>"
            yield f"<think>{item.rationale(chosen_first=False)}</think><answer>2</answer>"
    yield from [CHAT_WORDS] * CHAT_WORDS_REPEATS


def architecture(special_ids: Mapping[str, int]) -> Qwen2_5_VLConfig:
    """Return the configuration of the embedded model, a tiny Qwen2.5-VL.

    Args:
        special_ids: The token id of each of the special tokens.
    """
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
            # The 32 dimensions of a head are 16 pairs: 4 encode the frame, 6 the row, 6 the column.
            "mrope_section": [4, 6, 6],
            "rope_theta": 10000.0,
        },
        "bos_token_id": special_ids["<|endoftext|>"],
        "eos_token_id": special_ids["<|im_end|>"],
        "pad_token_id": special_ids["<|endoftext|>"],
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
    return Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        tie_word_embeddings=True,
        image_token_id=special_ids["<|image_pad|>"],
        video_token_id=special_ids["<|video_pad|>"],
        vision_start_token_id=special_ids["<|vision_start|>"],
        vision_end_token_id=special_ids["<|vision_end|>"],
    )


def build(folder: Path, seed: int = 0) -> int:
    """Write a checkpoint with random weights into `folder`, and return its number of parameters.

    The folder also gets the tokenizer and the image processor. `seed` is that of the weights.
    """
    tokenizer = train_tokenizer(corpus())
    special_ids = {token: tokenizer.convert_tokens_to_ids(token) for token in SPECIAL}
    torch.manual_seed(seed)
    model = Qwen2_5_VLForConditionalGeneration(architecture(special_ids))
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder, save_original_format=False)
    tokenizer.save_pretrained(folder)
    image_processor = Qwen2VLImageProcessorPil(min_pixels=MIN_PIXELS, max_pixels=MAX_PIXELS)
    image_processor.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


if __name__ == "__main__":
    parser = CommandParser("models/build_embedded.py", __doc__)
    parser.add_argument("folder", type=Path, help="The folder of the checkpoint.")
    parser.add_argument("--seed", type=int, default=0, help="The seed of the weights.")
    options = parser.parse_args()
    with exit_on_user_error():
        print(f"{options.folder}: {build(options.folder, options.seed):,} parameters, untrained")
