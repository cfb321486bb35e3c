"""Writing from a packed row: token by token what the stock `generate` gives for every continuation alone."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, exp
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import Qwen2_5_VLForConditionalGeneration

from mmrm.data.preference import Message, text
from mmrm.models import generation
from mmrm.models.backbone import load_critic
from mmrm.models.config import BackboneConfig, SamplingConfig
from mmrm.models.encoder import Span
from mmrm.models.generation import Generation, WritingCost, generate, sample
from mmrm.models.packed_generation import repeated
from mmrm.models.packing.decode_attention import MAX_PADDED_RATIO, DecodePlan, decode
from mmrm.models.packing.packed_batch import PackedBatch
from mmrm.models.packing.segments import Output
from mmrm.models.portable.critic import CriticRewardModel
from tests.models import stock, tiny
from tests.models.exactness import RELATIVE, assert_exact, float64
from tests.models.packing.trees import forked

END: int = tiny.tokenizer().convert_tokens_to_ids("<|im_end|>")
FORBIDDEN: list[int] = tiny.encoder().vision_ids
LIMIT = 6


def asked(pictures: int, answer: str) -> tuple[Span, ...]:
    """Render a conversation up to the place where the critic begins to write."""
    content: Any = [{"type": "image"}] * pictures + [{"type": "text", "text": "What is it?"}]
    prompt: Message = {"role": "user", "content": content}
    return tiny.encoder().render(
        [prompt, text("assistant", answer), text("user", "judge the response.")]
    )


def case(pictures: int, *answers: str) -> stock.Case:
    return [tiny.picture(60 + 40 * i, 90, i) for i in range(pictures)], [
        asked(pictures, answer) for answer in answers
    ]


CASES = [
    case(1, "A red square.", "Blue"),
    case(0, "Yes, it is a picture of something.", "No"),
    case(2, "A", "A", "A blue circle"),
]
NAMES = tuple("abcdefg")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a backbone whose end token is likely in some places, so that continuations end at different lengths."""
    place: Path = tmp_path_factory.mktemp("backbone")
    with float64():
        model = tiny.language_model(seed=7)
        with torch.no_grad():
            model.lm_head.weight[END] *= 4.75
        model.save_pretrained(place)
    tiny.encoder().save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def critic(folder: Path) -> CriticRewardModel:
    """Return a critic in float64."""
    with float64():
        found: CriticRewardModel = load_critic(BackboneConfig(path=str(folder), dtype="float32"))
        tiny.stir(found.head, 0.5)
        return found.eval()  # type: ignore[no-any-return]


def row(cases: Sequence[stock.Case]) -> PackedBatch:
    encoder = tiny.encoder()
    return encoder.pack([encoder.encode(images, spans, None) for images, spans in cases])


def written(
    critic: Any, cases: Sequence[stock.Case], seeds: Sequence[str] = NAMES, **sampling: Any
) -> list[Generation]:
    config = SamplingConfig(**{"max_new_tokens": LIMIT, **sampling})
    return generate(critic, row(cases), end=END, forbidden=FORBIDDEN, sampling=config, seeds=seeds)


def count_feeds(critic: CriticRewardModel, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that will hold the number of rows of every decoding step."""
    fed: list[int] = []
    forward = critic.model.forward

    def counted(*, input_ids: Tensor, **inputs: Any) -> Any:
        if input_ids.shape[1] == 1:
            fed.append(len(input_ids))
        return forward(input_ids=input_ids, **inputs)

    monkeypatch.setattr(critic.model, "forward", counted)
    return fed


def stock_text(folder: Path) -> list[tuple[int, ...]]:
    """Return what the stock model writes greedily after every continuation alone."""
    plain = Qwen2_5_VLForConditionalGeneration.from_pretrained(
        folder, attn_implementation="sdpa"
    ).eval()
    options: dict[str, Any] = {
        "max_new_tokens": LIMIT,
        "do_sample": False,
        "eos_token_id": END,
        "pad_token_id": END,
    }
    found = []
    for images, conversations in CASES:
        for spans in conversations:
            inputs = stock.padded_inputs([(images, [spans])])
            kinds = (inputs["input_ids"] == plain.config.image_token_id).int()
            ids = plain.generate(
                **inputs, mm_token_type_ids=kinds, suppress_tokens=FORBIDDEN, **options
            )
            new = ids[0, inputs["input_ids"].shape[1] :].tolist()
            found.append(tuple(new[: new.index(END)] if END in new else new))
    return found


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
def test_greedy_is_the_stock_models_for_each_continuation_alone(
    folder: Path, critic: CriticRewardModel
) -> None:
    wanted = stock_text(folder)
    lengths = [len(ids) for ids in wanted]
    assert len(set(lengths)) > 3, "the case is too easy: rows should end at different lengths"
    assert min(lengths) < LIMIT // 2 < LIMIT == max(lengths)
    found = written(critic, CASES)
    assert [one.ids for one in found] == wanted
    assert [one.truncated for one in found] == [len(ids) == LIMIT for ids in wanted]


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
def test_the_end_is_read_where_a_full_forward_reads_it(critic: CriticRewardModel) -> None:
    found = written(critic, CASES)
    backbone = stock.backbone(critic.model)
    places = [(images, spans) for images, conversations in CASES for spans in conversations]
    for one, (images, spans) in zip(found, places, strict=True):
        inputs = stock.padded_inputs([(images, [spans])])
        inputs["input_ids"] = torch.cat(
            [inputs["input_ids"], torch.tensor([[*one.ids, END]])], dim=1
        )
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        wanted = stock.hidden_states(backbone, inputs)[0, -1]
        assert_exact(one.end_hidden, wanted)


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
def test_draws_depend_on_the_own_seed_alone(critic: CriticRewardModel) -> None:
    together = written(critic, CASES, temperature=1.0, top_p=0.9)
    alone = [
        written(critic, [one], NAMES[k : k + len(one[1])], temperature=1.0, top_p=0.9)
        for k, one in zip((0, 2, 4), CASES, strict=True)
    ]
    assert [one.ids for one in together] == [one.ids for part in alone for one in part]
    assert together[4].ids != together[5].ids  # the same conversation with another seed
    others = written(critic, CASES, [f"{name}2" for name in NAMES], temperature=1.0, top_p=0.9)
    assert [one.ids for one in others] != [one.ids for one in together]


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
def test_forbidden_tokens_are_never_written(critic: CriticRewardModel) -> None:
    allowed = {11, 12, END}
    others = [
        token for token in range(critic.config.text_config.vocab_size) if token not in allowed
    ]
    for temperature in (0.0, 3.0):
        sampling = SamplingConfig(temperature=temperature, max_new_tokens=LIMIT)
        found = generate(
            critic, row(CASES), end=END, forbidden=others, sampling=sampling, seeds=NAMES
        )
        assert {token for one in found for token in one.ids} <= allowed


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
def test_what_the_limit_cuts_off_ends_all_the_same(critic: CriticRewardModel) -> None:
    found = written(critic, CASES, max_new_tokens=2)
    assert [one.ids for one in found] == [one.ids[:2] for one in written(critic, CASES)]
    assert any(one.truncated for one in found)
    assert all(one.truncated == (len(one.ids) == 2) for one in found)


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
def test_a_rank_without_work_and_one_that_is_done_keep_step(
    critic: CriticRewardModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other ranks still write: this one must go on feeding until they are done, and give the same."""
    wanted = written(critic, CASES[:1], NAMES[:2])
    fed = count_feeds(critic, monkeypatch)
    assert written(critic, [], ()) == []
    assert fed == []
    monkeypatch.setattr(generation, "max_over_ranks", lambda value, device: 1)
    assert written(critic, [], ()) == []
    assert fed == [1] * (LIMIT + 1)
    assert [one.ids for one in written(critic, CASES[:1], NAMES[:2])] == [one.ids for one in wanted]
    assert len(fed) == 2 * (LIMIT + 1)


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
def test_rows_that_are_done_are_dropped(
    critic: CriticRewardModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed = count_feeds(critic, monkeypatch)
    written(critic, CASES)
    assert fed[0] == 7
    assert fed[-1] <= 3


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
def test_a_tree_is_held_once_and_dropped_with_its_last_text(
    critic: CriticRewardModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """(positions of the packed row, continuations, generated positions) in each step, as the model is fed them."""
    held: list[tuple[int, int, int]] = []
    forward = critic.model.forward

    def noted(*, attention_mask: Any = None, past_key_values: Any = None, **inputs: Any) -> Any:
        if isinstance(attention_mask, DecodePlan):
            held.append(
                (*attention_mask.shape, len(inputs["input_ids"]), past_key_values.get_seq_length())
            )
            for part in attention_mask.batches:
                assert all(
                    x.shape == part.layers[0][0].shape
                    for layer in part.layers.values()
                    for x in layer
                )
        return forward(attention_mask=attention_mask, past_key_values=past_key_values, **inputs)

    monkeypatch.setattr(critic.model, "forward", noted)
    batch = row(CASES)
    written(critic, CASES)
    assert held[0][1:] == (7, 0)
    assert batch.tokens <= held[0][0] <= MAX_PADDED_RATIO * batch.tokens
    assert [generated for _, _, generated in held] == list(range(LIMIT + 1))
    positions = [positions for positions, _, _ in held]
    assert positions == sorted(positions, reverse=True)
    assert positions[-1] < batch.tokens


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 30), st.lists(st.integers(1, 6), min_size=1, max_size=4)),
        min_size=1,
        max_size=6,
    ),
    st.data(),
)
def test_a_decoding_step_is_attention_over_what_each_continuation_sees(
    shapes: list[tuple[int, list[int]]], data: st.DataObject
) -> None:
    """Groups of any lengths, of which some continuations are dropped in two steps: as attention over the keys of each alone."""
    torch.manual_seed(0)
    heads, shared, d, written = 4, 2, 8, 3
    seen: list[torch.Tensor] = []
    end = 0
    for prompt, own in shapes:
        first, end = end, end + prompt
        for tokens in own:
            seen.append(
                torch.cat([torch.arange(first, first + prompt), torch.arange(end, end + tokens)])
            )
            end += tokens
    row = [(torch.randn(shared, end, d), torch.randn(shared, end, d)) for _ in range(2)]
    plan, left = DecodePlan.of(dict(enumerate(row)), seen), torch.arange(len(seen))
    assert (
        sum(len(part.members_by_group) * part.layers[0][0].shape[2] for part in plan.batches)
        <= MAX_PADDED_RATIO * end
    )
    for _ in range(3):
        query = torch.randn(len(left), heads, 1, d)
        key, value = torch.randn(2, len(left), shared, written, d)
        found = decode(query, key, value, plan, 1, None)
        for place, continuation in enumerate(left.tolist()):
            keys, values = (
                torch.cat([whole[:, seen[continuation]], own[place]], 1).repeat_interleave(
                    heads // shared, 0
                )
                for whole, own in zip(row[1], (key, value), strict=True)
            )
            expected = F.scaled_dot_product_attention(query[place], keys, values)
            assert_exact(found[place, 0], expected[:, 0])
        kept = sorted(data.draw(st.sets(st.integers(0, len(left) - 1), min_size=1)))
        plan.keep(torch.tensor(kept))
        left = left[kept]


def test_a_tree_that_is_written_on_costs_its_keys_and_values() -> None:
    seven = SimpleNamespace(
        hidden_size=3584,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4,
        intermediate_size=18944,
    )
    config = SimpleNamespace(model_type="qwen2_5_vl", text_config=seven)
    cost = WritingCost.of(config, SamplingConfig(max_new_tokens=1000))
    layer, position = (2 * 3584 + 3 * 18944) * 2, 28 * 2 * 4 * 128 * 2  # bytes in bf16
    assert cost.cached == position / layer
    tree = forked(100, 1, 1, 1, 1, 1).with_outputs([Output(segment) for segment in range(1, 6)])
    assert cost(tree) == 105 + ceil(cost.cached * (105 + 5000))
    # Several texts after one segment: it is computed once, and each text has its own keys.
    prompt = forked(100).with_outputs([Output(0)])
    assert cost(repeated(prompt, 5)) == 100 + ceil(cost.cached * (100 + 5000))


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(-40, 40), min_size=1, max_size=12, unique=True),
    st.floats(0.01, 1.0),
    st.floats(0.0, 1.0, exclude_max=True),
)
def test_sampling_inverts_the_nucleus(numbers: list[int], top_p: float, point: float) -> None:
    logits = [number / 7 for number in numbers]
    weights = [exp(value - max(logits)) for value in logits]
    probabilities = [weight / sum(weights) for weight in weights]
    order = sorted(range(len(logits)), key=lambda token: -probabilities[token])
    nucleus, mass = [], 0.0
    for token in order:
        nucleus.append(token)
        mass += probabilities[token]
        if mass >= top_p:
            break
    found = int(sample(torch.tensor([logits]), top_p, torch.tensor([point]))[0])
    before = sum(probabilities[token] for token in order[: order.index(found)])
    # The token belongs to the nucleus, up to rounding at its edge.
    assert before < top_p + RELATIVE
    assert before / mass <= point + RELATIVE
    assert point <= (before + probabilities[found]) / mass + RELATIVE
    assert abs(mass - top_p) < RELATIVE or found in nucleus


def test_a_point_that_rounds_to_one_takes_the_last_token_of_the_nucleus() -> None:
    logits = torch.tensor([[0.0, 1.0, -torch.inf, 2.0]])
    assert int(sample(logits, 1.0, torch.tensor([1.0 - 1e-12]))[0]) == 0
    assert int(sample(logits, 0.7, torch.tensor([1.0 - 1e-12]))[0]) == 1
