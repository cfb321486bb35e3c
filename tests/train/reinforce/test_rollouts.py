"""Log-probabilities of judgements: the packed pass gives the padded stock model's, shared or not, at any temperature."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mmrm.data.preparation.mixing import Mixture, MixtureConfig
from mmrm.data.synthetic.source import ShapesConfig
from mmrm.models import generation
from mmrm.models import packed_generation as sampling
from mmrm.models.backbone import load_language_model
from mmrm.models.config import BackboneConfig, SamplingConfig
from mmrm.models.generation import Generation
from mmrm.models.packed_generation import generate_packed, log_probabilities, repeated
from mmrm.models.packing.packed_batch import PackedBatch
from mmrm.models.packing.segments import SegmentTree
from mmrm.train.reinforce.rollouts import deal_places
from mmrm.train.reinforce.stable_reinforce.pair_prompts import PairPrompts
from tests.models import stock, tiny
from tests.models.exactness import assert_exact
from tests.trees import image_inputs


def prompts(rows: int = 8, limit: int = 4096) -> PairPrompts:
    source = ShapesConfig(type="shapes", level="demo", rows=rows, text_only=0.4)
    return PairPrompts(Mixture(MixtureConfig(sources=[source])), tiny.encoder(), limit, "short")


def batch() -> tuple[list[SegmentTree], list[int], Tensor, Tensor]:
    """Return three prompts and five judgements of 1 to 4 tokens on them."""
    trees = [prompts()[place][0].tree for place in range(3)]
    ids = torch.randint(10, 200, (5, 4), generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]])
    return trees, [0, 0, 1, 2, 2], ids, mask


def ids_of(prompt: SegmentTree) -> tuple[int, ...]:
    """Return the token ids of a prompt, a tree with one conversation."""
    [conversation] = prompt.conversations()
    return conversation.ids


def by_stock(model: Any, prompt: SegmentTree, ids: list[int], temperature: float) -> Tensor:
    """Score one judgement with the stock model."""
    whole = torch.tensor([[*ids_of(prompt), *ids]])
    kinds = (whole == model.config.image_token_id).int()
    logits = model(
        input_ids=whole,
        attention_mask=torch.ones_like(whole),
        mm_token_type_ids=kinds,
        **image_inputs(prompt),
    ).logits
    predicted = (logits[0, -len(ids) - 1 : -1].float() / temperature).log_softmax(-1)
    found: Tensor = predicted.gather(1, torch.tensor(ids)[:, None])[:, 0]
    return found


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("shared", [True, False])
def test_packed_log_probabilities_and_gradients_are_the_stock_models(
    tmp_path: Path, temperature: float, shared: bool
) -> None:
    folder = tiny.checkpoint(tmp_path)
    model = load_language_model(BackboneConfig(path=str(folder), dtype="float32")).eval()
    trees, owners, ids, mask = batch()
    asked = trees if shared else [trees[owner] for owner in owners]
    found = log_probabilities(
        model, tiny.encoder(), asked, owners if shared else range(5), ids, mask, temperature
    )
    plain = tiny.language_model()
    wanted = torch.zeros(5, 4)
    for row, owner in enumerate(owners):
        length = int(mask[row].sum())
        wanted[row, :length] = by_stock(
            plain, trees[owner], ids[row, :length].tolist(), temperature
        )
    assert_exact(found, wanted)
    torch.autograd.backward(found.sum())
    torch.autograd.backward(wanted.sum())
    assert_exact(stock.gradients(model), stock.gradients(plain))


def test_sampled_judgements_end_by_themselves_or_are_cut_and_never_hold_an_image(
    tmp_path: Path,
) -> None:
    model = load_language_model(
        BackboneConfig(path=str(tiny.checkpoint(tmp_path)), dtype="float32")
    ).eval()
    encoder = tiny.encoder()
    asked = [prompts()[place][0] for place in range(4)]
    sampling = SamplingConfig(temperature=1.0, max_new_tokens=5)

    def written(budget: int) -> list[Generation]:
        trees, seeds = (
            [repeated(one.tree, 3) for one in asked],
            [[f"{one.place}/{n}" for n in range(3)] for one in asked],
        )
        return [
            one
            for found in generate_packed(model, encoder, trees, seeds, sampling, budget)
            for one in found
        ]

    found, again = written(4096), written(1)
    assert len(found) == 12
    assert all(encoder.vision.image not in one.ids for one in found)
    assert all(len(one.ids) == 5 for one in found if one.truncated)
    assert [one.ids for one in again] == [one.ids for one in found]
    assert len({one.ids for one in found}) > 6


def test_what_may_be_written_counts_when_rows_are_filled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rollout's token costs its keys and values, which are a part of what a token of a training step takes."""
    model = load_language_model(
        BackboneConfig(path=str(tiny.checkpoint(tmp_path)), dtype="float32")
    ).eval()
    encoder = tiny.encoder()
    asked = [prompts()[place][0] for place in range(4)]
    sizes: list[int] = []

    def watched(model: Any, batch: PackedBatch, **settings: Any) -> list[Generation]:
        sizes.append(sum(batch.output_counts))
        return generation.generate(
            model, batch, **settings | {"sampling": SamplingConfig(max_new_tokens=1)}
        )

    monkeypatch.setattr(sampling, "generate", watched)
    budget = max(prompt.tree.cost for prompt in asked) + 1000
    for new_tokens in (1, 10_000):
        trees, seeds = (
            [repeated(prompt.tree, 3) for prompt in asked],
            [["a", "b", "c"]] * 4,
        )
        generate_packed(
            model, encoder, trees, seeds, SamplingConfig(max_new_tokens=new_tokens), budget
        )
    assert sizes == [4 * 3, 3, 3, 3, 3]


def test_every_place_has_its_prompt_and_half_of_an_epoch_has_the_winner_first() -> None:
    asked = prompts(rows=8)
    epoch = [asked[place][0] for place in range(8)]
    winners = [one.winner for one in epoch]
    assert (winners.count(1), winners.count(2)) == (4, 4)
    assert {one.shown for one in epoch} != {
        asked[place][0].shown for place in range(8, 16)
    } or winners != [asked[place][0].winner for place in range(8, 16)]
    assert ids_of(asked[3][0].tree) == ids_of(epoch[3].tree)
    for one in epoch:
        assert len(one.images) == len(one.tree.images)
        assert repeated(one.tree, 2).tokens == len(ids_of(one.tree))


def test_a_pair_in_both_orders_begins_with_the_order_that_it_has_alone() -> None:
    source = ShapesConfig(type="shapes", level="demo", rows=8, text_only=0.4)
    mixture = Mixture(MixtureConfig(sources=[source]))
    both = PairPrompts(mixture, tiny.encoder(), 4096, "short", both_orders=True)
    assert (both.prompts_per_place, prompts().prompts_per_place) == (2, 1)
    for place in range(8):
        [alone] = prompts()[place]
        first, second = both[place]
        assert (first.shown, first.winner) == (alone.shown, alone.winner)
        assert ids_of(first.tree) == ids_of(alone.tree)
        assert (second.record, second.place) == (alone.record, place)
        assert first.winner is not None
        assert second.winner == 3 - first.winner
        assert second.shown != first.shown


def test_a_prompt_that_is_too_long_is_skipped_and_counted() -> None:
    lengths = [len(ids_of(prompts()[place][0].tree)) for place in range(8)]
    limit = max(lengths) - 1
    asked = prompts(limit=limit)
    found = [len(ids_of(asked[place][0].tree)) for place in range(8)]
    assert max(found) <= limit
    assert asked.too_long == lengths.count(max(lengths)) == 1
    assert [one for one in found if one not in lengths] == []


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 4), st.integers(1, 4))
def test_a_step_has_the_same_questions_on_any_number_of_ranks(
    num_batches: int, steps_per_batch: int, num_ranks: int, records_per_rank: int
) -> None:
    """Each rank takes one block of a batch, and each step one part of every rank's block."""
    records_per_step = num_ranks * records_per_rank
    places = deal_places(num_batches, steps_per_batch, records_per_step, num_ranks)
    blocks_by_rank = np.split(places, num_batches * num_ranks)
    for step in range(num_batches * steps_per_batch):
        batch, step_in_batch = divmod(step, steps_per_batch)
        start = step_in_batch * records_per_rank
        trained_on: list[int] = []
        for rank in range(num_ranks):
            block = blocks_by_rank[batch * num_ranks + rank]
            trained_on += block[start : start + records_per_rank].tolist()
        assert trained_on == list(range(step * records_per_step, (step + 1) * records_per_step))
