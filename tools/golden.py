"""Record what a tree of this project computes, and compare two recordings.

    python tools/golden.py record before                      # this tree
    python tools/golden.py record after --tree /other/clone   # another tree, with its own .venv
    python tools/golden.py compare before after               # prints every difference

`compare` ends with status 1 if there is a difference.

A change of structure must leave every number, key, order and exit code as it was. A recording is
made through the commands alone, so that it does not depend on how the code is arranged. It has
these sections:

    options     the options of every command
    schemas     the schemas of recipes and judge files, without the names of classes
    errors      the messages about wrong recipes, wrong judge files and wrong command lines
    data        generated files, the data card, recognised formats, suspicious records
    training    three steps by every method: log lines, results, answers, sampled texts, and digests
                of the weights
    rankings    scores of the same responses by judges of every kind, and selections by these scores
    benchmarks  results of judges of every kind on both benchmarks, and of files that were scored by
                published rules
    server      answers of the server in every dialect
    studies     tables of the longer commands

Both recordings have to be made on the same machine, because processors round differently. Times,
paths, commits and fingerprints of code are left out. Everything else is compared in one of three
ways:

    results     numbers, names, texts written by models: equal, in the same order
    printed     texts for people: the same numbers in the same order; with --texts equal line by
                line
    message     an error: not compared; with --texts equal line by line

`record --only NAME …` records some sections. The sections after `training` use its checkpoints.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

CLONE = Path(__file__).resolve().parents[1]
CONSOLE_COLUMNS = "200"
VOLATILE_KEY = re.compile(
    r"seconds|(^|_)time|data_wait|_per_second|runtime|flos|created|fingerprint|commit|version|packages"
    r"|hardware|cuda|hostname|^modified$|code_digest"
)
"""Keys whose values differ between two recordings of the same tree, or between two arrangements of
the same code."""
VOLATILE_TEXT = re.compile(
    r"(?<![\w.])[\d.,]+ ?(ms|s|min|h|seconds?|minutes?|hours?)\b|\b\d+:\d\d:\d\d\b"
    r"|[\d.,]+ (GB|GiB|MiB) free|\b[0-9a-f]{32,}\b"
)
"""Durations, free memory and fingerprints of judges in what commands print."""
PROGRESS = re.compile(r"it/s|records/s|━ +\d+%|━ +\d+/\d+")
"""Texts by which the lines of progress bars are recognised."""
CODE_DIGEST = re.compile(r'\b([0-9a-f]{16}) \{\\?"type')
"""The revision of a generated source, before its settings as JSON or as JSON in a JSON text."""
ADDRESS = re.compile(r"127\.0\.0\.1:\d+")


def main() -> None:
    """Record a tree into a folder (`record`), or compare two recordings (`compare`)."""
    parser = argparse.ArgumentParser(
        "tools/golden.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("folder", type=Path)
    recording.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    recording.add_argument(
        "--tree", type=Path, help="the clone to record, with its .venv; default: this one"
    )
    comparison = commands.add_parser("compare")
    comparison.add_argument("first", type=Path)
    comparison.add_argument("second", type=Path)
    comparison.add_argument("--texts", action="store_true", help="also compare texts")
    options = parser.parse_args()
    if options.command == "compare":
        sys.exit(compare(options.first, options.second, texts=options.texts))
    record(options.folder, options.only, options.tree)


def record(folder: Path, sections: Sequence[str], tree: Path | None = None) -> None:
    """Run commands of a tree, and record their results into `folder`, a JSON file for each section.

    Args:
        folder: gets the recording; what the commands write goes to `folder`/work.
        sections: keys of SECTIONS.
        tree: the clone to record. None records this one, with the Python that runs this script.
    """
    work = (folder / "work").resolve()
    work.mkdir(parents=True, exist_ok=True)
    if tree is None:
        commands = Commands(CLONE, Path(sys.executable), work)
    else:
        clone = tree.resolve()
        commands = Commands(clone, clone / ".venv" / "bin" / "python", work)
    commands.link_folders()
    for name in sections:
        start_time = time.monotonic()
        section = commands.without_paths(SECTIONS[name](commands))
        text = without_code_digests(json.dumps(section, indent=1, ensure_ascii=False))
        (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        print(f"{name}: {time.monotonic() - start_time:.0f} s", flush=True)


# Running commands


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that has ended: its exit status, and its standard output and standard error."""

    status: int
    output: str
    errors: str

    @property
    def printed(self) -> dict[str, Any]:
        """The status and the output, as a recording has them; the output's numbers are compared."""
        return {"status": self.status, "printed": self.output.splitlines()}

    @property
    def refused(self) -> dict[str, Any]:
        """The status and the error message, as a recording has them for a command that fails."""
        return {"status": self.status, "message": self.errors.splitlines()}


@dataclass(frozen=True, slots=True)
class Commands:
    """The commands of a tree, run on one thread and without a GPU."""

    clone: Path
    """The root of the tree."""
    python: Path
    """The interpreter of the tree's environment."""
    work: Path
    """The working directory of every command."""

    def run(self, script: str, *arguments: str, ranks: int = 1) -> Ended:
        """Run a command to its end.

        Args:
            script: the path of the command, relative to the clone.
            arguments: its arguments; paths are relative to `work`.
            ranks: the number of processes. torchrun starts them if there are several.
        """
        completed = subprocess.run(
            self.line(script, *arguments, ranks=ranks),
            cwd=self.work,
            env=self.environment(),
            capture_output=True,
            text=True,
        )
        return Ended(completed.returncode, completed.stdout, completed.stderr)

    def succeed(self, script: str, *arguments: str, ranks: int = 1) -> Ended:
        """Run a command, and end the recording if the command does not end with status 0."""
        ended = self.run(script, *arguments, ranks=ranks)
        if ended.status != 0:
            words = " ".join([script, *arguments])
            sys.exit(f"{words}\nended with status {ended.status}:\n{ended.errors[-4000:]}")
        return ended

    def start(self, script: str, *arguments: str, log: str) -> subprocess.Popen[bytes]:
        """Start a command in the background; what it prints goes to the file `log` in `work`."""
        with (self.work / log).open("wb") as file:
            return subprocess.Popen(
                self.line(script, *arguments),
                cwd=self.work,
                env=self.environment(),
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def line(self, script: str, *arguments: str, ranks: int = 1) -> list[str]:
        """Return the words of the command line that starts a script; arguments as for `run`."""
        launcher = [str(self.python)]
        if ranks > 1:
            launcher += [
                "-m",
                "torch.distributed.run",
                "--standalone",
                f"--nproc-per-node={ranks}",
            ]
        return [*launcher, str(self.clone / script), *arguments]

    def environment(self) -> dict[str, str]:
        """Return the environment variables of every command."""
        return {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "COLUMNS": CONSOLE_COLUMNS,
            "WANDB_MODE": "disabled",
            "PATH": f"{self.python.parent}:{os.environ['PATH']}",
        }

    def fresh(self, name: str) -> Path:
        """Return the path of a file or folder in `work`, after removing what is there."""
        path = self.work / name
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        return path

    def write(self, name: str, text: str) -> Path:
        """Write a text file into `work`, and return its path."""
        path = self.work / name
        path.write_text(text, encoding="utf-8")
        return path

    def link_folders(self) -> None:
        """Link the tree's recipes and models into `work`.

        Commands then get relative paths, so that the lines and columns which they print do not
        depend on the length of the tree's path.
        """
        for name in ("recipes", "models"):
            link = self.work / name
            link.unlink(missing_ok=True)
            link.symlink_to(self.clone / name)

    def recipe(self, name: str) -> str:
        """Return the path of a shipped recipe, relative to `work`."""
        return f"recipes/{name}"

    def without_paths(self, value: Any) -> Any:
        """Return a JSON value in which paths of this machine and addresses are fixed words."""
        if isinstance(value, dict):
            return {
                self.without_paths(key): self.without_paths(child) for key, child in value.items()
            }
        if isinstance(value, list):
            return [self.without_paths(child) for child in value]
        if isinstance(value, str):
            text = value.replace(str(self.work), "WORK").replace(str(self.clone), "CLONE")
            return ADDRESS.sub("ADDRESS", text)
        return value


# Reading what commands write


def without_volatile(value: Any) -> Any:
    """Return a JSON value without the keys that differ from one recording to the next."""
    if isinstance(value, dict):
        return {
            key: without_volatile(child)
            for key, child in value.items()
            if not VOLATILE_KEY.search(key)
        }
    if isinstance(value, list):
        return [without_volatile(child) for child in value]
    return value


def without_code_digests(text: str) -> str:
    """Return the text of a recording with a fixed word for digests of the code.

    The revision of a generated source is a digest of the code that generates its records. It is
    recognised by the source's settings, which follow it, and is replaced wherever it occurs. Tables
    show its first twelve digits, which are replaced too.
    """
    for revision in sorted(set(CODE_DIGEST.findall(text))):
        text = text.replace(revision, "REVISION").replace(revision[:12], "REVISION")
    return text


def json_file(path: Path) -> Any:
    """Return the content of a JSON file, without volatile keys."""
    return without_volatile(json.loads(path.read_text(encoding="utf-8")))


def json_lines(path: Path) -> list[Any]:
    """Return the objects of a JSON-lines file, without volatile keys."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [without_volatile(json.loads(line)) for line in lines]


def parquet_rows(path: Path) -> list[Any]:
    """Return the rows of a parquet file, without volatile keys."""
    import pyarrow.parquet as parquet  # type: ignore[import-untyped]

    rows = parquet.read_table(path).to_pylist()
    return [without_volatile(json.loads(json.dumps(row, default=repr))) for row in rows]


def csv_rows(path: Path) -> list[Any]:
    """Return the rows of a CSV file as mappings, without volatile columns."""
    with path.open(encoding="utf-8", newline="") as file:
        return [without_volatile(row) for row in csv.DictReader(file)]


class TableCells(HTMLParser):
    """Collects the texts of all table cells of an HTML page, a line for each row."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[str] = []
        self._is_in_cell = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin a row or a cell."""
        if tag == "tr":
            self.rows.append("")
        self._is_in_cell = self._is_in_cell or tag in ("td", "th")

    def handle_endtag(self, tag: str) -> None:
        """End a cell."""
        if tag in ("td", "th"):
            self._is_in_cell = False
            self.rows[-1] += " | "

    def handle_data(self, data: str) -> None:
        """Add a text to the current cell."""
        if self._is_in_cell and self.rows:
            self.rows[-1] += data.strip()


def table_rows(page: Path) -> list[str]:
    """Return the rows of all tables of an HTML page, without those that hold times or versions."""
    cells = TableCells()
    cells.feed(page.read_text(encoding="utf-8"))
    return [row for row in cells.rows if not VOLATILE_KEY.search(row)]


READERS: dict[str, Callable[[Path], Any]] = {
    ".json": json_file,
    ".jsonl": json_lines,
    ".parquet": parquet_rows,
    ".csv": csv_rows,
    ".md": lambda path: {"printed": path.read_text(encoding="utf-8").splitlines()},
    ".txt": lambda path: {"printed": path.read_text(encoding="utf-8").splitlines()},
}
"""The function that reads a file for the recording, by the ending of the file's name. Files with
other endings are not recorded."""


def files_in(folder: Path) -> dict[str, Any]:
    """Return the contents of the files below `folder` that READERS can read, by relative path."""
    contents: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix in READERS and path.is_file():
            contents[str(path.relative_to(folder))] = READERS[path.suffix](path)
    return contents


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def digests_in(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file below `folder`, by relative path."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): digest(path) for path in paths}


# Options of commands


SCRIPTS = (
    *("train/rm.py", "train/sft.py", "train/rl.py", "train/ablate.py", "train/on_policy.py"),
    *("train/predictors.py", "train/stress.py", "train/merge.py", "train/throughput.py"),
    *("data/mixture.py", "data/shapes.py", "data/browse.py", "eval/run.py"),
    *("eval/select_responses.py best", "eval/select_responses.py pairs"),
    *("eval/select_responses.py rejection-sampling", "eval/select_pairs.py tries"),
    *("eval/select_pairs.py pass-rate", "eval/score.py", "eval/sample.py", "eval/serve.py"),
    *("eval/sweep.py", "eval/report.py", "eval/overlap.py", "eval/annotate.py"),
    *("eval/answers.py", "eval/critique_ablation.py", "eval/overoptimisation.py"),
    "eval/shortcuts.py",
)
"""Every command with a command line, and every form of those that have several."""


def options(commands: Commands) -> dict[str, Any]:
    """Return the options of every command, as its usage line names them."""
    recorded: dict[str, Any] = {}
    for script in SCRIPTS:
        ended = commands.run(*script.split(), "--help")
        usage = ended.output.split("\n\n")[0]
        recorded[script] = {
            "status": ended.status,
            "options": re.findall(r"(?<![\w-])--?[a-z][\w-]*", usage),
            "choices": re.findall(r"\{([^}]*)\}", usage),
            "message": ended.output.splitlines(),
        }
    return recorded


# Schemas


def schemas(commands: Commands) -> dict[str, Any]:
    """Return the schemas of recipes and judge files without references to definitions."""
    files = {"recipe": "recipes/schema.json", "judges": "recipes/judges/schema.json"}
    recorded: dict[str, Any] = {}
    for name, file in files.items():
        schema = json.loads((commands.clone / file).read_text(encoding="utf-8"))
        recorded[name] = written_out(schema, schema)
    return recorded


CLASS_NAME_KEYS = ("title", "$defs", "definitions")
DESCRIPTION_KEYS = ("description", "markdownDescription")
KEYS_OF_NAMED_SCHEMAS = ("properties", "patternProperties")
KEYS_OF_LISTED_SCHEMAS = ("anyOf", "oneOf", "allOf")
KEYS_OF_SCHEMAS = ("items", "additionalProperties", "not", "if", "then", "else", "propertyNames")


def written_out(schema: Any, root: dict[str, Any]) -> Any:
    """Return a JSON schema in which every reference is replaced by the definition.

    Definitions are named after classes, which may be renamed, so these names and the titles are
    left out. Descriptions become messages, which are compared only with --texts.

    Args:
        schema: the schema, or a part of it.
        root: the whole schema, in which references are looked up.
    """
    if not isinstance(schema, dict):
        return schema  # True or False
    result: dict[str, Any] = {}
    for key, child in schema.items():
        if key in CLASS_NAME_KEYS:
            continue
        if key == "$ref":
            result |= written_out(referenced(child, root), root)
        elif key in DESCRIPTION_KEYS:
            result[key] = {"message": [child]}
        elif key in KEYS_OF_NAMED_SCHEMAS:
            result[key] = {name: written_out(part, root) for name, part in child.items()}
        elif key in KEYS_OF_LISTED_SCHEMAS:
            result[key] = [written_out(part, root) for part in child]
        elif key in KEYS_OF_SCHEMAS:
            result[key] = written_out(child, root)
        else:
            result[key] = child
    return result


def referenced(reference: str, root: dict[str, Any]) -> Any:
    """Return the value at a reference such as `#/definitions/HeadConfig/properties/layers`.

    `root` is the whole schema.
    """
    value: Any = root
    for key in reference.removeprefix("#/").split("/"):
        name = key.replace("~1", "/").replace("~0", "~")
        value = value[int(name)] if isinstance(value, list) else value[name]
    return value


# Errors


WRONG_SETTINGS = (
    "backbone.dtype=float16",
    "backbone.min_pixels=5000 backbone.max_pixels=4000",
    "backbone.path=",
    "head.layers=-1",
    "head.activation=silo",
    "head.dropout=1.5",
    "head.reed=end",
    "data.sources=[]",
    "data.sources.0.type=shapez",
    "data.sources.0.level=demi",
    "data.sources.0.rows=0",
    "data.sources.0.weigth=2",
    "data.sources.0.kinds=[nothing]",
    "data.validation=-1",
    "data.validation=99999",
    "data.temperature=0",
    "data.bad_records.policy=lenient",
    "data.filters.length_gap=0.5",
    "data.text_per_multimodal=-1",
    "data.stages=[{sources: [nothing]}]",
    "method.type=naiv",
    "method.pairs_together=0",
    "method.zero_coefficient=-1",
    "method.template=turns",
    "optim.learning_rat=1.0e-5",
    "optim.learning_rate=fast",
    "optim.learning_rate=-1",
    "optim.records_per_step=0",
    "optim.max_steps=5",
    "optim.epochs=null",
    "optim.betas=[0.9]",
    "optim.schedule=cosinus",
    "optim.warmup_ratio=2",
    "optim.token_budget=none",
    "optim.lora.rank=0",
    "optim.lora={rank: 4, quantise: nf5}",
    "deepspeed=zero4",
    "evaluation.benchmarks=[{name: vl_rewardbensch}]",
    "evaluation.benchmarks=[{name: vl_rewardbench, location: embedded, revision: main}]",
    "evaluation.benchmarks=[{name: vl_rewardbench, location: /nothing}]",
    "evaluation.best_metric=accuracy",
    "evaluation.best_metric=vl_rewardbench/acuracy",
    "evaluation.protocol.order=loser_first",
    "evaluation.protocol.votes=0",
    "evaluation.protocol.images=red",
    "evaluation.judging.temperature=3",
    "evaluation.questions=[{type: shapes, level: demo, rows: 4}]",
    "evaluation.samples=4",
    "output.folder=",
    "output.save_every_steps=0",
    "output.keep_checkpoints=0",
    "output.resume=always",
    "output.log_every_steps=x",
    "workers=-1",
    "seed=-1",
    "deterministic=maybe",
    "learning_rate=3",
    "method={type: critic, critique: own} head.layers=9",
    "method={type: stable_reinforce}",
    "method={type: policy}",
    "method={type: language_model, target: judgment}",
)
"""One or several overrides of recipes/shapes/naive.yaml each, all of which are refused."""
WRONG_RECIPES = {
    "many kinds": """
method: {type: naiv}
optim:
  learning_rate: fast
  betas: [0.9]
  learning_rat: 3
data:
  sources:
    - {type: shapes, level: demo, split: train, rows: 0}
    - type: shapes
      level: demi
evaluation:
  benchmarks: [{name: vl_rewardbensch}]
head: 3
""",
    "critic": """
method:
  type: critic
  critique: mixture
  own_share: 2
  score_weights: 1
optim: {lora: {rank: 0, alpha: x}}
""",
    "reinforce": """
method:
  type: stable_reinforce
  epsilon: 3
  advantages: {normalisation: batches, filter: -1}
  rewards: {variant: papers, consistency: {type: rules}}
""",
    "policy": """
method:
  type: policy
  num_generations: 1
  rewards:
    - {type: judges, path: x}
    - {type: judge, form: hybride, path: x}
    - {type: length}
    - {type: format, pattern: '('}
evaluation: {questions: [{type: shapes, level: demo, rows: 0}]}
""",
    "language model": """
method: {type: language_model, target: lessons, template: turn, questions: 0}
evaluation: {best_metric: vl_rewardbench/accuracy}
""",
    "no mapping": "- 3\n",
    "no YAML": "method: [\nx: 3\n",
    "a key twice": "seed: 3\nseed: 4\n",
    "unknown base": "extends: nothing.yaml\n",
}
"""Recipes that extend recipes/shapes/naive.yaml, except for those without a mapping or with a base
of their own."""
WRONG_JUDGES = {
    "unknown kind": "type: crtic\n",
    "no checkpoint": "type: critic\n",
    "greedy samples": "type: critic\ncheckpoint: x\nsamples: 3\n",
    "wrong values": "type: generative\ncheckpoint: x\ntemperature: -1\ntop_p: 2\ntemplate: r2\n",
    "unknown release": "type: released\nmodel: r2_reward\ncheckpoint: x\n",
    "one member": "type: ensemble\nmembers: [x]\n",
    "no validation": "type: ensemble\nmembers: [x, y]\ncombine: margin\n",
    "address with a key": "type: endpoint\nurl: http://host/v1?key=3\nmodel: x\n",
    "address without http": "type: server\nurl: host:80\n",
    "scalar": "type: scalar\ncheckpoint: nothing\nread: ende\n",
}
VL_REWARDBENCH = "vl_rewardbench=embedded,limit=16"
BENCHMARKS = (VL_REWARDBENCH, "multimodal_rewardbench=embedded,limit=16")
REFUSED_COMMANDS: dict[str, tuple[str, ...]] = {
    "rm: no recipe": ("train/rm.py",),
    "rm: missing recipe": ("train/rm.py", "nothing.yaml"),
    "rm: unknown option": ("train/rm.py", "recipes/shapes/naive.yaml", "--dry"),
    "rm: recipe of sft": ("train/rm.py", "recipes/shapes/judge_sft.yaml", "--dry-run"),
    "sft: recipe of rl": ("train/sft.py", "recipes/shapes/judge_rl.yaml", "--dry-run"),
    "rl: recipe of rm": ("train/rl.py", "recipes/shapes/naive.yaml", "--dry-run"),
    "rm: missing backbone": ("train/rm.py", "recipes/shapes/naive.yaml", "backbone.path=/nothing"),
    "ablate: no variants": ("train/ablate.py", "recipes/shapes/naive.yaml", "--dry-run"),
    "stress: missing recipe": ("train/stress.py", "nothing.yaml"),
    "predictors: half of two options": (
        *("train/predictors.py", "recipes/ablations/shapes_reward_models.yaml"),
        *("--policy", "embedded", "--questions", "{}", "--pays", "naive-5"),
    ),
    "on_policy: no source": (
        *("train/on_policy.py", "recipes/shapes/naive.yaml", "--policy", "embedded"),
        *("--questions", "{type: shapes, level: demo, rows: 4}"),
    ),
    "merge: no checkpoint": ("train/merge.py", "nothing", "merged"),
    "mixture: missing file": ("data/mixture.py", "nothing.jsonl"),
    "browse: nothing to do": ("data/browse.py", "nothing.yaml"),
    "shapes: nothing to do": ("data/shapes.py",),
    "run: missing judge": ("eval/run.py", "nothing", "--benchmarks", VL_REWARDBENCH),
    "run: unknown benchmark": ("eval/run.py", "nothing", "--benchmarks", "rewardbench=hub"),
    "run: unknown setting": (
        *("eval/run.py", "nothing", "--benchmarks", VL_REWARDBENCH),
        *("--protocol", "vote=3"),
    ),
    "run: missing predictions": (
        *("eval/run.py", "--score", "nothing.jsonl", "--benchmark", "vl_rewardbench"),
    ),
    "run: compares one": ("eval/run.py", "--compare", "nothing"),
    "score: missing file": ("eval/score.py", "nothing", "nothing.jsonl", "scored.jsonl"),
    "score: kind of file": ("eval/score.py", "nothing", "nothing.jsonl", "scored.txt"),
    "select: missing file": ("eval/select_responses.py", "best", "nothing.jsonl", "best.jsonl"),
    "sample: no source": ("eval/sample.py", "embedded", "x.jsonl", "--source", "{type: shapez}"),
    "serve: missing judge": ("eval/serve.py", "nothing"),
    "sweep: missing judge": ("eval/sweep.py", "nothing", "--benchmarks", VL_REWARDBENCH),
    "report: no run": ("eval/report.py", "."),
    "overlap: ending": (
        *("eval/overlap.py", "recipes/shapes/naive.yaml", "--benchmarks", VL_REWARDBENCH),
        *("--output", "overlap.jsonl"),
    ),
    "annotate: missing endpoint": (
        *("eval/annotate.py", "recipes/shapes/naive.yaml", "nothing.yaml", "--out", "x.jsonl"),
    ),
    "overoptimisation: no run": ("eval/overoptimisation.py", "nothing"),
    "critique ablation: no critic": ("eval/critique_ablation.py", "nothing"),
}
"""Commands that are refused."""


def errors(commands: Commands) -> dict[str, Any]:
    """Return the exit status and message for each wrong recipe, judge file and command line."""
    schema_files = ("recipes/schema.json", "recipes/judges/schema.json")
    allowed: set[str] = set()
    for file in schema_files:
        allowed |= enumerations(json.loads((commands.clone / file).read_text(encoding="utf-8")))
    naive = commands.recipe("shapes/naive.yaml")
    recorded: dict[str, Any] = {"settings": {}, "recipes": {}, "judges": {}, "commands": {}}
    for settings in WRONG_SETTINGS:
        ended = commands.run("train/rm.py", naive, *split_settings(settings), "--dry-run")
        recorded["settings"][settings] = refusal(ended, allowed)
    for name, text in WRONG_RECIPES.items():
        is_complete = text.startswith(("-", "extends"))
        commands.write("wrong.yaml", text if is_complete else f"extends: {naive}\n{text}")
        ended = commands.run("train/rm.py", "wrong.yaml", "--dry-run")
        recorded["recipes"][name] = refusal(ended, allowed)
    for name, text in WRONG_JUDGES.items():
        commands.write("wrong.yaml", text)
        ended = commands.run("eval/run.py", "wrong.yaml", "--benchmarks", *BENCHMARKS)
        recorded["judges"][name] = refusal(ended, allowed)
    for name, arguments in REFUSED_COMMANDS.items():
        recorded["commands"][name] = commands.run(*arguments).refused
    return recorded


PROBLEM = re.compile(r"^  (\S.*?)  (\S+)(?: = (.*))?$")
"""The first line of an error: where it is, the key, and the value if there is one."""
LISTED = re.compile(r"[\w./]+(?:(?:, | or | and )[\w./]+)+")
"""Two or more words that a message enumerates."""


def refusal(ended: Ended, allowed: set[str]) -> dict[str, Any]:
    """Return the exit status and the errors of a command that refused a recipe or judge file.

    Each problem has its place (a line of a file, or the command line), its key, its value, and
    those values of `allowed` that the message enumerates.
    """
    problems: list[dict[str, Any]] = []
    for line in ended.errors.splitlines():
        first_line = PROBLEM.match(line)
        if first_line:
            place, key, value = first_line.groups()
            problems.append({"place": place, "key": key, "value": value, "allowed": []})
        elif problems:
            problems[-1]["allowed"] += enumerated_values(line, allowed)
    return {**ended.refused, "problems": problems}


def enumerated_values(line: str, allowed: set[str]) -> list[str]:
    """Return the members of `allowed` that a line enumerates: two or more, one after the other."""
    values: list[str] = []
    for listing in LISTED.findall(line):
        words = re.split(r", | or | and ", listing)
        members = [word for word in words if word in allowed or "/" in word]
        if len(members) > 1:
            values += members
    return values


def enumerations(schema: Any) -> set[str]:
    """Return all texts that a schema names as allowed values."""
    values: set[str] = set()
    if isinstance(schema, list):
        for child in schema:
            values |= enumerations(child)
    elif isinstance(schema, dict):
        for key, child in schema.items():
            if key == "enum":
                values |= {value for value in child if isinstance(value, str)}
            elif key == "const" and isinstance(child, str):
                values.add(child)
            else:
                values |= enumerations(child)
    return values


def split_settings(settings: str) -> list[str]:
    """Return the overrides of a string; a space inside brackets separates nothing."""
    return re.split(r" (?=[\w.]+=)(?![^\[{]*[\]}])", settings)


# Data


SMALL = """
extends: {recipe}
data:
  validation: 8
  sources:
    - {{type: shapes, level: demo, split: train, rows: 40}}
    - {{type: project, path: world/train/records.jsonl, weight: 2}}
"""


def data(commands: Commands) -> dict[str, Any]:
    """Return the results of the commands of data/ on the generated shapes data."""
    generated = commands.fresh("world")
    commands.succeed("data/shapes.py", "--write", generated.name, "--rows", "12", "--seed", "1")
    files = digests_in(generated)
    recorded: dict[str, Any] = {
        "generated": {"count": len(files), "files": files},
        "records": json_lines(generated / "train" / "records.jsonl"),
    }
    for path in sorted(generated.rglob("*.jsonl")):
        name = str(path.relative_to(commands.work))
        recorded[f"recognised {name}"] = commands.run("data/mixture.py", name).printed
    commands.write("small.yaml", SMALL.format(recipe=commands.recipe("shapes/judge_sft.yaml")))
    card = commands.fresh("card.json")
    ended = commands.succeed("data/mixture.py", "small.yaml", "--plan", "--save", card.name)
    recorded["data card"] = {**ended.printed, "card": json_file(card) if card.is_file() else None}
    recorded["suspicious"] = commands.run("data/browse.py", "small.yaml", "--find").printed
    page = commands.fresh("data.html")
    browse = ["small.yaml", "--out", page.name, "--samples", "3"]
    commands.succeed("data/browse.py", *browse)
    recorded["page"] = {"printed": table_rows(page)}
    return recorded


# Training


@dataclass(frozen=True, slots=True)
class Training:
    """A run of a few steps."""

    name: str
    """The run's folder."""
    script: str
    recipe: str
    """A recipe of recipes/shapes."""
    overrides: tuple[str, ...]
    ranks: int = 1
    saved_step: int = 3
    """The step of the last checkpoint."""


EMBEDDED_BENCHMARKS = (
    "evaluation.benchmarks=[{name: vl_rewardbench, location: embedded, limit: 16}, "
    "{name: multimodal_rewardbench, location: embedded, limit: 16}]"
)
SHORT = (
    "output.save_every_steps=3",
    "output.log_every_steps=1",
    "evaluation.at_start=false",
    "workers=0",
)
SUPERVISED = (
    *SHORT,
    "optim.epochs=null",
    "optim.max_steps=3",
    "optim.records_per_step=8",
    "data.sources.0.rows=64",
    EMBEDDED_BENCHMARKS,
)
JUDGEMENTS = (*SUPERVISED, "data.validation=8", "evaluation.judging.max_new_tokens=64")
COLD_START = (
    *JUDGEMENTS,
    "data.sources.0.rows=2000",
    "optim.max_steps=100",
    "optim.learning_rate=3.0e-3",
    "output.save_every_steps=100",
    "output.log_every_steps=20",
    "deepspeed=none",
)
"""Steps enough for judgements that can be read."""
LESSONS = (
    *SHORT,
    "backbone.path=embedded",
    "optim.max_steps=3",
    "optim.records_per_step=4",
    "data.sources.0.rows=64",
)
REINFORCE = (
    *SHORT,
    "optim.max_steps=3",
    "optim.records_per_step=4",
    "method.pairs_per_pass=2",
)
JUDGE_RL = (
    *REINFORCE,
    "backbone.path=cold-start/checkpoint-100",
    "method.max_new_tokens=64",
    "evaluation.judging.max_new_tokens=64",
    EMBEDDED_BENCHMARKS,
)
RELEASED_RL = (
    *JUDGE_RL,
    "method.rewards.variant=r1_released",
    "method.advantages={normalisation: batch, filter: 3.0, filter_variant: r1_released}",
    "method.kl_in=reward",
    "method.kl_form=k1",
    "method.dual_clip=3.0",
    "method.epsilon_high=0.3",
)
POLICY = (
    *REINFORCE,
    "data.sources.0.rows=512",
    "method.max_new_tokens=24",
    "method.num_generations=4",
    "evaluation.samples=2",
    "evaluation.questions=[{type: shapes, name: questions, level: demo, split: benchmark, rows: 8, "
    "text_only: 0.0}]",
)
BASE_REWARD = (
    *POLICY,
    "method.rewards=[{type: judge, path: naive/checkpoint-3, form: hybrid}]",
)
ALL_TERMS = (
    *POLICY,
    "method.rewards=["
    "{type: judge, path: naive/checkpoint-3, form: raw}, "
    "{type: judge, path: naive-held-out/checkpoint-3, form: standardised, weight: 0.5}, "
    "{type: judge, path: naive/checkpoint-3, form: sigmoid, weight: 0.25, shuffled: true}, "
    "{type: judge, path: critic/checkpoint-3, form: rank}, "
    "{type: judge, path: naive-2/checkpoint-3, form: stratified, weight: 0.3}, "
    "{type: verifier, weight: 2.0}, "
    "{type: length, free_tokens: 4}, "
    "{type: format, pattern: '[a-z ,]+', weight: 0.1}]",
)
OWN_CRITIQUES = ("method.refresh_every_steps=2",)
TRUE_CRITIQUES = ("method.critique=ground_truth", "method.cross_entropy_weight=0.5")
MIXED_CRITIQUES = ("method.critique=mixture", "method.own_share=0.5", "method.warmup_steps=1")
REGULARISED = (
    "method.zero_coefficient=0.01",
    "method.pairs_together=2",
    "head.dropout=0.1",
    "head.layers=3",
    "optim.warmup_ratio=0.5",
    "optim.weight_decay=0.1",
    "data.images=grey",
    "seed=5",
)
LORA = ("optim.lora={rank: 4}",)
HELD_OUT = ("data.validation=16", "evaluation.best_metric=held_out/accuracy")
NONE = ("deepspeed=none",)
ZERO2 = ("deepspeed=zero2",)
TRAININGS = (
    Training("naive", "train/rm.py", "naive", (*SUPERVISED, *NONE)),
    Training("naive-2", "train/rm.py", "naive", (*SUPERVISED, *NONE), ranks=2),
    Training("naive-zero2", "train/rm.py", "naive", (*SUPERVISED, *ZERO2)),
    Training("naive-zero2-2", "train/rm.py", "naive", (*SUPERVISED, *ZERO2), ranks=2),
    Training("naive-held-out", "train/rm.py", "naive", (*SUPERVISED, *NONE, *HELD_OUT)),
    Training("naive-regularised", "train/rm.py", "naive", (*SUPERVISED, *NONE, *REGULARISED)),
    Training("naive-lora", "train/rm.py", "naive", (*SUPERVISED, *NONE, *LORA)),
    Training("critic", "train/rm.py", "critic", (*SUPERVISED, *NONE, *OWN_CRITIQUES)),
    Training("critic-2", "train/rm.py", "critic", (*SUPERVISED, *ZERO2, *OWN_CRITIQUES), ranks=2),
    Training("critic-true", "train/rm.py", "critic", (*SUPERVISED, *NONE, *TRUE_CRITIQUES)),
    Training("critic-mixed", "train/rm.py", "critic", (*SUPERVISED, *ZERO2, *MIXED_CRITIQUES)),
    Training("sft", "train/sft.py", "judge_sft", (*JUDGEMENTS, *NONE)),
    Training("sft-2", "train/sft.py", "judge_sft", (*JUDGEMENTS, *ZERO2), ranks=2),
    Training("cold-start", "train/sft.py", "judge_sft", COLD_START, saved_step=100),
    Training("lessons", "train/sft.py", "backbone", (*LESSONS, *NONE)),
    Training("judge-rl", "train/rl.py", "judge_rl", (*JUDGE_RL, *NONE)),
    Training("judge-rl-2", "train/rl.py", "judge_rl", (*JUDGE_RL, *ZERO2), ranks=2),
    Training("judge-rl-released", "train/rl.py", "judge_rl", (*RELEASED_RL, *NONE)),
    Training("policy", "train/rl.py", "policy", (*BASE_REWARD, *NONE)),
    Training("policy-terms", "train/rl.py", "policy", (*ALL_TERMS, *NONE)),
    Training("policy-2", "train/rl.py", "policy", (*BASE_REWARD, *ZERO2), ranks=2),
)


def training(commands: Commands) -> dict[str, Any]:
    """Train by every method, and return each run's plan, log and last checkpoint."""
    recorded: dict[str, Any] = {}
    for run in TRAININGS:
        folder = commands.fresh(run.name)
        arguments = training_arguments(commands, run)
        plan = commands.run(*arguments, "--dry-run").printed
        ended = commands.run(*arguments, ranks=run.ranks)
        recorded[run.name] = {"plan": plan, "status": ended.status}
        if ended.status == 0:
            recorded[run.name] |= trained(folder, run.saved_step)
        else:
            print(f"{run.name} ended with status {ended.status}:\n{ended.errors[-2000:]}")
    recorded["merged"] = merged(commands)
    recorded["resumed"] = resumed(commands)
    return recorded


def training_arguments(commands: Commands, run: Training) -> list[str]:
    """Return the command and the arguments of a training."""
    recipe = commands.recipe(f"shapes/{run.recipe}.yaml")
    return [run.script, recipe, *run.overrides, f"output.folder={run.name}"]


def trained(folder: Path, step: int) -> dict[str, Any]:
    """Return the contents of a run's folder, and of its checkpoint of the step `step`."""
    checkpoint = folder / f"checkpoint-{step}"
    config = checkpoint / "config.json"
    validation = folder / "validation.jsonl"
    best = folder / "best"
    return {
        "log": json_lines(folder / "log.jsonl"),
        "recipe": (folder / "recipe.yaml").read_text(encoding="utf-8").splitlines(),
        "checkpoints": sorted(path.name for path in folder.glob("checkpoint-*")),
        "best": best.resolve().name if best.exists() else None,
        "files": sorted(path.name for path in checkpoint.iterdir()),
        "weights": weights_in(checkpoint),
        "config": json_file(config) if config.is_file() else None,
        "model card": {"printed": tables_of_markdown(checkpoint / "README.md")},
        "eval": files_in(checkpoint / "eval"),
        "answers": files_in(checkpoint / "answers"),
        "completions": files_in(folder / "completions"),
        "critiques": files_in(folder / "critiques"),
        "validation": without_images(json_lines(validation)) if validation.is_file() else None,
    }


def weights_in(checkpoint: Path) -> dict[str, str]:
    """Return the digest of every file of weights in a checkpoint."""
    return {path.name: digest(path) for path in sorted(checkpoint.glob("*.safetensors"))}


def tables_of_markdown(page: Path) -> list[str]:
    """Return the lines of a Markdown page that belong to tables."""
    lines = page.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.startswith("|")]


def merged(commands: Commands) -> dict[str, Any]:
    """Merge the adapters of a run into their base, and return the digests of the weights."""
    folder = commands.fresh("merged")
    commands.succeed("train/merge.py", "naive-lora/checkpoint-3", folder.name)
    return weights_in(folder)


STOPPED = Training(
    "stopped",
    "train/rm.py",
    "naive",
    (*SUPERVISED, *NONE, "optim.max_steps=6"),
    saved_step=6,
)


def resumed(commands: Commands) -> dict[str, Any]:
    """Stop a run by SIGTERM after its first checkpoint, resume it, and return its files."""
    folder = commands.fresh(STOPPED.name)
    arguments = training_arguments(commands, STOPPED)
    status = stop_after_first_checkpoint(commands, arguments, folder)
    commands.succeed(*arguments, "--resume")
    return {"status of SIGTERM": status, **trained(folder, STOPPED.saved_step)}


def stop_after_first_checkpoint(commands: Commands, arguments: Sequence[str], folder: Path) -> int:
    """Start a run, send SIGTERM once checkpoint-3 is complete, and return the exit status."""
    script, *rest = arguments
    process = commands.start(script, *rest, log=f"{folder.name}.txt")
    while not (folder / "checkpoint-3" / "complete").exists():
        if process.poll() is not None:
            sys.exit(f"{folder} ended before it could be stopped")
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    status = process.wait()
    if (folder / "checkpoint-6" / "complete").exists():
        sys.exit(f"{folder} was complete before it could be stopped")
    return status


# Judges


JUDGES: dict[str, dict[str, Any]] = {
    "critic-none": {"type": "critic", "checkpoint": "critic/checkpoint-3", "critiques": "none"},
    "critic-samples": {
        "type": "critic",
        "checkpoint": "critic/checkpoint-3",
        "samples": 2,
        "temperature": 1.0,
        "max_new_tokens": 16,
    },
    "pairs-greedy": {
        "type": "generative",
        "checkpoint": "cold-start/checkpoint-100",
        "temperature": 0.0,
        "max_new_tokens": 64,
    },
    "pairs-sampled": {
        "type": "generative",
        "checkpoint": "cold-start/checkpoint-100",
        "temperature": 1.0,
        "max_new_tokens": 64,
    },
    "ensemble": {
        "type": "ensemble",
        "members": ["naive/checkpoint-3", "naive-regularised/checkpoint-3"],
    },
    "ensemble-weighted": {
        "type": "ensemble",
        "members": ["naive/checkpoint-3", "naive-regularised/checkpoint-3"],
        "combine": "margin",
        "validation": "naive-held-out/validation.jsonl",
    },
    "released-pairs": {
        "type": "released",
        "model": "r1_reward",
        "checkpoint": "cold-start/checkpoint-100",
        "max_new_tokens": 64,
    },
    "released-pairs-sampled": {
        "type": "released",
        "model": "unified_reward",
        "checkpoint": "stand-in",
        "temperature": 1.0,
        "max_new_tokens": 16,
    },
    "released-points": {
        "type": "released",
        "model": "unified_reward_points",
        "checkpoint": "stand-in",
        "max_new_tokens": 16,
    },
    "released-points-sampled": {
        "type": "released",
        "model": "sophia_thinking_reward",
        "checkpoint": "stand-in",
        "temperature": 1.0,
        "max_new_tokens": 16,
    },
    "released-scalar": {
        "type": "released",
        "model": "skywork_vl_reward",
        "checkpoint": "stand-in",
    },
}
"""Judge files by name, with checkpoints of the section `training`. The checkpoint `stand-in` is the
embedded backbone with a random value head."""
BENCHMARKS_ALONE: dict[str, dict[str, Any]] = {
    "pairs-official": {
        "type": "generative",
        "checkpoint": "cold-start/checkpoint-100",
        "template": "benchmark",
        "temperature": 0.0,
        "max_new_tokens": 64,
    },
}
"""Judge files that can be asked about benchmarks alone."""


@contextmanager
def judges(commands: Commands, *, for_benchmarks: bool) -> Iterator[dict[str, str]]:
    """Write the judge files, and run the servers that some judges need, for the block.

    The block gets the paths of the judge files and checkpoints by the judge's name. With
    `for_benchmarks`, judges are included that only judge benchmarks.
    """
    write_stand_in(commands)
    files = {**JUDGES, **(BENCHMARKS_ALONE if for_benchmarks else {})}
    naive = "naive/checkpoint-3"
    with endpoint() as endpoint_url, served(commands, naive, *ONE_BY_ONE) as server_url:
        files["server"] = {"type": "server", "url": server_url}
        if for_benchmarks:
            cache = commands.fresh("endpoint-cache")
            url = f"{endpoint_url}/v1"
            settings = {"url": url, "model": "made", "cache": cache.name, "concurrency": 1}
            files["endpoint"] = {"type": "endpoint", **settings}
        paths = {"naive": naive, "critic": "critic/checkpoint-3"}
        for name, content in files.items():
            paths[name] = commands.write(f"{name}.yaml", json.dumps(content)).name
        yield paths


def write_stand_in(commands: Commands) -> None:
    """Copy the embedded backbone to `work`/stand-in, with a random value head as TRL saves it."""
    import numpy as np
    from safetensors.numpy import save_file

    folder = commands.fresh("stand-in")
    shutil.copytree(commands.clone / "models" / "embedded", folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    width = config["text_config"]["hidden_size"]
    random = np.random.default_rng(0)
    head = {
        "v_head.summary.weight": random.normal(size=(1, width)).astype(np.float32),
        "v_head.summary.bias": random.normal(size=1).astype(np.float32),
    }
    save_file(head, folder / "value_head.safetensors", metadata={"format": "pt"})


class MadeAnswers(BaseHTTPRequestHandler):
    """An OpenAI-compatible endpoint whose answers depend only on the texts of the request."""

    def do_POST(self) -> None:
        """Answer a request for a judgement, in the form that the request asks for."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        texts = json.dumps([body["messages"], body.get("temperature")], sort_keys=True)
        better = 1 + hashlib.sha256(texts.encode()).digest()[0] % 2
        content = (
            f"<think>Response {better} is better.</think><answer>{better}</answer>"
            if "<answer>" in texts
            else f"[[{'AB'[better - 1]}]] Overall Judgment: Answer {better} is better."
        )
        choice = {"message": {"content": content}, "finish_reason": "stop"}
        usage = {"prompt_tokens": len(texts), "completion_tokens": len(content)}
        answer = json.dumps({"choices": [choice], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Print nothing."""


ENDPOINT_PORT = 28471
"""Digests of requests and of settings contain the address of the endpoint, so the port is always
the same."""


@contextmanager
def endpoint() -> Iterator[str]:
    """Run an endpoint of made answers, and give its address."""
    server = ThreadingHTTPServer(("127.0.0.1", ENDPOINT_PORT), MadeAnswers)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


ONE_BY_ONE = ("--token-budget", "1")
"""Options of a server that computes every response by itself.

Otherwise it computes responses together that arrive at the same time, and the last digits of scores
depend on the time of arrival.
"""


@contextmanager
def served(commands: Commands, judge: str, *options: str) -> Iterator[str]:
    """Run eval/serve.py with a judge until it is no longer needed, and give its address."""
    log = f"serve-{judge.replace('/', '-')}.txt"
    process = commands.start("eval/serve.py", judge, "--port", "0", *options, log=log)
    try:
        yield address_of(process, commands.work / log)
    finally:
        process.terminate()
        process.wait(60)


def address_of(process: subprocess.Popen[bytes], log: Path) -> str:
    """Wait until a server is ready, and return its address, which it prints."""
    while True:
        if process.poll() is not None:
            sys.exit(f"the server ended before it was ready: {log}")
        printed = ADDRESS.search(log.read_text(encoding="utf-8"))
        if printed:
            try:
                urllib.request.urlopen(f"http://{printed[0]}/ready", timeout=5).close()
                return f"http://{printed[0]}"
            except OSError:
                pass  # it listens before it has loaded the judge
        time.sleep(0.1)


# Rankings


RESPONSES = "{type: shapes, level: demo, split: train, rows: 8, text_only: 0.25}"
FORMS = ("standardised", "sigmoid", "relative", "rank", "hybrid", "stratified")
FORMS_WITH_VERDICTS = ("hybrid", "stratified")
"""Forms of rewards that need to know which responses are right."""
SELECTIONS: dict[str, tuple[str, ...]] = {
    "best": ("best",),
    "best-right": ("best", "--verifier", "recorded"),
    "pairs": ("pairs",),
    "pairs-all": ("pairs", "--all", "--verifier", "recorded"),
    "pairs-trl": ("pairs", "--min-margin", "0.001", "--output-format", "trl"),
    "rejection-sampling": ("rejection-sampling", "--verifier", "recorded"),
}


def rankings(commands: Commands) -> dict[str, Any]:
    """Return sampled answers, their scores by judges of every kind, and selections from them."""
    recorded: dict[str, Any] = {}
    for name, temperature in (("samples-greedy", "0"), ("samples", "1")):
        samples = commands.fresh(f"{name}.jsonl")
        arguments = ["embedded", samples.name, "--source", RESPONSES, "--samples", "3"]
        arguments += ["--temperature", temperature, "--max-new-tokens", "24"]
        ended = commands.run("eval/sample.py", *arguments)
        lines = json_lines(samples) if samples.is_file() else []
        recorded[name] = {"status": ended.status, "lines": lines}
    with judges(commands, for_benchmarks=False) as paths:
        for name, judge in paths.items():
            recorded[name] = scored(commands, judge, f"scored-{name}")
    for form in FORMS:
        judge = "naive-held-out/checkpoint-3"
        form_options = ["--form", form]
        if form in FORMS_WITH_VERDICTS:
            form_options += ["--verifier", "recorded"]
        recorded[f"form {form}"] = scored(commands, judge, f"form-{form}", *form_options)
    for name in SELECTIONS:
        recorded[f"select {name}"] = selected(commands, name)
    return recorded


def selected(commands: Commands, name: str) -> dict[str, Any]:
    """Select from the sampled answers by the scores of the first judge, and return the selection.

    `name` is a key of SELECTIONS.
    """
    kind, *selection_options = SELECTIONS[name]
    suffix = ".parquet" if "trl" in selection_options else ".jsonl"  # TRL needs the images inside
    output = commands.fresh(f"selected-{name}{suffix}")
    arguments = [kind, "scored-naive.jsonl", output.name, *selection_options]
    ended = commands.run("eval/select_responses.py", *arguments)
    lines = READERS[suffix](output) if output.is_file() else []
    return {**ended.printed, "lines": without_images(lines)}


def scored(commands: Commands, judge: str, name: str, *options: str) -> dict[str, Any]:
    """Score the sampled answers with a judge into the file `name`.jsonl, and return the scores."""
    output = commands.fresh(f"{name}.jsonl")
    commands.fresh(f"{name}.jsonl.errors.jsonl")
    ended = commands.run("eval/score.py", judge, "samples.jsonl", output.name, *options)
    lines = json_lines(output) if output.is_file() else []
    result: dict[str, Any] = {"status": ended.status, "lines": without_images(lines)}
    if ended.status != 0:
        result["message"] = ended.errors.splitlines()
    return result


def without_images(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return records without their images and prompts, which `samples` has."""
    return [
        {key: value for key, value in line.items() if key not in ("images", "prompt")}
        for line in lines
    ]


# Benchmarks


EVALUATIONS: dict[str, tuple[str, ...]] = {
    "naive": ("--ablations",),
    "pairs-sampled": ("--protocol", "votes=3", "seed=1"),
    "pairs-official": ("--protocol", "order=official"),
    "critic-samples": ("--protocol", "ties=half"),
    "critic-none": ("--images", "grey"),
    "released-pairs": ("--protocol", "order=winner_first"),
}
"""Options of some judges; the others are evaluated by the default protocol."""
LOCAL_BENCHMARKS = (
    "mm_rlhf_rewardbench=world/editions/mm_rlhf_rewardbench,limit=16",
    "preference_folder=world/train/records.jsonl",
)
"""Benchmarks in files that `data` has written."""


def benchmarks(commands: Commands) -> dict[str, Any]:
    """Return the results of judges of every kind on both benchmarks.

    Predictions files that are scored by the benchmarks' published rules are included.
    """
    recorded: dict[str, Any] = {}
    with judges(commands, for_benchmarks=True) as paths:
        for name, judge in paths.items():
            output = commands.fresh(f"eval-{name}")
            arguments = [judge, "--benchmarks", *BENCHMARKS, "--output", output.name]
            ended = commands.run("eval/run.py", *arguments, *EVALUATIONS.get(name, ()))
            recorded[name] = {**ended.printed, "files": files_in(output)}
            if ended.status != 0:
                recorded[name]["message"] = ended.errors.splitlines()
    for name in ("naive", "pairs-sampled"):
        for benchmark in ("vl_rewardbench", "multimodal_rewardbench"):
            recorded[f"score {name} {benchmark}"] = scored_file(commands, name, benchmark)
    two_ranks = commands.fresh("eval-two-ranks")
    arguments = ["critic/checkpoint-3", "--benchmarks", *BENCHMARKS, "--output", two_ranks.name]
    ended = commands.run("eval/run.py", *arguments, ranks=2)
    recorded["two ranks"] = {**ended.printed, "files": files_in(two_ranks)}
    local = commands.fresh("eval-local-files")
    arguments = ["naive/checkpoint-3", "--benchmarks", *LOCAL_BENCHMARKS, "--output", local.name]
    ended = commands.run("eval/run.py", *arguments)
    recorded["local files"] = {**ended.printed, "files": files_in(local)}
    ended = commands.run("eval/run.py", "--compare", "eval-naive", "eval-critic")
    recorded["compare"] = ended.printed
    return recorded


def scored_file(commands: Commands, judge: str, benchmark: str) -> dict[str, Any]:
    """Score a judge's predictions file by the benchmark's published rules; return the result."""
    output = commands.fresh(f"scored-file-{judge}-{benchmark}")
    predictions = f"eval-{judge}/{benchmark}/predictions.jsonl"
    arguments = ["--score", predictions, "--benchmark", benchmark, "--output", output.name]
    ended = commands.run("eval/run.py", *arguments)
    return {**ended.printed, "files": files_in(output)}


# The server


QUESTION = "Which shapes are there?"


def group(messages: str, *responses: str, images: Sequence[str] = ()) -> dict[str, Any]:
    """Return a group as /v1/rewards takes it."""
    return {"messages": messages, "responses": list(responses), "images": list(images)}


CONVERSATION = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
IMAGE = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAADgAAAA4CAIAAAAn5KxJAAAAP0lEQVR4nO3OQQkAIBAAsMtpFPM"
    "HMcqbwIewwcoNwfpVDgAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAADgzQEKTAABLPVA/AAAAABJRU5ErkJggg=="
)
NO_IMAGE = "data:image/png;base64,AAAA"
REQUESTS: dict[str, tuple[str, Any]] = {
    "one group": ("/v1/rewards", {"groups": [group(QUESTION, "a red circle", "no", "two")]}),
    "two groups": ("/v1/rewards", {"groups": [group(QUESTION, "a"), group("x", "b", "c")]}),
    "classify": ("/classify", {"messages": CONVERSATION}),
    "rerank": ("/rerank", {"query": QUESTION, "documents": ["4", "5"]}),
    "get_reward": (
        "/get_reward",
        {"query": [f"{QUESTION} 4"], "prompts": [QUESTION], "labels": [""]},
    ),
    "no group": ("/v1/rewards", {"groups": []}),
    "no response": ("/v1/rewards", {"groups": [group(QUESTION)]}),
    "wrong image": ("/v1/rewards", {"groups": [group(QUESTION, "a", images=[NO_IMAGE])]}),
    "unknown key": ("/v1/rewards", {"grups": []}),
    "unknown path": ("/v2/rewards", {}),
    "models": ("/v1/models", None),
    "health": ("/health", None),
}
"""Paths and bodies of requests; those without a body are sent as GET."""
SERVED = ("naive/checkpoint-3", "critic/checkpoint-3", "pairs-greedy.yaml")


def server(commands: Commands) -> dict[str, Any]:
    """Return the server's answers to right and wrong requests, for each kind of judge."""
    sample = json_lines(commands.work / "samples.jsonl")[0]
    recorded: dict[str, Any] = {}
    for judge in SERVED:
        with served(commands, judge) as url:
            answers = {name: ask(url + path, body) for name, (path, body) in REQUESTS.items()}
            pictured = group("What is it?", "a circle", "nothing", images=sample["images"])
            answers["image"] = ask(f"{url}/v1/rewards", {"groups": [pictured]})
            recorded[judge] = answers
    return recorded


def ask(url: str, body: Any) -> dict[str, Any]:
    """Send a request, and return its status and its answer; an error's answer is a message."""
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, content, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return {"status": answer.status, "answer": answered(answer.read())}
    except urllib.error.HTTPError as error:
        body = json.loads(error.read() or b"null")
        keys = sorted(body) if isinstance(body, dict) else []
        return {"status": error.code, "keys": keys, "message": [json.dumps(body)]}


def answered(content: bytes) -> Any:
    """Return a server's answer without the keys that differ in every answer."""
    if not content:
        return None
    value = json.loads(content)
    if isinstance(value, dict):
        value.pop("id", None)
    return without_volatile(value)


# Studies


LIST = """
extends: {recipe}
evaluation: {{best_metric: null, at_start: false}}
output: {{folder: list, keep_checkpoints: 1}}
variants: {{two: {{}}, one: {{head.layers: 1}}}}
"""
REWARD_MODELS = """
optim: {{epochs: null, max_steps: 3}}
evaluation: {{best_metric: null, at_start: false}}
output: {{folder: reward-models, keep_checkpoints: 1}}
variants:
  naive-1: {{extends: {recipes}/naive.yaml, optim.max_steps: 1}}
  naive-2: {{extends: {recipes}/naive.yaml, optim.max_steps: 2}}
  naive-3: {{extends: {recipes}/naive.yaml}}
  naive-one-layer: {{extends: {recipes}/naive.yaml, head.layers: 1}}
  critic: {{extends: {recipes}/critic.yaml}}
  judge: {{extends: {recipes}/judge_sft.yaml, data.validation: 8,
           evaluation.judging.max_new_tokens: 64}}
"""
OVERLAPPING = """
extends: {recipe}
data:
  sources:
    - {{type: shapes, name: others, level: demo, split: train, rows: 24}}
    - {{type: shapes, name: same, level: demo, split: benchmark, rows: 24}}
"""


def studies(commands: Commands) -> dict[str, Any]:
    """Return the output and the files of the longer commands."""
    return {name: study(commands) for name, study in STUDIES.items()}


def sweep(commands: Commands) -> dict[str, Any]:
    """Evaluate several checkpoints with eval/sweep.py, and return its output and files."""
    folder = commands.fresh("sweep")
    runs = ["naive", "naive-zero2", "critic"]
    arguments = [*runs, "--benchmarks", *BENCHMARKS, "--output", folder.name]
    ended = commands.succeed("eval/sweep.py", *arguments)
    recorded = json_file(folder / "sweep.json")
    for result in recorded["results"]:
        del result["folder"]  # named after a digest of the scoring code
    return {
        **ended.printed,
        "json": recorded,
        "csv": csv_rows(folder / "sweep.csv"),
        "printed page": {"printed": (folder / "sweep.md").read_text("utf-8").splitlines()},
    }


def ablation(commands: Commands) -> dict[str, Any]:
    """Train two variants with three seeds each with train/ablate.py; return output and files."""
    folder = commands.fresh("list")
    commands.write("list.yaml", LIST.format(recipe=commands.recipe("shapes/naive.yaml")))
    settings = [setting for setting in (*SUPERVISED, *NONE) if "at_start" not in setting]
    arguments = ["list.yaml", *settings, "--seeds", "0", "1", "2"]
    ended = commands.succeed("train/ablate.py", *arguments)
    return {**ended.printed, **top_files(folder)}


def predictors(commands: Commands) -> dict[str, Any]:
    """Run train/predictors.py, and return its output and files.

    It correlates figures of six reward models with the improvement of a policy that they select
    answers for.
    """
    folder = commands.fresh("reward-models")
    recipes = commands.recipe("shapes")
    commands.write("reward-models.yaml", REWARD_MODELS.format(recipes=recipes))
    in_the_list = ("evaluation.at_start", "optim.max_steps", "optim.epochs")
    settings = [setting for setting in (*SUPERVISED, *NONE) if not setting.startswith(in_the_list)]
    questions = "{type: shapes, level: demo, split: benchmark, rows: 16, seed: 2, text_only: 0.0}"
    arguments = ["reward-models.yaml", *settings, "--policy", "embedded", "--samples", "4"]
    arguments += ["--questions", questions, "--max-new-tokens", "24", "--compared", "8"]
    ended = commands.run("train/predictors.py", *arguments)
    return {**ended.printed, "message": ended.errors.splitlines()} | top_files(
        folder / "predictors"
    )


def on_policy(commands: Commands) -> dict[str, Any]:
    """Run train/on_policy.py, which trains a reward model on pairs that a policy wrote.

    Returns its output and files.
    """
    folder = commands.fresh("on-policy")
    settings = [*SHORT, *NONE, EMBEDDED_BENCHMARKS, "backbone.path=naive/checkpoint-3"]
    settings += ["optim.epochs=null", "optim.max_steps=2", "optim.records_per_step=8"]
    settings += ["data.sources.0.rows=64", "data.records=32", "output.save_every_steps=2"]
    questions = "{type: shapes, level: demo, split: train, rows: 24, seed: 4{round}, text_only: 0}"
    arguments = [commands.recipe("shapes/naive_on_policy.yaml"), *settings]
    arguments += ["--policy", "embedded", "--samples", "4", "--max-new-tokens", "24"]
    arguments += ["--questions", questions, "--folder", folder.name]
    ended = commands.run("train/on_policy.py", *arguments)
    pairs = folder / "round-1" / "pairs.jsonl"
    return {
        **ended.printed,
        "message": ended.errors.splitlines(),
        **top_files(folder),
        "pairs": without_images(json_lines(pairs)) if pairs.is_file() else None,
    }


def overoptimisation(commands: Commands) -> dict[str, Any]:
    """Run eval/overoptimisation.py on the checkpoints of a policy; return its output and files."""
    folder = commands.fresh("overoptimisation")
    arguments = ["policy", "--samples", "2", "--questions", "8", "--output", folder.name]
    ended = commands.succeed("eval/overoptimisation.py", *arguments)
    recorded = {**ended.printed, "figures": json_file(folder / "figures.json")}
    for path in sorted((folder / "points").glob("*.jsonl")):
        lines = json_lines(path)
        # The first line of a checkpoint's file is a digest, which depends on the code.
        recorded[path.name] = [line for line in lines if isinstance(line, dict)]
    return recorded


def stress(commands: Commands) -> dict[str, Any]:
    """Run train/stress.py, which trains with and without the filters of StableReinforce.

    Returns its output and files.
    """
    folder = commands.fresh("stress")
    settings = [*SHORT, *NONE, "backbone.path=cold-start/checkpoint-100"]
    settings += ["optim.max_steps=2", "optim.records_per_step=4", "method.steps_per_rollout=2"]
    settings += ["method.pairs_per_pass=4", "method.max_new_tokens=64", "output.save_every_steps=2"]
    settings += [f"output.folder={folder.name}"]
    recipe = commands.recipe("shapes/judge_stress.yaml")
    ended = commands.run("train/stress.py", recipe, *settings, "--seeds", "0")
    return {**ended.printed, "message": ended.errors.splitlines(), **top_files(folder)}


def critique_ablation(commands: Commands) -> dict[str, Any]:
    """Run eval/critique_ablation.py, and return its figures.

    A critic scores responses without a critique, with its own and with the true one.
    """
    output = commands.fresh("critique-ablation.json")
    arguments = ["critic/checkpoint-3", "--rows", "12", "--scalar", "naive/checkpoint-3"]
    arguments += ["--samples", "2", "--temperature", "1", "--output", output.name]
    commands.succeed("eval/critique_ablation.py", *arguments)
    return {"json": json_file(output)}


def answer_accuracy(commands: Commands) -> dict[str, Any]:
    """Run eval/answers.py, which asks the embedded backbone questions; return its figures."""
    output = commands.fresh("answers.json")
    arguments = ["models/embedded", "--items", "24", "--output", output.name]
    ended = commands.succeed("eval/answers.py", *arguments)
    return {**ended.printed, "json": json_file(output)}


def contamination(commands: Commands) -> dict[str, Any]:
    """Run eval/overlap.py, which looks for training records in a benchmark; return its files."""
    details = commands.fresh("overlap.jsonl")
    fingerprints = commands.fresh("overlap.txt")
    recipe = commands.recipe("shapes/naive.yaml")
    commands.write("overlapping.yaml", OVERLAPPING.format(recipe=recipe))
    arguments = ["overlapping.yaml", "--benchmarks", *BENCHMARKS, "--workers", "1"]
    ended = commands.run("eval/overlap.py", *arguments, "--output", fingerprints.name)
    return {
        **ended.printed,
        "message": ended.errors.splitlines(),
        "matches": json_lines(details) if details.is_file() else None,
        "fingerprints": fingerprints.read_text("utf-8").splitlines()
        if fingerprints.is_file()
        else None,
    }


def annotation(commands: Commands) -> dict[str, Any]:
    """Annotate pairs with an endpoint, select hard pairs, and return all files.

    Pairs are hard if the endpoint often failed, or if a judge does.
    """
    annotated = commands.fresh("annotated.jsonl")
    for leftover in commands.work.glob("annotated.*"):
        commands.fresh(leftover.name)
    recipe = [f"extends: {commands.recipe('shapes/naive.yaml')}"]
    recipe += ["data: {sources: [{type: shapes, level: demo, split: train, rows: 12}]}"]
    commands.write("few.yaml", "\n".join(recipe) + "\n")
    cache = commands.fresh("annotation-cache")
    with endpoint() as url:
        settings = {"url": f"{url}/v1", "model": "made", "cache": cache.name, "concurrency": 1}
        commands.write("endpoint.yaml", json.dumps({"type": "endpoint", **settings}))
        arguments = ["few.yaml", "endpoint.yaml", "--out", annotated.name, "--failures", "keep"]
        ended = commands.run("eval/annotate.py", *arguments)
    recorded: dict[str, Any] = {**ended.printed, "message": ended.errors.splitlines()}
    for path in sorted(commands.work.glob("annotated.*")):
        if path.suffix in (".jsonl", ".journal"):
            recorded[path.name] = without_images(json_lines(path))
    selections = {
        "tries": ["tries", "few.yaml", annotated.name],
        "pass-rate": ["pass-rate", "few.yaml", "pairs-sampled.yaml", "--votes", "2"],
    }
    for name, arguments in selections.items():
        selected = commands.fresh(f"selected-{name}.jsonl")
        ended = commands.run("eval/select_pairs.py", *arguments, "--out", selected.name)
        lines = json_lines(selected) if selected.is_file() else []
        recorded[name] = {**ended.printed, "lines": without_images(lines)}
    return recorded


def reports(commands: Commands) -> dict[str, Any]:
    """Write the pages of runs, a sweep and lists, and return the rows of their tables."""
    recorded: dict[str, Any] = {}
    for name in ("naive", "critic", "judge-rl", "policy", "sweep", "list", "reward-models"):
        page = commands.fresh(f"report-{name}.html")
        ended = commands.run("eval/report.py", name, "--output", page.name)
        rows = table_rows(page) if page.is_file() else []
        recorded[name] = {"status": ended.status, "rows": {"printed": rows}}
    return recorded


def top_files(folder: Path) -> dict[str, Any]:
    """Return the contents of the files in `folder` itself, without those in its folders."""
    paths = sorted(path for path in folder.glob("*") if path.suffix in READERS)
    return {path.name: READERS[path.suffix](path) for path in paths}


STUDIES: dict[str, Callable[[Commands], dict[str, Any]]] = {
    "sweep": sweep,
    "ablation": ablation,
    "predictors": predictors,
    "on-policy": on_policy,
    "overoptimisation": overoptimisation,
    "stress": stress,
    "critique ablation": critique_ablation,
    "answer accuracy": answer_accuracy,
    "contamination": contamination,
    "annotation": annotation,
    "reports": reports,
}
SECTIONS: dict[str, Callable[[Commands], dict[str, Any]]] = {
    "options": options,
    "schemas": schemas,
    "errors": errors,
    "data": data,
    "training": training,
    "rankings": rankings,
    "benchmarks": benchmarks,
    "server": server,
    "studies": studies,
}


# Comparing


NUMBER = re.compile(r"(?<![\w.])[-+−]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?%?")
PRINTED_KEYS = (
    "notes",
    "about",
    "label",
    "title",
    "not_computed",
    "unavailable",
    "words",
    "differs",
)
"""Keys of result files whose texts are sentences for people; compared as `printed` is."""


def compare(first: Path, second: Path, *, texts: bool) -> int:
    """Print every difference between two recordings; return 1 if there is one."""
    names = sorted({path.name for folder in (first, second) for path in folder.glob("*.json")})
    if not names:
        sys.exit(f"neither {first} nor {second} holds a recording")
    num_differences = 0
    for name in names:
        if not (first / name).is_file() or not (second / name).is_file():
            print(f"{name}: only in one of the recordings")
            num_differences += 1
            continue
        first_section = json.loads((first / name).read_text(encoding="utf-8"))
        second_section = json.loads((second / name).read_text(encoding="utf-8"))
        for path, description in differences(first_section, second_section, texts=texts):
            print(f"{name} {path}: {description}")
            num_differences += 1
    print(f"{num_differences} differences in {len(names)} sections")
    return int(num_differences > 0)


def differences(
    first: Any, second: Any, *, texts: bool, path: str = ""
) -> Iterator[tuple[str, str]]:
    """Yield the differences between two JSON values, each as its path and a description.

    Args:
        first: a value of the first recording.
        second: the value at the same path in the second recording.
        texts: also compare messages and printed texts, line by line.
        path: the keys that lead to the values, joined by slashes.
    """
    if isinstance(first, dict) and isinstance(second, dict):
        yield from differences_of_mappings(first, second, texts=texts, path=path)
    elif isinstance(first, list) and isinstance(second, list):
        if len(first) != len(second):
            yield path, f"{len(first)} and {len(second)} entries"
        for index, (child, counterpart) in enumerate(zip(first, second, strict=False)):
            yield from differences(child, counterpart, texts=texts, path=f"{path}/{index}")
    elif not are_equal(first, second):
        yield path, f"{first!r} and {second!r}"


def differences_of_mappings(
    first: Mapping[str, Any], second: Mapping[str, Any], *, texts: bool, path: str
) -> Iterator[tuple[str, str]]:
    """Yield the differences between two mappings: in the keys, their order, and the values.

    The arguments are those of `differences`.
    """
    if list(first) != list(second):
        missing = [key for key in first if key not in second]
        added = [key for key in second if key not in first]
        if missing or added:
            yield path, f"keys missing {missing}, added {added}"
        else:
            yield path, f"order of keys {list(first)} and {list(second)}"
    for key in first:
        if key not in second:
            continue
        inside = f"{path}/{key}"
        if key == "message" and not texts:
            continue
        if key in ("printed", "message", *PRINTED_KEYS):
            yield from differences_of_texts(first[key], second[key], texts=texts, path=inside)
        else:
            yield from differences(first[key], second[key], texts=texts, path=inside)


def differences_of_texts(
    first: Any, second: Any, *, texts: bool, path: str
) -> Iterator[tuple[str, str]]:
    """Yield the differences between two printed texts.

    With `texts` their lines are compared, otherwise only their numbers.
    """
    lines = printed_lines(first)
    second_lines = printed_lines(second)
    if texts:
        yield from differences(lines, second_lines, texts=True, path=path)
        return
    numbers = [number for line in lines for number in NUMBER.findall(line)]
    second_numbers = [number for line in second_lines for number in NUMBER.findall(line)]
    if len(numbers) != len(second_numbers):
        yield path, f"{len(numbers)} and {len(second_numbers)} numbers are printed"
    for index, (number, counterpart) in enumerate(zip(numbers, second_numbers, strict=False)):
        if number != counterpart:
            yield path, f"printed number {index} is {number} and {counterpart}"
            return


def printed_lines(value: Any) -> list[str]:
    """Return the lines of a printed text, without durations, fingerprints and progress bars.

    The value may also be a list or a mapping of texts.
    """
    if isinstance(value, str):
        lines = [line for line in value.splitlines() if not PROGRESS.search(line)]
        return [VOLATILE_TEXT.sub("", line) for line in lines]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [line for child in value for line in printed_lines(child)]
    return [] if value is None else [str(value)]


def are_equal(first: Any, second: Any) -> bool:
    """Return True if two JSON scalars are equal and of the same type; NaN equals NaN."""
    if isinstance(first, float) and isinstance(second, float) and math.isnan(first):
        return math.isnan(second)
    return type(first) is type(second) and bool(first == second)


if __name__ == "__main__":
    main()
