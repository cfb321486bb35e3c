"""Measure the memory of an open mixture at several sizes, and print the slope in bytes a record.

    python tools/measure_memory.py                        # 10,000, 100,000 and 1,000,000 synthetic records
    python tools/measure_memory.py --sizes 1000 10000     # quick

Half of the records are JSON lines, half parquet rows with an image inside. Each size is prepared, and then opened and
read in a process of its own: an epoch's order, and 2,000 records at random places. `anonymous` is memory that the process
owns; `file` is memory-mapped and belongs to the page cache, which the kernel takes back when it needs it.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the clone, installed or not

import argparse
import io
import json
import resource
import subprocess
import tempfile
import time

import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table

from mmrm.data.preparation.mixing import Mixture, MixtureConfig

READS = 2000


def write_records(folder: Path, count: int) -> None:
    """Write `count` records of about 1.2 kB: half as JSON lines, half as parquet in files of 50,000 rows."""
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    buffer = io.BytesIO()
    Image.effect_noise((24, 24), 60).convert("RGB").save(buffer, "JPEG")
    image = [{"bytes": buffer.getvalue(), "path": None}]
    with (folder / "text.jsonl").open("w") as file:
        for number in range(count // 2):
            row = {
                "prompt": f"Question {number}? " * 12,
                "chosen": f"Answer {number}. " * 24,
                "rejected": "No. " * 90,
            }
            file.write(json.dumps(row) + "\n")
    for start in range(0, count // 2, 50_000):
        rows = range(start, min(start + 50_000, count // 2))
        columns = {
            "images": [image] * len(rows),
            "prompt": [f"What is in picture {number}?" for number in rows],
            "chosen": [f"Noise {number}. " * 10 for number in rows],
            "rejected": ["A cat. " * 20] * len(rows),
        }
        pq.write_table(pa.table(columns), folder / f"seen-{start}.parquet", row_group_size=1000)


def mixture(folder: Path) -> Mixture:
    """Open the records of `folder`, reading them through if that has not been done."""
    sources = [
        {"type": "project", "name": "told", "path": str(folder / "text.jsonl")},
        {"type": "project", "name": "seen", "path": str(folder), "files": ["*.parquet"]},
    ]
    section = {"sources": sources, "cache": str(folder / "cache"), "workers": 2, "validation": 1000}
    return Mixture(MixtureConfig.model_validate(section))


def measure(folder: Path) -> dict[str, float]:
    """Open, draw an order and read; return MiB and seconds."""
    start = time.perf_counter()
    found = mixture(folder)
    opened = time.perf_counter() - start
    order = found.order(0)
    for index in order[np.random.default_rng(0).integers(0, len(order), READS)]:
        found[int(index)]
    reads = (time.perf_counter() - start - opened) / READS
    sizes = {"anonymous": status("RssAnon"), "file": status("RssFile"), "peak": status("VmHWM")}
    return {**sizes, "open_s": opened, "read_ms": 1000 * reads}


def status(key: str) -> float:
    """Return a figure of this process in MiB, as the kernel gives it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(key))


def prepare(folder: Path) -> dict[str, float]:
    """Read the records through for the first time; return the seconds and the peaks of this process and its workers."""
    start = time.perf_counter()
    mixture(folder)
    workers = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    return {
        "prepare_s": time.perf_counter() - start,
        "prepare_peak": status("VmHWM"),
        "worker_peak": workers,
    }


def in_own_process(step: str, folder: Path) -> dict[str, float]:
    """Run `prepare` or `measure` in a fresh process."""
    command = [sys.executable, __file__, "--step", step, "--folder", str(folder)]
    result: dict[str, float] = json.loads(
        subprocess.run(command, capture_output=True, text=True, check=True).stdout
    )
    return result


def main() -> None:
    """Print a row a size, and the slope between the smallest and the largest."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--step", choices=["prepare", "measure"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step is not None:
        print(json.dumps({"prepare": prepare, "measure": measure}[options.step](options.folder)))
        return
    found: dict[int, dict[str, float]] = {}
    for size in options.sizes:
        with tempfile.TemporaryDirectory() as name:
            write_records(Path(name), size)
            found[size] = in_own_process("prepare", Path(name)) | in_own_process(
                "measure", Path(name)
            )
    table = Table("records", *next(iter(found.values())), title="MiB of memory and times")
    for size, figures in found.items():
        table.add_row(f"{size:,}", *(f"{value:.2f}" for value in figures.values()))
    small, large = min(found), max(found)
    for key in ("anonymous", "file"):
        slope = (found[large][key] - found[small][key]) * 2**20 / max(1, large - small)
        table.caption = f"{table.caption or 'slope'}  {key} {slope:.1f} bytes a record"
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
