"""Write docs/evidence.md, the page of all measurements that are kept as JSON files in docs/evidence/.

    python train/throughput.py --json docs/evidence/h100_7b.json      # a measurement of speed and memory
    make gpu-check; cp .cache/gpu_check/gpu_check.json docs/evidence/h100_check.json
    python -m tools.evidence

A file stays as it was written. The page states for each one the machine, the commit and the versions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmrm.data.storage.files import read_json, write_whole

CLONE = Path(__file__).resolve().parents[1]
FOLDER = CLONE / "docs" / "evidence"
PAGE = CLONE / "docs" / "evidence.md"

INTRODUCTION = """# Evidence

<!-- Written by `python -m tools.evidence` from the files in docs/evidence/. -->

Every table is one file in [docs/evidence](evidence), as a command wrote it on the machine that is
named. To add a measurement of your machine:

```sh
python train/throughput.py --json docs/evidence/NAME.json
python -m tools.evidence
```

`make gpu-check` writes `gpu_check.json` into `.cache/gpu_check/`: copy it to `docs/evidence/` under a
name of its own.

- **MFU**: the work of the step, in which every token and image patch counts once, as a share of
  what the machine computes in the same time in large matrix products, measured in the same process.
- **MFU with copies**: the same, but the prompt and the images of a pair count for each of its
  responses, as frameworks that copy them count.
- **peak**: on a GPU the memory of all tensors, on a CPU the most that the process has held so far.
"""


def page(files: Sequence[Path]) -> str:
    """Return the text of the page about measurements in `files`, in their order.

    Raises:
        UserError: A file is no JSON.
        ValueError: A file is of neither command.
    """
    sections = [INTRODUCTION]
    for file in files:
        content = read_json(file)
        if "results" in content:
            sections.append(throughput_section(file.stem, content))
        elif "lines" in content:
            sections.append(check_section(file.stem, content))
        else:
            raise ValueError(
                f"{file} has neither `results` nor `lines`: it was written by neither "
                "train/throughput.py nor tools/gpu_check/run.py"
            )
    return "\n".join(sections)


def throughput_section(name: str, content: Mapping[str, Any]) -> str:
    """Return the section about a file of train/throughput.py with its variants."""
    about = content["about"]
    teraflops = 2 * content["multiply_adds_per_second"] / 1e12
    lines = [
        f"## {name}: speed and memory",
        "",
        f"{about['device']}; shape {about['shape']}, {about['pairs']} pairs, {about['dtype']}; torch "
        f"{about['torch']}, transformers {about['transformers']}, Python {about['python']}; "
        f"{about['clock']}; {about['date']}, commit {about['commit']}. Matrix products: "
        f"{teraflops:.3g} TFLOP/s.",
        "",
        "| task | variant | checkpointing | rows | pairs/s | × stock | MFU | MFU with copies | peak, GiB |",
        "|---|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for result in content["results"]:
        cells = [
            result["what"],
            result["variant"],
            result["checkpointing"],
            str(result["rows"]),
            figure(result["pairs_per_second"], "{:.2f}", "does not fit"),
            figure(result["times_stock"], "{:.2f}"),
            figure(result["mfu"], "{:.0%}"),
            figure(result["mfu_with_copies"], "{:.0%}"),
            figure(result["peak_gib"], "{:.1f}"),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def figure(value: float | None, form: str, absent: str = "–") -> str:
    """Return a figure as a text, in the format `form`; `absent` if the figure is None."""
    return absent if value is None else form.format(value)


def check_section(name: str, content: Mapping[str, Any]) -> str:
    """Return the section about a file of tools/gpu_check/run.py."""
    lines = [
        f"## {name}: GPU check",
        "",
        f"`make gpu-check`, {content['date']}.",
        "",
        "| line | result | figures | s |",
        "|---|---|---|--:|",
    ]
    for line in content["lines"]:
        said = line["said"].replace("|", "/")
        lines.append(f"| {line['check']} | {line['result']} | {said} | {line['seconds']:.0f} |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Write the page."""
    write_whole(PAGE, page(sorted(FOLDER.glob("*.json"))))
    print(f"written: {PAGE}")


if __name__ == "__main__":
    main()
