"""Every family writes from a packed row, token by token, what its stock model writes for each continuation alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mmrm.models.backbone import load_critic
from mmrm.models.config import BackboneConfig, SamplingConfig
from mmrm.models.families.registry import FAMILIES
from mmrm.models.generation import WritingCost, generate
from tests.models import stock, tiny
from tests.models.exactness import assert_exact
from tests.models.families.parameters import every_family
from tests.models.test_generation import CASES, LIMIT, NAMES

LIKELY = {
    "qwen2_5_vl": (7, 4.75),
    "qwen2_vl": (13, 4.0),
    "qwen3_vl": (2, 3.0),
    "qwen3_vl_moe": (3, 3.0),
    "qwen3_5": (3, 3.0),
    "internvl": (0, 3.5),
    "video_llama_3": (13, 2.5),
    "glm4v": (10, 3.0),
    "cosmos3_edge": (1, 2.5),
}
"""A seed, and how much likelier the end of turn is made, so that continuations end at different lengths.

`python -m tests.models.families.likely NAME` prints both for a new family.
"""


def backbone(folder: Path, family: str) -> Any:
    """Write a checkpoint whose end of turn is likely in some places, and return the stock model."""
    seed, factor = LIKELY[family]
    model = tiny.language_model(seed, family)
    with torch.no_grad():
        model.lm_head.weight[tiny.encoder(family).end_of_turn] *= factor
    model.save_pretrained(folder)
    tiny.encoder(family).save_pretrained(folder)
    return model


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("family", every_family())
def test_greedy_tokens_and_the_state_at_their_end_are_the_stock_models(
    tmp_path: Path, family: str
) -> None:
    plain, encoder = backbone(tmp_path, family), tiny.encoder(family)
    end = encoder.end_of_turn
    critic = load_critic(BackboneConfig(path=str(tmp_path), dtype="float32")).eval()
    batch, sampling = (
        encoder.pack(
            [
                encoder.encode(pictures, tiny.written_for(family, turns), None)
                for pictures, turns in CASES
            ]
        ),
        SamplingConfig(max_new_tokens=LIMIT),
    )
    found = iter(
        generate(
            critic, batch, end=end, forbidden=encoder.vision_ids, sampling=sampling, seeds=NAMES
        )
    )
    lengths = []
    options: dict[str, Any] = {
        "max_new_tokens": LIMIT,
        "do_sample": False,
        "eos_token_id": end,
        "pad_token_id": end,
    }
    for images, conversations in CASES:
        for spans in conversations:
            one, inputs = next(found), stock.padded_inputs([(images, [spans])], family=family)
            kinds = stock.kinds(plain.config, inputs["input_ids"])
            ids = plain.generate(**inputs, **kinds, suppress_tokens=encoder.vision_ids, **options)
            new = ids[0, inputs["input_ids"].shape[1] :].tolist()
            wanted = new[: new.index(end)] if end in new else new
            assert list(one.ids) == wanted
            lengths.append(len(wanted))
            whole = torch.cat([inputs["input_ids"], torch.tensor([[*wanted, end]])], dim=1)
            inputs |= {"input_ids": whole, "attention_mask": torch.ones_like(whole)}
            with torch.no_grad():
                last = stock.hidden_states(stock.backbone(critic.model), inputs)[0, -1]
            assert_exact(one.end_hidden, last)
    assert len(set(lengths)) > 2, (
        "the case is too easy: continuations should end at different lengths"
    )


@pytest.mark.parametrize("family", every_family())
def test_a_position_costs_what_its_keys_and_values_take(family: str) -> None:
    config = tiny.config(family)
    text, sampling = config.text_config, SamplingConfig(max_new_tokens=10)
    with torch.device("meta"):
        model = FAMILIES[family].parts().scalar.stock(config)
    widths = [
        module.k_proj.out_features
        for name, module in model.language_model.named_modules()
        if name.endswith(".self_attn")
    ]
    held = 2 * sum(widths) / (2 * text.hidden_size + 3 * text.intermediate_size)
    assert WritingCost.of(config, sampling).cached == pytest.approx(held)
