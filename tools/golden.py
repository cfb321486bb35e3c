"""Record what this tree computes and prints, and compare two recordings.

    python tools/golden.py record before          # in the tree of before; about ten minutes on two cores
    python tools/golden.py record after           # in the tree of after, on the same machine
    python tools/golden.py compare before after   # prints every difference; status 1 if there is one

A change of structure must leave every number, key, order and exit code as it was. The recording goes through the
commands alone, so that it does not know how the code is arranged: training runs of three steps by every method,
benchmarks, rankings by every kind of judge, answers of the server, tables of the studies, the schemas of recipes and
judges, and the errors of wrong recipes. Texts are recorded too; `compare --texts` compares them, and without it only
numbers, keys, orders and exit codes count. Times, paths and commits are left out.

`--only NAME …` records some sections: schemas errors training rankings benchmarks server studies. The later ones use
the checkpoints of `training`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CLONE = Path(__file__).resolve().parents[1]
VOLATILE = re.compile(
    r"seconds|time|_per_second|runtime|flos|^id$|created|fingerprint|commit|version|packages|hardware"
)
"""Keys whose values differ from one recording to the next on the same tree."""
WIDTH = "200"
"""Columns of the recorded console."""

EMBEDDED_BENCHMARKS = (
    "evaluation.benchmarks=[{name: vl_rewardbench, location: embedded, limit: 16}, "
    "{name: multimodal_rewardbench, location: embedded, limit: 16}]"
)


def main() -> None:
    """Read the command line, and record or compare."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("tools/golden.py", description=__doc__, formatter_class=form)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("folder", type=Path)
    recording.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    comparison = commands.add_parser("compare")
    comparison.add_argument("first", type=Path)
    comparison.add_argument("second", type=Path)
    comparison.add_argument("--texts", action="store_true", help="also compare texts")
    options = parser.parse_args()
    if options.command == "record":
        record(options.folder, options.only)
    else:
        sys.exit(compare(options.first, options.second, texts=options.texts))


def record(folder: Path, sections: Sequence[str]) -> None:
    """Record sections into `folder`, a JSON file each; what the commands write goes to `folder`/work."""
    work = (folder / "work").resolve()
    work.mkdir(parents=True, exist_ok=True)
    for name in sections:
        begin = time.monotonic()
        found = SECTIONS[name](work)
        text = json.dumps(found, indent=1, ensure_ascii=False, sort_keys=False)
        (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")
        print(f"{name}: {time.monotonic() - begin:.0f} s", flush=True)


# Running commands


@dataclass(frozen=True, slots=True)
class Done:
    """A command that has ended."""

    status: int
    output: str
    errors: str


def run(work: Path, *arguments: str, ranks: int = 1) -> Done:
    """Run a command of this tree in `work`, on one thread and without a GPU.

    Args:
        work: the working directory.
        arguments: the script, relative to the clone, and its arguments.
        ranks: with more than one, torchrun starts so many processes.
    """
    script, *rest = arguments
    launcher = [sys.executable]
    if ranks > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "COLUMNS": WIDTH,
        "WANDB_MODE": "disabled",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    done = subprocess.run(
        [*launcher, str(CLONE / script), *rest],
        cwd=work,
        env=environment,
        capture_output=True,
        text=True,
    )
    return Done(done.returncode, done.stdout, done.stderr)


def must(done: Done) -> Done:
    """Return a command that ended well; end the recording with its output otherwise."""
    if done.status != 0:
        sys.exit(
            f"a command that must end well ended with status {done.status}:\n{done.errors[-4000:]}"
        )
    return done


def without_volatile(value: Any) -> Any:
    """Return a JSON value without the keys that differ from one recording to the next."""
    if isinstance(value, dict):
        return {
            key: without_volatile(child) for key, child in value.items() if not VOLATILE.search(key)
        }
    if isinstance(value, list):
        return [without_volatile(child) for child in value]
    return value


def json_lines(path: Path) -> list[Any]:
    """Return the objects of a JSON-lines file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def files_in(folder: Path) -> dict[str, Any]:
    """Return the contents of all JSON, JSON-lines, Markdown and CSV files below `folder`, by relative path."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.suffix == ".json":
            found[name] = without_volatile(json.loads(path.read_text(encoding="utf-8")))
        elif path.suffix == ".jsonl":
            found[name] = without_volatile(json_lines(path))
        elif path.suffix in (".md", ".csv"):
            found[name] = path.read_text(encoding="utf-8").splitlines()
    return found


# Schemas and errors of recipes


def schemas(work: Path) -> dict[str, Any]:
    """Return the schemas of recipes and judges; descriptions are texts."""
    return {
        "recipe": json.loads((CLONE / "recipes" / "schema.json").read_text(encoding="utf-8")),
        "judges": json.loads(
            (CLONE / "recipes" / "judges" / "schema.json").read_text(encoding="utf-8")
        ),
    }


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
PROBLEM = re.compile(r"^  (\S.*?)  (\S+ = .*)$")
"""The first line of an error in a recipe: where it is, then the key and its value."""


def errors(work: Path) -> dict[str, Any]:
    """Return the errors of wrong recipes: the exit status, and of each its place, key, value and allowed values."""
    allowed_values = enumerations(json.loads((CLONE / "recipes/schema.json").read_text()))
    recipe = str(CLONE / "recipes/shapes/naive.yaml")
    found: dict[str, Any] = {}
    for settings in WRONG_SETTINGS:
        done = run(work, "train/rm.py", recipe, *_split(settings), "--dry-run")
        lines = _without_paths(done.errors, work)
        problems: dict[str, list[str]] = {}
        for line in lines:
            start = PROBLEM.match(line)
            if start:
                allowed: list[str] = []
                problems[f"{start[1]}: {start[2]}"] = allowed
            elif problems:
                allowed += [word for word in re.findall(r"\w+", line) if word in allowed_values]
        found[settings] = {"status": done.status, "problems": problems, "message": lines}
    return found


def enumerations(schema: Any) -> set[str]:
    """Return all texts that a schema names as allowed values."""
    values: set[str] = set()
    if isinstance(schema, dict):
        for key, child in schema.items():
            if key == "enum":
                values |= {value for value in child if isinstance(value, str)}
            elif key == "const" and isinstance(child, str):
                values.add(child)
            else:
                values |= enumerations(child)
    elif isinstance(schema, list):
        for child in schema:
            values |= enumerations(child)
    return values


def _split(settings: str) -> list[str]:
    """Return the overrides of one string; a space inside brackets separates nothing."""
    return re.split(r" (?=[\w.]+=)(?![^\[{]*[\]}])", settings)


def _without_paths(text: str, work: Path) -> list[str]:
    return text.replace(str(work), "WORK").replace(str(CLONE), "CLONE").splitlines()


# Training


@dataclass(frozen=True, slots=True)
class Training:
    """A run of three steps."""

    name: str
    script: str
    recipe: str
    overrides: tuple[str, ...] = ()
    ranks: int = 1


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
JUDGEMENTS = (*SUPERVISED, "data.validation=8", "evaluation.judging.max_new_tokens=24")
REINFORCE = (
    *SHORT,
    "optim.max_steps=2",
    "optim.records_per_step=4",
    "method.pairs_per_pass=2",
    "method.max_new_tokens=16",
    "output.save_every_steps=2",
)
JUDGE_RL = (
    *REINFORCE,
    "backbone.path=sft/checkpoint-3",
    "evaluation.judging.max_new_tokens=24",
    EMBEDDED_BENCHMARKS,
)
POLICY = (
    *REINFORCE,
    "method.num_generations=4",
    "method.rewards=[{type: judge, path: naive/checkpoint-3, form: hybrid}]",
    "evaluation.samples=2",
    "evaluation.questions=[{type: shapes, name: questions, level: demo, split: benchmark, rows: 8, text_only: 0.0}]",
)
NONE = ("deepspeed=none",)
ZERO2 = ("deepspeed=zero2",)
TRAININGS = (
    Training("naive", "train/rm.py", "naive", (*SUPERVISED, *NONE)),
    Training("naive-2", "train/rm.py", "naive", (*SUPERVISED, *NONE), ranks=2),
    Training("naive-zero2", "train/rm.py", "naive", (*SUPERVISED, *ZERO2)),
    Training("naive-zero2-2", "train/rm.py", "naive", (*SUPERVISED, *ZERO2), ranks=2),
    Training(
        "naive-held-out",
        "train/rm.py",
        "naive",
        (*SUPERVISED, *NONE, "data.validation=16", "evaluation.best_metric=held_out/accuracy"),
    ),
    Training(
        "critic", "train/rm.py", "critic", (*SUPERVISED, *NONE, "method.refresh_every_steps=2")
    ),
    Training("critic-2", "train/rm.py", "critic", (*SUPERVISED, *ZERO2), ranks=2),
    Training("sft", "train/sft.py", "judge_sft", (*JUDGEMENTS, *NONE)),
    Training("sft-2", "train/sft.py", "judge_sft", (*JUDGEMENTS, *ZERO2), ranks=2),
    Training("judge-rl", "train/rl.py", "judge_rl", (*JUDGE_RL, *NONE)),
    Training("judge-rl-2", "train/rl.py", "judge_rl", (*JUDGE_RL, *ZERO2), ranks=2),
    Training("policy", "train/rl.py", "policy", (*POLICY, *NONE)),
)


def training(work: Path) -> dict[str, Any]:
    """Train every method, and return its log, its results and its plan."""
    found: dict[str, Any] = {}
    for one in TRAININGS:
        folder = work / one.name
        shutil.rmtree(folder, ignore_errors=True)
        recipe = str(CLONE / "recipes" / "shapes" / f"{one.recipe}.yaml")
        arguments = [one.script, recipe, *one.overrides, f"output.folder={one.name}"]
        planned = must(run(work, *arguments, "--dry-run"))
        must(run(work, *arguments, ranks=one.ranks))
        checkpoint = max(folder.glob("checkpoint-*"), key=lambda path: int(path.name[11:]))
        found[one.name] = {
            "plan": planned.output.splitlines(),
            "log": without_volatile(json_lines(folder / "log.jsonl")),
            "checkpoint": sorted(path.name for path in checkpoint.iterdir()),
            "eval": files_in(checkpoint / "eval"),
            "answers": files_in(checkpoint / "answers"),
            "best": (folder / "best").resolve().name if (folder / "best").exists() else None,
        }
    return found


# Judges


def judge_files(work: Path) -> dict[str, Path]:
    """Write a YAML file for judges of every kind on the checkpoints of `training`, and return judges by name."""
    files = {
        "critic-none": {"type": "critic", "checkpoint": "critic/checkpoint-3", "critiques": "none"},
        "critic-samples": {
            "type": "critic",
            "checkpoint": "critic/checkpoint-3",
            "samples": 2,
            "temperature": 0.7,
            "max_new_tokens": 16,
        },
        "pairs-greedy": {
            "type": "generative",
            "checkpoint": "sft/checkpoint-3",
            "temperature": 0.0,
            "max_new_tokens": 24,
        },
        "pairs-sampled": {
            "type": "generative",
            "checkpoint": "sft/checkpoint-3",
            "temperature": 1.0,
            "max_new_tokens": 24,
        },
        "pairs-answers": {
            "type": "generative",
            "checkpoint": str(CLONE / "models" / "embedded"),
            "template": "turns",
            "temperature": 0.0,
            "max_new_tokens": 24,
        },
        "ensemble": {
            "type": "ensemble",
            "members": ["naive/checkpoint-3", "naive-zero2/checkpoint-3"],
        },
        "ensemble-weighted": {
            "type": "ensemble",
            "members": ["naive/checkpoint-3", "naive-2/checkpoint-3"],
            "combine": "margin",
            "validation": "naive-held-out/validation.jsonl",
        },
    }
    judges = {"naive": work / "naive/checkpoint-3", "critic": work / "critic/checkpoint-3"}
    for name, content in files.items():
        judges[name] = work / f"{name}.yaml"
        judges[name].write_text(json.dumps(content), encoding="utf-8")
    return judges


def rankings(work: Path) -> dict[str, Any]:
    """Return the scores of the same answers by judges of every kind, and what is selected from them."""
    source = "{type: shapes, level: demo, split: train, rows: 8, text_only: 0.25}"
    samples = work / "samples.jsonl"
    samples.unlink(missing_ok=True)
    arguments = ["embedded", samples.name, "--source", source, "--samples", "3"]
    must(run(work, "eval/sample.py", *arguments, "--max-new-tokens", "24"))
    found: dict[str, Any] = {"samples": without_volatile(json_lines(samples))}
    for name, judge in judge_files(work).items():
        scored = work / f"scored-{name}.jsonl"
        scored.unlink(missing_ok=True)
        form = ["--form", "standardised"] if name == "naive" else []
        must(run(work, "eval/score.py", str(judge), "samples.jsonl", scored.name, *form))
        columns = [
            {key: value for key, value in line.items() if key not in ("images", "prompt")}
            for line in json_lines(scored)
        ]
        found[name] = without_volatile(columns)
    for selection in ("best", "pairs"):
        selected = work / f"{selection}.jsonl"
        selected.unlink(missing_ok=True)
        done = run(work, "eval/select_responses.py", selection, "scored-naive.jsonl", selected.name)
        lines = json_lines(selected) if selected.exists() else []
        for line in lines:
            line.pop("images", None)
        found[selection] = {"status": done.status, "lines": without_volatile(lines)}
    return found


def benchmarks(work: Path) -> dict[str, Any]:
    """Return the results of judges of every kind on both benchmarks, and of files by published rules."""
    places = [f"{name}=embedded,limit=16" for name in ("vl_rewardbench", "multimodal_rewardbench")]
    found: dict[str, Any] = {}
    for name, judge in judge_files(work).items():
        output = work / f"eval-{name}"
        shutil.rmtree(output, ignore_errors=True)
        more = ["--ablations"] if name == "naive" else []
        if name == "pairs-sampled":
            more = ["--protocol", "votes=2", "seed=1"]
        if name == "pairs-answers":
            more = ["--protocol", "order=winner_first"]
        arguments = [str(judge), "--benchmarks", *places, "--output", output.name, *more]
        done = run(work, "eval/run.py", *arguments)
        must(done)
        found[name] = {"files": files_in(output), "console": done.output.splitlines()}
    for name in ("naive", "pairs-sampled"):
        for benchmark in ("vl_rewardbench", "multimodal_rewardbench"):
            file = f"eval-{name}/{benchmark}/predictions.jsonl"
            output = work / "scored-files" / name
            arguments = ["--score", file, "--benchmark", benchmark, "--output", str(output)]
            done = run(work, "eval/run.py", *arguments)
            found[f"score {name} {benchmark}"] = {"status": done.status, "files": files_in(output)}
    done = run(work, "eval/run.py", "--compare", "eval-naive", "eval-critic")
    found["compare"] = {"status": done.status, "console": done.output.splitlines()}
    return found


def server(work: Path) -> dict[str, Any]:
    """Return what the server answers in every dialect, right and wrong requests."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        str(CLONE / "eval/serve.py"),
        "naive/checkpoint-3",
        "--port",
        str(port),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    process = subprocess.Popen(
        command, cwd=work, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        address = f"http://127.0.0.1:{port}"
        _await_ready(address, process)
        return {name: _ask(address + path, body) for name, (path, body) in REQUESTS.items()}
    finally:
        process.terminate()
        process.wait(60)


QUESTION = "Which shapes are there?"


def group(messages: str, *responses: str, images: Sequence[str] = ()) -> dict[str, Any]:
    """Return a group as /v1/rewards takes it."""
    return {"messages": messages, "responses": list(responses), "images": list(images)}


CONVERSATION = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
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
}


def _await_ready(address: str, process: subprocess.Popen[bytes]) -> None:
    while True:
        if process.poll() is not None:
            sys.exit("the server ended before it was ready")
        try:
            with urllib.request.urlopen(f"{address}/ready", timeout=5):
                return
        except OSError:
            time.sleep(0.2)


def _ask(url: str, body: Any) -> dict[str, Any]:
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return {"status": answer.status, "body": without_volatile(json.load(answer))}
    except urllib.error.HTTPError as error:
        return {"status": error.code, "body": without_volatile(json.load(error))}


# Studies


def studies(work: Path) -> dict[str, Any]:
    """Return what the studies write and print: a sweep, a list of variants, a policy's over-optimisation, the data card."""
    places = ["vl_rewardbench=embedded,limit=16", "multimodal_rewardbench=embedded,limit=16"]
    for folder in ("sweep", "list", "policy/overoptimisation"):
        shutil.rmtree(work / folder, ignore_errors=True)
    arguments = ["naive", "naive-zero2", "critic", "--benchmarks", *places, "--output", "sweep"]
    done = must(run(work, "eval/sweep.py", *arguments))
    found: dict[str, Any] = {
        "sweep": {
            "console": _without_paths(done.output, work),
            "json": without_volatile(json.loads((work / "sweep/sweep.json").read_text())),
            "markdown": (work / "sweep/sweep.md").read_text().splitlines(),
        }
    }
    listed = work / "list.yaml"
    listed.write_text(
        f"extends: {CLONE}/recipes/shapes/naive.yaml\n"
        "evaluation: {best_metric: null, at_start: false}\n"
        "output: {folder: list, keep_checkpoints: 1}\n"
        "variants: {two: {}, one: {head.layers: 1}, slow: {optim.learning_rate: 1.0e-6}}\n",
        encoding="utf-8",
    )
    settings = [override for override in (*SUPERVISED, *NONE) if "at_start" not in override]
    done = must(run(work, "train/ablate.py", "list.yaml", *settings, "--seeds", "0", "1", "2"))
    found["list"] = {
        "console": _without_paths(done.output, work),
        "json": without_volatile(json.loads((work / "list/ablation.json").read_text())),
        "csv": (work / "list/ablation.csv").read_text().splitlines(),
    }
    done = must(
        run(work, "eval/overoptimisation.py", "policy", "--samples", "2", "--questions", "8")
    )
    found["overoptimisation"] = {
        "console": _without_paths(done.output, work),
        "json": without_volatile(
            json.loads((work / "policy/overoptimisation/figures.json").read_text())
        ),
    }
    done = must(
        run(work, "data/mixture.py", str(CLONE / "recipes/shapes/judge_sft.yaml"), "--plan")
    )
    found["data card"] = _without_paths(done.output, work)
    return found


SECTIONS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "schemas": schemas,
    "errors": errors,
    "training": training,
    "rankings": rankings,
    "benchmarks": benchmarks,
    "server": server,
    "studies": studies,
}


# Comparing


NUMBER = re.compile(r"[-+−]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?%?")
PROSE = (
    *(
        "console",
        "plan",
        "message",
        "markdown",
        "data card",
        "notes",
        "about",
        "label",
        "words",
        "body",
    ),
    *("description", "markdownDescription", "title", "differs", "not_computed", "protocol"),
)
"""Keys below which texts are sentences for people; everywhere else a text is a result and must be equal."""


def compare(first: Path, second: Path, *, texts: bool) -> int:
    """Print every difference between two recordings; return 1 if there is one."""
    names = sorted({path.name for folder in (first, second) for path in folder.glob("*.json")})
    num_differences = 0
    for name in names:
        if not (first / name).is_file() or not (second / name).is_file():
            print(f"{name}: only in one of the recordings")
            num_differences += 1
            continue
        one = json.loads((first / name).read_text(encoding="utf-8"))
        other = json.loads((second / name).read_text(encoding="utf-8"))
        for place, words in differences(one, other, texts=texts):
            print(f"{name} {place}: {words}")
            num_differences += 1
    print(f"{num_differences} differences in {len(names)} sections")
    return int(num_differences > 0)


def differences(
    one: Any, other: Any, *, texts: bool, place: str = "", is_prose: bool = False
) -> Iterator[tuple[str, str]]:
    """Yield where two JSON values differ, and how.

    Without `texts`, sentences for people (`is_prose`) are equal if they hold the same numbers in the
    same order.
    """
    if isinstance(one, dict) and isinstance(other, dict):
        if list(one) != list(other):
            yield place, f"keys {list(one)} and {list(other)}"
        for key in one:
            if key in other:
                inside = is_prose or key in PROSE or key.endswith((".md", ".csv"))
                yield from differences(
                    one[key], other[key], texts=texts, place=f"{place}/{key}", is_prose=inside
                )
    elif isinstance(one, list) and isinstance(other, list):
        if len(one) != len(other):
            yield place, f"{len(one)} and {len(other)} entries"
        for number, (child, counterpart) in enumerate(zip(one, other, strict=False)):
            yield from differences(
                child, counterpart, texts=texts, place=f"{place}/{number}", is_prose=is_prose
            )
    elif isinstance(one, str) and isinstance(other, str) and is_prose and not texts:
        if NUMBER.findall(one) != NUMBER.findall(other):
            yield place, f"other numbers: {one!r} and {other!r}"
    elif not _same(one, other):
        yield place, f"{one!r} and {other!r}"


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return type(one) is type(other) and bool(one == other)


if __name__ == "__main__":
    main()
