"""What data.validation withholds from training: its file, the loss on it, and the rows that a judge is scored on."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor, nn

from data.errors import RecordError, UserError
from data.mixture import Mixture
from data.preference import Preference
from data.storage.files import whole_file
from eval.benchmarks.benchmark import Benchmark, LoadedBenchmark, Location
from eval.benchmarks.preference_folder import PREFERENCE_FOLDER, as_example, distinct
from eval.benchmarks.rows import loaded
from eval.judges.packed_inference import Packed, run_packed
from eval.running.annotation import as_row
from models.distributed import gather, rank, world_size
from models.packing.groups import Group, PackedBatch
from train.recipe.recipe import HELD_OUT
from train.supervised.objectives import Objective
from train.supervised.steps import Encode, PackedRow, PairEncoder

FILE = "validation.jsonl"
"""In the run folder: the held-out records in this project's format, images included, as an ensemble takes them."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The held-out records that can be used, and the numbers of the loss beside their tokens."""

    records: Sequence[Preference]
    margins: Tensor
    """(records,) fp32."""
    response_tokens: Tensor
    """(records, 2) int64."""

    @classmethod
    def load(cls, mixture: Mixture, encode: PairEncoder, console: Console) -> HeldOut:
        """Read the records, each rank trying to encode a share; those that cannot be used are left out and counted.

        Raises: UserError for more of them than `data.bad_records` allows.
        """
        numbers: dict[int, tuple[float, tuple[int, ...]]] = {}
        errors: list[str] = []
        for index in range(rank(), len(mixture.validation), world_size()):
            try:
                encoded = encode(distinct(mixture.validation[index]))
            except RecordError as error:
                errors.append(str(error))
            else:
                numbers[index] = encoded.margin, encoded.response_tokens
        found = {index: one for part in gather(numbers) for index, one in part.items()}
        errors = [error for part in gather(errors) for error in part]
        policy = mixture.config.bad_records
        if errors:
            message = f"{len(errors):,} of {len(mixture.validation):,} held-out records cannot be used. The first: {errors[0]}"
            if policy.policy == "strict" or not found or len(errors) > max(1, policy.limit * len(mixture.validation)):
                raise UserError(message)
            if rank() == 0:
                console.print(message, markup=False, highlight=False)
        usable = sorted(found)
        records = [mixture.validation[index] for index in usable]
        margins = torch.tensor([found[index][0] for index in usable], dtype=torch.float32)
        return cls(records, margins, torch.tensor([found[index][1] for index in usable]))

    def write(self, folder: Path) -> None:
        """Write the records into a run's folder."""
        with whole_file(folder / FILE) as file:
            file.writelines(json.dumps(as_row(record, record.rationale), ensure_ascii=False) + "\n" for record in self.records)

    def benchmark(self) -> tuple[Benchmark, LoadedBenchmark]:
        """Return the records as a benchmark whose groups are the sources."""
        examples = [as_example(replace(record, category=record.source)) for record in self.records]
        rows = loaded(HELD_OUT, examples, Location(location="data.validation"), "data.validation")
        return replace(PREFERENCE_FOLDER, name=HELD_OUT), rows


@dataclass(frozen=True, slots=True)
class HeldOutEncoder:
    """A held-out record as the group that training would learn; every second judgement has the winner first."""

    encode: Encode
    records: Sequence[Preference]

    def __call__(self, index: int) -> Group:
        """Encode record `index`."""
        return self.encode(self.records[index], index % 2).group


@torch.no_grad()
def held_out_loss(
    model: nn.Module, objective: Objective, encode: Encode, held: HeldOut, used: Sequence[int], packed: Packed
) -> float:
    """Return the loss that training minimises over the `used` held-out records, in fp32.

    All ranks must call together. `model` may be wrapped, and must be in eval mode.
    """

    def run(batch: PackedBatch, places: list[int]) -> list[dict[str, float]]:
        """Return the sums of a row for its first item, and nothing for the others."""
        numbers = held.margins[places], held.response_tokens[places].flatten(), torch.zeros(len(places), dtype=torch.bool)
        row = PackedRow(batch, len(places), *numbers).to(packed.device)
        loss, sums = objective.loss(model, row, torch.ones(2, device=packed.device))
        found = {name: float(value) for name, value in sums.items()} | {"loss": float(loss), "records": float(len(places))}
        return [found if number == 0 else {} for number in range(len(places))]

    total: defaultdict[str, float] = defaultdict(float)
    for part in run_packed(packed, used, HeldOutEncoder(encode, held.records), run):
        for name, value in part.items():
            total[name] += value
    return objective.mean_loss(total)
