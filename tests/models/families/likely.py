"""Find a seed and a factor for `LIKELY` of test_generation.py: continuations of a random model must end at different lengths.

    python -m tests.models.families.likely internvl

A random language model ends all its texts at once or never; with its end of turn made likelier by some factor, some seeds give
greedy texts of three lengths or more.
"""

import sys
from itertools import product
from typing import Any

import torch

from mmrm.models.families.registry import FAMILIES
from tests.models import stock, tiny
from tests.models.test_generation import CASES, LIMIT

FACTORS = (2.0, 2.5, 3.0, 3.5, 4.0, 4.75)
SEEDS = range(20)


def main(family: str) -> None:
    """Print every pair that is found until one gives four lengths."""
    encoder = tiny.encoder(family)
    forbidden = encoder.vision_ids
    end = encoder.end_of_turn
    options: dict[str, Any] = {
        "max_new_tokens": LIMIT,
        "do_sample": False,
        "eos_token_id": end,
        "pad_token_id": end,
    }
    inputs = [
        stock.padded_inputs([(images, [spans])], family=family)
        for images, conversations in CASES
        for spans in tiny.written_for(family, conversations)
    ]
    for seed, factor in product(SEEDS, FACTORS):
        model = tiny.language_model(seed, family)
        lengths = []
        with torch.no_grad():
            model.lm_head.weight[end] *= factor
            for one in inputs:
                kinds = stock.kinds(model.config, one["input_ids"])
                ids = model.generate(**one, **kinds, suppress_tokens=forbidden, **options)[
                    0, one["input_ids"].shape[1] :
                ].tolist()
                lengths.append(ids.index(end) if end in ids else len(ids))
        if len(set(lengths)) > 2:
            print(f'"{family}": ({seed}, {factor}),  # lengths {lengths}', flush=True)
        if len(set(lengths)) > 3:
            return


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in FAMILIES:
        sys.exit(
            f"usage: python -m tests.models.families.likely FAMILY; families are {', '.join(FAMILIES)}"
        )
    main(sys.argv[1])
