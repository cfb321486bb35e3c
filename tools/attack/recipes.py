"""Bad recipes through the dry run: every key of every shipped recipe and source mutated, hostile YAML, files that are none."""

from __future__ import annotations

import json
import math
import os
import random
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

from mmrm.data.sources.registry import SOURCES
from mmrm.train.planning.dry_run import dry_run
from mmrm.train.recipe.epoch import epoch_records
from mmrm.train.recipe.parsing import parse_arguments, read_recipe
from mmrm.train.recipe.recipe import Recipe
from tools.attack.outcomes import CLONE, Attempt, Tally, cause, kind_of
from tools.attack.values import (
    GONE,
    NUMBERS,
    OTHERS,
    SPECIAL,
    TEXTS,
    Place,
    at,
    dotted,
    places,
    put,
)

SECONDS = 5.0
"""What reading a recipe may take; a sound one takes a tenth of a second."""
ABSURD = 1e15
"""No number of a recipe is sensibly larger, but for seeds."""
SHIPPED = sorted(
    path
    for folder in ("recipes", "recipes/shapes")
    for path in (CLONE / folder).glob("*.yaml")
    if "stress" not in path.name
)
NUMBERS_OF_KEYS = NUMBERS | {
    "1e18": 10**18,
    "minus 1e18": -(10**18),
    "1e-300": 1e-300,
    "billion": 10**9,
}
SOME_TEXTS = (
    "lone surrogate",
    "NUL",
    "empty",
    "blank",
    "over-long path",
    "device",
    "loop",
    "rich markup",
    "not a number as text",
)


@dataclass(frozen=True)
class Case:
    """A recipe file's content, or the file itself, with overrides; `alone` runs in a process of its own."""

    name: str
    text: str | bytes | Path
    overrides: tuple[str, ...] = ()
    refused: bool = False
    """Nothing but a refusal is right."""
    alone: bool = False


def yaml(value: Any) -> str:
    """Return plain data as YAML in JSON's notation."""
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(f"{json.dumps(str(key))}: {yaml(child)}" for key, child in value.items())
            + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(map(yaml, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if value != value else ".inf" if value > 0 else "-.inf"
    return json.dumps(value)


def valid(folder: Path) -> dict[str, Any]:
    """Return sound recipes, with every default written out: the shipped ones, and one for each type of source."""
    found: dict[str, Any] = {}
    for path in SHIPPED:
        recipe = read_recipe(path).resolved()
        if recipe["backbone"]["path"].startswith("runs/"):  # an earlier run that need not be there
            recipe["backbone"]["path"] = "embedded"
        found[str(path.relative_to(CLONE / "recipes"))] = recipe | {
            "output": recipe["output"] | {"folder": str(folder / "run")}
        }
    bases = {"questions": "shapes/policy.yaml"}  # all others hold pairs
    needed: dict[str, dict[str, Any]] = {
        "shapes": {"level": "demo", "rows": 6400},
        "shapes_drawn": {"level": "demo", "rows": 6400, "ties": False},
        "shapes_edited": {"level": "demo", "rows": 6400, "ties": False},
        "shapes_motion": {"level": "demo", "rows": 6400},
        "shapes_rated": {"level": "demo", "rows": 6400, "ties": False},
        "povid": {"images": str(folder)},
    }
    for kind in SOURCES:
        hub = {} if kind.startswith("shapes") else {"hub": "some/set"}
        base = bases.get(kind, "shapes/naive.yaml")
        source = read_recipe(
            CLONE / "recipes" / base,
            [f"data.sources=[{yaml({'type': kind, **hub, **needed.get(kind, {})})}]"],
        )
        found[f"source {kind}"] = found[base] | {"data": source.resolved()["data"]}
    return found


def mutated(folder: Path, count: int, seed: int) -> list[Case]:
    """Return `count` recipes with one key mutated, each in a file or by an override on the command line."""
    generator = random.Random(f"{seed}/recipes")
    found = [case for name, recipe in valid(folder).items() for case in _singly(name, recipe)]
    return [make() for make in generator.sample(found, min(count, len(found)))]


def _singly(name: str, recipe: dict[str, Any]) -> Iterator[Callable[[], Case]]:
    """Yield what makes each mutation of one key; of a hundred thousand only the drawn ones are written out."""
    values = {label: TEXTS[label] for label in SOME_TEXTS} | NUMBERS_OF_KEYS
    values |= {
        label: OTHERS[label]
        for label in ("null", "empty list", "empty object", "list of lists", "depth 150")
    }
    under = ("data", "sources") if name.startswith("source ") else ()
    for place in places(recipe):
        if place[: len(under)] != under:
            continue
        for label, new in values.items():
            if label != "NUL" or "folder" not in place:
                yield partial(_changed, f"{name} {dotted(place)} = {label}", recipe, place, new)
                yield partial(
                    _overridden, f"{name} {dotted(place)} = {label} as override", recipe, place, new
                )
        yield partial(_changed, f"{name} {dotted(place)} gone", recipe, place, GONE)
        if isinstance(place[-1], str):
            yield partial(
                _renamed, f"{name} {dotted(place)} misspelt", recipe, place, place[-1][:-1] + "x"
            )
    for token in SPECIAL:
        place, new = ("backbone", "system_prompt"), f"Be brief.{token}"
        yield partial(
            _changed,
            f"{name} system prompt with {token}",
            recipe,
            place,
            new,
            refused=token != SPECIAL[-1],
        )


def _changed(
    name: str, recipe: dict[str, Any], place: Place, new: Any, *, refused: bool = False
) -> Case:
    return Case(name, yaml(put(recipe, place, new)), refused=refused)


def _overridden(name: str, recipe: dict[str, Any], place: Place, new: Any) -> Case:
    return Case(name, yaml(recipe), (f"{dotted(place)}={yaml(new)}",))


def _renamed(name: str, recipe: dict[str, Any], place: Place, key: str) -> Case:
    renamed = put(put(recipe, place, GONE), (*place[:-1], key), at(recipe, place))
    return Case(name, yaml(renamed), refused=place != ("data", "sources", 0, "type"))


def hostile(folder: Path) -> list[Case]:
    """Return texts, files and overrides that are no sound recipe, whatever their keys say."""
    sound = yaml(valid(folder)["shapes/naive.yaml"])
    laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
    )
    texts: dict[str, str | bytes] = {
        "billion laughs": laughs + "data: *a9\n",
        "alias to itself": "a: &a [*a]",
        "alias to its own mapping": "a: &a {b: *a}",
        "merge of itself": "a: &a {<<: *a}",
        "lists to a depth of 1,000": "a: " + "[" * 1000 + "]" * 1000,
        "lists to a depth of 100,000": "a: " + "[" * 100_000,
        "mappings to a depth of 100,000": "{a: " * 100_000,
        "indentation to a depth of 3,000": "".join(" " * i + "a:\n" for i in range(3000)),
        "a million keys": "".join(f"k{i}: 1\n" for i in range(1_000_000)),
        "a long list": "a: [" + "1, " * 1_000_000 + "]",
        "a long scalar": "a: " + "x" * 30_000_000,
        "a long number": "seed: " + "9" * 100_000,
        "a long hexadecimal number": "seed: 0x" + "f" * 100_000,
        "a long sexagesimal number": "seed: 1" + ":59" * 100_000,
        "binary": bytes(range(256)) * 40,
        "UTF-16": sound.encode("utf-16"),
        "NUL bytes": "a: \0\0",
        "byte order mark twice": "\ufeff\ufeff" + sound,
        "tabs": "a:\n\tb: 1",
        "two documents": sound + "\n---\n" + sound,
        "a Python tag": "a: !!python/object/apply:os.system [echo]",
        "a binary tag": "a: !!binary aGk=",
        "a set": "a: !!set {x, y}",
        "a timestamp that is none": "a: 2026-99-99",
        "a float that is none": "a: !!float abc",
        "an integer that is none": "a: !!int abc",
        "a boolean that is none": "a: !!bool maybe",
        "a complex key": "? [a, b]\n: 1",
        "a key that is a mapping": "{{a: b}: c}",
        "an alias that is nowhere": "a: *nowhere",
        "a directive": "%YAML 9.9\n---\na: 1",
        "extends itself": "extends: recipe.yaml",
        "extends a number": "extends: 7",
        "extends a list": "extends: [a, b]",
        "extends nothing": "extends: null\n",
        "extends NUL": 'extends: "a\\0b"',
        "extends a long path": "extends: " + "a/" * 5000,
        "extends a surrogate": 'extends: "\\ud800"',
        "extends a folder": "extends: .",
    }
    found = [Case(name, text, refused=True, alone="illion" in name) for name, text in texts.items()]
    found += [Case(name, path, refused=True, alone=True) for name, path in _files(folder).items()]
    found += [
        Case(f"override {name}", sound, (text,), refused=True)
        for name, text in _overrides().items()
    ]
    for name, changes in _settings(folder).items():
        found.append(Case(name, sound, changes, refused=True))
    return found


def _files(folder: Path) -> dict[str, Path]:
    """Return files that are no regular recipe: directories, devices, a pipe, chains of `extends`."""
    os.mkfifo(folder / "pipe.yaml")
    (folder / "loop.yaml").symlink_to("loop.yaml")
    chain = folder / "chain"
    chain.mkdir()
    for number in range(3000):
        (chain / f"{number}.yaml").write_text(f"extends: {number + 1}.yaml\n")
    (folder / "device.yaml").write_text("extends: /dev/zero\n")
    (folder / "to_pipe.yaml").write_text("extends: pipe.yaml\n")
    with (folder / "huge.yaml").open("wb") as file:
        file.truncate(3 << 30)  # of zeros, on no disk
    special = {
        name: Path(name)
        for name in ("/dev/zero", "/dev/urandom", "/dev/null", "/proc/self/mem", "/proc/kmsg")
    }
    named = (
        "pipe.yaml",
        "loop.yaml",
        "device.yaml",
        "to_pipe.yaml",
        "huge.yaml",
        "chain/0.yaml",
        "nowhere.yaml",
    )
    return {"a directory": folder, **special, **{name: folder / name for name in named}}


def _overrides() -> dict[str, str]:
    """Return overrides that are none, by what is wrong with them."""
    return {
        "of nothing": "=",
        "without value": "optim.learning_rate=",
        "of an empty name": "optim..learning_rate=1",
        "to a depth of 5,000": ".".join(["a"] * 5000) + "=1",
        "of a long number": "seed=" + "9" * 6000,
        "with a bomb": "data=[&a0 [x, x], "
        + "".join(f"&a{i} [*a{i - 1}, *a{i - 1}], " for i in range(1, 40))
        + "]",
        "of a far index": "data.sources.99999999999999999999.rows=3",
        "of a negative index": "data.sources.-1.rows=3",
        "of an index that is no digit": "data.sources.².rows=3",
        "of an Arabic index": "data.sources.٠x.rows=3",
        "with deep lists": "data.sources=" + "[" * 20_000,
        "with a NUL": "seed=\0",
        "with a surrogate": "seed=\udcff",
        "of an unknown key": "optim.learning_rat=1",
        "of the whole": "data=3",
    }


def _settings(folder: Path) -> dict[str, tuple[str, ...]]:
    """Return settings with which no run could start, although each of their values has the right type."""
    kinds = {
        "a Qwen3-VL": "qwen3_vl",
        "a LLaVA": "llava",
        "a text model": "qwen2",
        "no model": None,
    }
    found: dict[str, tuple[str, ...]] = {}
    own = json.loads((CLONE / "models/embedded/config.json").read_text())
    for name, kind in kinds.items():
        (folder / name).mkdir()
        changed = (
            own | {"model_type": kind}
            if kind != "qwen2"
            else {**own["text_config"], "model_type": kind}
        )
        (folder / name / "config.json").write_text(json.dumps(changed))
        found[f"a backbone that is {name}"] = (f"backbone.path={folder / name}",)
    for name, text in {
        "no JSON": "{",
        "a list": "[]",
        "empty": "{}",
        "not UTF-8": None,
        "of texts": None,
    }.items():
        place = folder / f"config {name}"
        place.mkdir()
        content = (
            json.dumps(own | {"text_config": dict.fromkeys(own["text_config"], "7")})
            if name == "of texts"
            else text
        )
        (place / "config.json").write_bytes(b"\xff\xfe{" if content is None else content.encode())
        found[f"a backbone whose config is {name}"] = (f"backbone.path={place}",)
    (folder / "set").mkdir()
    (folder / "set.csv").write_text("prompt,chosen,rejected\n")
    sources = {
        "missing": folder / "nowhere",
        "an empty folder": folder / "set",
        "of another format": folder / "set.csv",
    }
    found |= {
        f"data that are {name}": (f"data.sources=[{{type: project, path: {path}}}]",)
        for name, path in sources.items()
    }
    benchmark = "evaluation.benchmarks=[{{name: preference_folder, location: {}}}]"
    nothing = "evaluation.best_metric=null"
    return found | {
        "images that are missing": (
            f"data.sources=[{{type: povid, hub: some/set, images: {folder / 'nowhere'}}}]",
        ),
        "a benchmark that is missing": (benchmark.format(folder / "nowhere"), nothing),
        "a benchmark in an empty folder": (benchmark.format(folder / "set"), nothing),
        "a backbone that is missing": (f"backbone.path={folder / 'nowhere'}",),
        "no steps": ("optim.epochs=0.0001",),
        "no records": ("data.sources=[{type: shapes, level: demo, rows: 1}]", "data.validation=1"),
        "a step larger than an epoch": ("data.sources=[{type: shapes, level: demo, rows: 10}]",),
        "an output folder that is a file": (f"output.folder={folder / 'set.csv'}",),
        "an output folder with NUL": ('output.folder="a\\0b"',),
        "a checkpoint to resume that is missing": (f"output.resume={folder / 'nowhere'}",),
        "a file of fingerprints that is missing": (f"data.filters.leave_out={folder / 'nowhere'}",),
        "a split system prompt": (f"backbone.system_prompt='{SPECIAL[1]}'",),
    }


def attack(tally: Tally, folder: Path, count: int, seed: int, only: str | None = None) -> None:
    """Attack with the hostile recipes and with mutated ones, `count` in all, or with the one of the name `only`."""
    found = hostile(folder)
    found += mutated(folder, max(0, count - len(found)), seed)
    for case in found:
        if only is None or case.name == only:
            try_recipe(tally, case, folder)


def try_recipe(tally: Tally, case: Case, folder: Path) -> None:
    """Let the dry run read a recipe, and count how it ends."""
    path = case.text if isinstance(case.text, Path) else folder / "recipe.yaml"
    if not isinstance(case.text, Path):
        path.write_bytes(
            case.text if isinstance(case.text, bytes) else case.text.encode(errors="surrogatepass")
        )
    arguments = [str(path), *case.overrides, "--dry-run"]
    if case.alone:
        _alone(tally, case, arguments)
        return
    entry = next(
        (name for name in ("sft", "rl") if f'"{_METHOD[name]}"' in str(case.text)[:200_000]), "rm"
    )
    errors = StringIO()
    with Attempt(SECONDS) as attempt, redirect_stdout(StringIO()), redirect_stderr(errors):
        launch = parse_arguments(arguments, entry, "")  # type: ignore[arg-type]
        dry_run(launch)
    error, said = attempt.error, errors.getvalue()
    if isinstance(error, SystemExit):
        clear = error.code == 2 and said.strip()
        tally.add(
            "refused" if clear else "silent",
            case.name,
            f"exit status {error.code} without a message",
            said,
        )
    elif error is not None:
        kind = kind_of(error)  # a UserError that comes out of the command is printed as a traceback
        tally.add("traceback" if kind == "refused" else kind, case.name, cause(error), str(error))
    else:
        wrong = ["accepted: " + case.name] if case.refused else list(_absurd(launch.recipe))
        tally.add("silent" if wrong else "worked", case.name, "; ".join(wrong))


_METHOD = {"sft": "language_model", "rl": "stable_reinforce"}


def _absurd(recipe: Recipe) -> Iterator[str]:
    """Yield what no run could do with an accepted recipe."""
    plain = recipe.resolved()
    for place in places(plain):
        value = at(plain, place)
        if isinstance(value, int | float) and abs(value) >= ABSURD and place[-1] != "seed":
            yield f"{dotted(place)} has no bound"
    records = epoch_records(recipe.data)[0]
    if records is not None and recipe.steps(records) == 0:
        yield "0 steps"


def _alone(tally: Tally, case: Case, arguments: Sequence[str]) -> None:
    """Run the command itself, in four gigabytes and with a limit of time."""

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))

    command = [sys.executable, str(CLONE / "train" / "rm.py"), *arguments]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=4 * SECONDS,
            preexec_fn=limited,
        )
    except subprocess.TimeoutExpired:
        tally.add("hang", case.name, "the command does not end")
        return
    if "Traceback" in done.stderr or done.returncode < 0:
        last = [line for line in done.stderr.splitlines() if line.strip()][-1:] or [""]
        tally.add("traceback", case.name, last[0].partition(":")[0], last[0])
    elif done.returncode == 2:
        tally.add("refused", case.name)
    else:
        tally.add("silent" if case.refused else "worked", case.name, "accepted: " + case.name)
