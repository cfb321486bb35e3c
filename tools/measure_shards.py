"""Measure a source of shards: the first reading, memory, open files and the time to the first step.

    python -m tools.measure_shards                              # 3,000,000 synthetic records
    python -m tools.measure_shards --records 20000 --size 0.002 # quick

Half of the records are texts, half have an image of their own. The shards are written directly, without
the order that `data/make_shards.py` draws. Every step below is measured in a process of its own: the
first reading, which makes the row index; opening the mixture; the order of an epoch from all shards and
from few; and the first step of training of one rank, from the start of the process to 64 records that
are packed for the embedded backbone.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mmrm.data.preparation.mixing import Mixture, MixtureConfig
from mmrm.data.storage.files import content_digest, parallel_results, write_json
from mmrm.data.storage.shard_files import (
    ENTRY,
    FORMAT,
    INDEX,
    MANIFEST,
    MadeOf,
    ShardFile,
    ShardManifest,
    ShardWriter,
)

RECORDS_OF_STEP = 64
STEPS_READ = 20
"""Steps of which the records are read, for the rate and the number of shards in a step."""
SHARDS_TOGETHER = 8


def record_row(number: int, writer: ShardWriter) -> dict[str, Any]:
    """Return a record of about 1 kB of text; every second one has an image of its own."""
    row: dict[str, Any] = {
        "prompt": f"Question {number}? " * 12,
        "chosen": f"Answer {number}. " * 24,
        "rejected": "No. " * 90,
    }
    if number % 2:
        noise = np.random.default_rng(number).integers(0, 256, (4, 4, 3), np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(noise).resize((56, 56)).save(buffer, "JPEG")
        row["images"] = [writer.place(buffer.getvalue())]
    return row


def write_shard(folder: Path, job: tuple[int, int, int]) -> tuple[ShardFile, bytes]:
    """Write the records `job[1]` to `job[2]` into shard `job[0]`; return its line and its entries."""
    shard, start, end = job
    path = folder / f"{shard:05}.shard"
    with path.open("wb") as file:
        writer = ShardWriter(file)
        for number in range(start, end):
            writer.add(partial(record_row, number, writer), str(number))
    line = ShardFile(name=path.name, size=writer.size, records=end - start, digest=writer.digest())
    return line, np.array(writer.entries, ENTRY).tobytes()


def write_shards(folder: Path, num_records: int, shard_bytes: int, workers: int) -> None:
    """Write synthetic records into shards of about `shard_bytes` bytes."""
    writer = ShardWriter(io.BytesIO())
    for number in range(200):
        writer.add(partial(record_row, number, writer), str(number))
    records_of_shard = max(1, round(shard_bytes * 200 / writer.size))
    starts = range(0, num_records, records_of_shard)
    jobs = [
        (shard, start, min(start + records_of_shard, num_records))
        for shard, start in enumerate(starts)
    ]
    with parallel_results(partial(write_shard, folder), jobs, workers) as results:
        written = list(results)
    entries = np.frombuffer(b"".join(entries for _, entries in written), ENTRY)
    np.save(folder / INDEX, entries)
    manifest = ShardManifest(
        format=FORMAT,
        files=[line for line, _ in written],
        index_digest=content_digest(folder / INDEX),
        made_of=MadeOf(
            source={}, name="synthetic", licence="none", revision="local", seed=0, left_out={}
        ),
    )
    write_json(folder / MANIFEST, manifest.model_dump())


def mixture(folder: Path, shards_together: int | None = None) -> Mixture:
    """Open the shards as the only source of a recipe."""
    config = {
        "sources": [{"type": "shards", "path": str(folder)}],
        "cache": str(folder / "cache"),
        "shards_together": shards_together,
    }
    return Mixture(MixtureConfig.model_validate(config))


def memory() -> dict[str, float]:
    """Return the largest memory of this process, and what is its own now, in MB."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    anonymous = next(line for line in status.splitlines() if line.startswith("RssAnon"))
    return {
        "most MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3,
        "own MB": int(anonymous.split()[1]) / 1e3,
    }


def open_shards() -> int:
    """Return the number of shards that this process holds open."""
    links = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return sum(link.endswith(".shard") for link in links)


def measure_step(step: str, folder: Path, started: float) -> dict[str, float]:
    """Do one of the steps in this process, and return its figures.

    Args:
        step: The name of the step.
        folder: The folder of the shards.
        started: When the process was started, in seconds of `time.time`.
    """
    figures: dict[str, float] = {}
    if step in ("first reading", "opening"):
        begin = time.perf_counter()
        found = mixture(folder)
        figures["seconds"] = time.perf_counter() - begin
        figures["records"] = len(found)
    if step in ("order from all", "order from few"):
        shards_together = SHARDS_TOGETHER if step == "order from few" else None
        found = mixture(folder, shards_together)
        begin = time.perf_counter()
        order = found.order(0)
        figures["seconds"] = time.perf_counter() - begin
        ends = found.splits[0].block_ends
        shards = np.searchsorted(ends, found.splits[0].rows[order], side="right")
        of_steps = [
            shards[start : start + RECORDS_OF_STEP]
            for start in range(0, len(order), RECORDS_OF_STEP)
        ]
        figures["shards of a step, mean"] = float(np.mean([len(np.unique(s)) for s in of_steps]))
        begin = time.perf_counter()
        indices = order[: STEPS_READ * RECORDS_OF_STEP].tolist()
        for index in indices:
            found[index]
        figures["records read a second"] = len(indices) / (time.perf_counter() - begin)
        figures["open shards"] = open_shards()
    if step == "first step":
        from mmrm.models.backbone import load_encoder
        from mmrm.models.config import BackboneConfig
        from mmrm.train.supervised.steps import (
            MixtureRecords,
            ResponseEncoder,
            StepDataset,
            shared_costs,
        )

        encoder = load_encoder(BackboneConfig(path="embedded", dtype="float32"))
        found = mixture(folder, SHARDS_TOGETHER)
        records = MixtureRecords(found, ResponseEncoder(encoder, "end_of_turn"), 4)
        steps = StepDataset(
            records,
            encoder.pack,
            records_per_step=RECORDS_OF_STEP,
            steps=10,
            token_budget=4096,
            costs=shared_costs(found),
        )
        rows = steps[0]["rows"]
        figures["seconds from the start of the process"] = time.time() - started
        figures["rows"] = len(rows)
        figures["open shards"] = open_shards()
    return figures | memory()


STEPS = ("first reading", "opening", "order from all", "order from few", "first step")


def main() -> None:
    """Write the shards, and measure every step in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=3_000_000)
    parser.add_argument("--size", type=float, default=0.1, help="the size of a shard in GB")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--folder", type=Path, help="keep the shards in this folder")
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step is not None:
        started = float(os.environ["STARTED"])
        print(json.dumps(measure_step(arguments.step, arguments.folder, started)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / MANIFEST).exists():
            begin = time.perf_counter()
            write_shards(folder, arguments.records, round(1e9 * arguments.size), arguments.workers)
            print(f"written in {time.perf_counter() - begin:.0f} s", flush=True)
        num_shards = len(list(folder.glob("*.shard")))
        num_bytes = sum(path.stat().st_size for path in folder.glob("*.shard"))
        index_bytes = (folder / INDEX).stat().st_size
        print(
            f"{arguments.records:,} records, {num_shards:,} shards, {num_bytes / 1e9:.2f} GB, index "
            f"{index_bytes / 1e6:.0f} MB; {os.cpu_count()} cores",
            flush=True,
        )
        for step in STEPS:
            command = [sys.executable, "-m", "tools.measure_shards", "--step", step]
            finished = subprocess.run(
                [*command, "--folder", str(folder)],
                env=os.environ | {"STARTED": str(time.time())},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            figures = json.loads(finished.stdout)
            described = ", ".join(f"{name} {value:,.2f}" for name, value in figures.items())
            print(f"{step}: {described}", flush=True)


if __name__ == "__main__":
    main()
