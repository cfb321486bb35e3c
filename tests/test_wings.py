"""The core and the wings: what each may import, and that a clone works without its wings.

The core is what a Naive-RM run with both benchmarks needs. Everything else is a wing: deleting its
folders leaves a project that works. The core reaches a wing only through an import path in a
registry row, so that nothing is imported that a recipe does not ask for.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from mmrm.data.config.registry import installed_rows, load
from mmrm.data.sources.registry import SOURCES
from mmrm.eval.judges.registry import JUDGES
from mmrm.eval.serving.vllm_plugin import REFUSED_MODEL, SERVED_MODELS
from mmrm.train.objectives.registry import OBJECTIVES
from mmrm.train.recipe.registry import METHODS
from mmrm.train.reinforce.policy.registry import TERMS
from mmrm.train.reinforce.registry import ADVANTAGES
from mmrm.train.reinforce.stable_reinforce.registry import JUDGEMENT_TERMS
from tests.eval.make import png
from tests.forked_python import ForkedPython, forked_python
from tests.test_structure import CLONE, COMMANDS, MODULES, TREES, imports

WINGS = {
    "critic": ["train.methods.critic", "eval.judges.critic"],
    "cold start": ["train.methods.language_model"],
    "objectives": [
        *("train.objectives.ties", "train.objectives.regression", "train.objectives.gaussian")
    ],
    # The joint method trains with the objective of lists, and its section holds that of the list.
    "lists": ["train.objectives.listwise", "train.methods.joint", "eval.judges.joint"],
    "judges that write": [
        *("eval.judges.generative", "eval.judges.released", "eval.judges.endpoint"),
        *("eval.judges.server", "eval.judges.ensemble", "eval.judges.writing"),
        *("eval.judges.tournament", "eval.judges.pointwise", "eval.judges.strengths"),
        *("eval.judges.pair_schedule", "eval.judges.pair_ranking", "eval.judges.points"),
        "eval.judges.replayed_ranking",
        "eval.judges.rubric",
        "eval.judges.score_place",
    ],
    "reinforcement learning": ["train.reinforce"],
    "policies": ["eval.policies", "eval.selection", "eval.verifiers"],
    "serving": ["eval.serving", "eval.adapters"],
    "studies": ["train.studies", "eval.studies"],
    "embedded world": ["data.synthetic", "train.embedded", "models.build_embedded"],
    "reporting": [
        *("eval.reporting", "data.display.axis", "data.display.chart", "data.display.html"),
        *("data.display.study_result", "data.film_strip", "data.shown_records"),
    ],
    "contamination": ["eval.contamination"],
    "annotation": ["eval.annotation"],
    "planning": ["train.planning"],
    "reference": ["train.reference"],
}
"""The rooms and modules of every wing."""

MAY_IMPORT = {
    "critic": {"judges that write"},
    "cold start": {"judges that write"},
    "annotation": {"judges that write"},
    "policies": {"judges that write"},
    # The page of the server is rendered as a report is.
    "serving": {"reporting"},
    # The client of a reward server is one file, which is copied into other frameworks, too.
    "judges that write": {"serving"},
    "reinforcement learning": {"cold start", "policies", "judges that write"},
    "embedded world": {"cold start"},
    "studies": set(WINGS) - {"studies"},
}
"""The wings that a wing may import next to the core."""

RESOLVERS = {
    "mmrm.data.sources.registry": {"mmrm.data.sources.registry"},
    "mmrm.eval.judges.registry": {"mmrm.eval.judges.registry"},
    "mmrm.train.recipe.registry": {
        *("mmrm.train.recipe.registry", "mmrm.train.recipe.recipe", "mmrm.train.recipe.rules"),
    },
    "mmrm.train.objectives.registry": {
        *("mmrm.train.objectives.registry", "mmrm.train.methods.naive.config"),
    },
    "mmrm.eval.annotation.registry": {"mmrm.eval.annotation.registry"},
    "mmrm.train.reinforce.registry": {
        "mmrm.train.reinforce.registry",
        "mmrm.train.reinforce.config",
    },
    "mmrm.train.reinforce.policy.registry": {
        *("mmrm.train.reinforce.policy.registry", "mmrm.train.reinforce.policy.config"),
    },
    "mmrm.train.reinforce.stable_reinforce.registry": {
        "mmrm.train.reinforce.stable_reinforce.registry",
        "mmrm.train.reinforce.stable_reinforce.config",
    },
}
"""The modules that resolve a registry, by the registry's module."""

OF_VLLM = {*SERVED_MODELS.values(), REFUSED_MODEL}
"""vLLM imports these classes, in processes of its own. They cannot be imported without vLLM."""

IMPORT_PATH = re.compile(r"(mmrm(?:\.\w+)+):(\w+)")


def is_inside(module: str, prefixes: list[str]) -> bool:
    """Return True if a module, named with `mmrm.`, is one of `prefixes` or below one of them."""
    return any(f"{module}.".startswith(f"mmrm.{prefix}.") for prefix in prefixes)


def wing_of(module: str) -> str:
    """Return the wing of a module, "command" for a command, and "core" for all others."""
    for wing, prefixes in WINGS.items():
        if is_inside(module, prefixes):
            return wing
    _, floor, name = module.split(".")[:3]
    if name in COMMANDS[floor]:
        return "command"
    return "core"


def wings_that_need(hidden: str) -> set[str]:
    """Return the wings that may import `hidden`, directly or through others, and itself."""
    found = {hidden}
    while True:
        more = {wing for wing, listed in MAY_IMPORT.items() if listed & found} - found
        if not more:
            return found
        found |= more


def unlisted_imports(wing: str) -> list[str]:
    """Return the imports by modules of a wing (or the core) of a wing that it does not list."""
    allowed = {wing, "core"} | MAY_IMPORT.get(wing, set())
    offenders = []
    for module, targets in imports().items():
        if wing_of(module) != wing:
            continue
        for target in sorted(targets):
            if wing_of(target) not in allowed:
                offenders.append(f"{module} imports {target}")
    return offenders


def import_paths() -> list[str]:
    """Return every import path in the code, such as `mmrm.train.planning.dry_run:dry_run`."""
    return sorted(set().union(*(import_paths_in(tree) for tree in TREES.values())))


def import_paths_in(tree: ast.AST) -> set[str]:
    """Return the import paths in one file."""
    paths = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        if IMPORT_PATH.fullmatch(node.value):
            paths.add(node.value)
    return paths


def import_closure(module: str) -> set[str]:
    """Return the modules that importing `module` imports, the packages around them left out."""
    found: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        waiting += imports()[name]
    return found


# What is written


def test_every_module_of_a_wing_exists() -> None:
    missing = [
        prefix
        for prefixes in WINGS.values()
        for prefix in prefixes
        if not any(is_inside(module, [prefix]) for module in MODULES)
    ]
    assert missing == []


@pytest.mark.parametrize("wing", ["core", *WINGS])
def test_a_wing_imports_the_wings_that_it_lists(wing: str) -> None:
    """Also inside functions: what imports a wing there fails without it, only later."""
    assert unlisted_imports(wing) == []


def test_every_import_path_leads_to_an_object() -> None:
    """All rows of registries, and the implementation that each section names."""
    paths = import_paths()
    for path in paths:
        if path not in OF_VLLM:
            assert callable(load(path)), path
    assert "mmrm.train.planning.dry_run:dry_run" in paths
    assert "mmrm.train.methods.naive.method:NaiveMethod" in paths


def test_a_section_has_the_type_of_its_row() -> None:
    for registry in (METHODS, OBJECTIVES, TERMS, JUDGEMENT_TERMS, ADVANTAGES, SOURCES, JUDGES):
        for name, section in installed_rows(registry).items():
            (literal,) = section.model_fields["type"].annotation.__args__  # type: ignore[union-attr]
            assert literal == name


@pytest.mark.parametrize("registry", RESOLVERS)
def test_a_section_does_not_import_what_resolves_it(registry: str) -> None:
    """Pydantic imports the sections of a registry while the class that holds one is being made."""
    rows = {path.partition(":")[0] for path in import_paths_in(TREES[registry])}
    # Rows of the core import their class.
    rows |= imports()[registry]
    offenders = {row: import_closure(row) & RESOLVERS[registry] for row in sorted(rows)}
    assert {row: found for row, found in offenders.items() if found} == {}


# A clone without its wings

HIDE = """
import sys
from importlib.abc import MetaPathFinder

HIDDEN = {hidden!r}

class HiddenWings(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if any((name + ".").startswith("mmrm." + prefix + ".") for prefix in HIDDEN):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
        return None

sys.meta_path.insert(0, HiddenWings())
"""

IMPORT_ALL = """
from importlib import import_module

for name in {modules!r}:
    try:
        import_module(name)
    except ModuleNotFoundError as error:
        # Packages of others, such as vLLM, need not be installed.
        if error.name.startswith("mmrm."):
            print(f"{{name}} needs {{error.name}}")
"""

TRAIN = """
from mmrm.train.runs.environment import start

if __name__ == "__main__":
    start([{recipe!r}], "rm", "")
    print("loaded:", *(name for name in sys.modules if name.startswith("mmrm.")))
"""

RECIPE = """\
backbone: {{path: {backbone}, dtype: float32}}
data:
  sources: [{{type: project, path: {folder}/records.jsonl}}]
  cache: {folder}/cache
method: {{type: naive}}
optim: {{learning_rate: 1.0e-4, records_per_step: 2, max_steps: 3}}
evaluation:
  benchmarks:
    - {{name: vl_rewardbench, location: {folder}/vl_rewardbench/data.jsonl}}
    - {{name: multimodal_rewardbench, location: {folder}/multimodal_rewardbench}}
  best_metric: vl_rewardbench/accuracy
output: {{folder: {folder}/run, save_every_steps: 3, log_every_steps: 1}}
workers: 0
"""


@pytest.fixture(scope="module")
def python() -> Iterator[ForkedPython]:
    """Yield a process that is forked for every program, in which no module of mmrm is loaded."""
    with forked_python() as server:
        yield server


def write_lines(path: Path, rows: list[dict[str, object]]) -> None:
    """Write rows as JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_world(folder: Path) -> Path:
    """Write five records, five rows of both benchmarks in their official formats, and a recipe."""
    records: list[dict[str, object]] = []
    vl_rewardbench: list[dict[str, object]] = []
    multimodal_rewardbench: list[dict[str, object]] = []
    for number, identity in enumerate(
        ["RLAIF-V-1", "mathverse_2", "wildvision-battle-3", "RLAIF-V-4", "mathverse_5"]
    ):
        records.append(
            {
                "images": ["images/a.png"],
                "prompt": f"What is number {number}?",
                "chosen": f"It is {number}.",
                "rejected": "I do not know.",
            }
        )
        vl_rewardbench.append(
            {
                **{"id": identity, "image_path": "images/a.png", "query": f"what is {identity}?"},
                **{"response": ["first", "second"], "human_ranking": [number % 2, 1 - number % 2]},
                **{"models": ["m", "n"], "judge": "human", "rationale": "", "query_source": "q"},
                **{"ground_truth": ""},
            }
        )
        multimodal_rewardbench.append(
            {
                **{"Category": "reasoning", "ID": f"mathvista_{number}", "Image": "images/a.png"},
                **{"Text": f"what is {number}?", "Output1": "first", "Output2": "second"},
                **{"Better": f"Output{1 + number % 2}"},
            }
        )
    for part in (folder, folder / "vl_rewardbench", folder / "multimodal_rewardbench"):
        (part / "images").mkdir(parents=True)
        (part / "images" / "a.png").write_bytes(png(size=(64, 64)))
    write_lines(folder / "records.jsonl", records)
    write_lines(folder / "vl_rewardbench" / "data.jsonl", vl_rewardbench)
    official = folder / "multimodal_rewardbench" / "all_data.json"
    official.write_text(json.dumps(multimodal_rewardbench), encoding="utf-8")
    recipe = folder / "recipe.yaml"
    backbone = CLONE / "models" / "embedded"
    recipe.write_text(RECIPE.format(backbone=backbone, folder=folder), encoding="utf-8")
    return recipe


@pytest.mark.slow
def test_the_naive_rm_trains_without_any_wing(tmp_path: Path, python: ForkedPython) -> None:
    recipe = write_world(tmp_path)
    hidden = [prefix for prefixes in WINGS.values() for prefix in prefixes]
    printed = python.run(HIDE.format(hidden=hidden) + TRAIN.format(recipe=str(recipe)))
    (line,) = (line for line in printed.splitlines() if line.startswith("loaded:"))
    loaded = line.split()[1:]
    assert "mmrm.train.methods.naive.method" in loaded
    assert [name for name in loaded if is_inside(name, hidden)] == []

    log = (tmp_path / "run" / "log.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [json.loads(line) for line in log]
    losses = [step["loss"] for step in steps if "loss" in step]
    assert len(losses) == 3
    results = tmp_path / "run" / "checkpoint-3" / "eval"
    for benchmark in ("vl_rewardbench", "multimodal_rewardbench"):
        result = json.loads((results / f"{benchmark}.json").read_text(encoding="utf-8"))
        assert result["micro"]["n"] == 5


REFUSE = """
from pathlib import Path
from mmrm.data.errors import RecipeError
from mmrm.train.recipe.parsing import read_recipe

try:
    read_recipe(Path({recipe!r}), entry="rm")
except RecipeError as error:
    print(*(problem.key for problem in error.problems))
"""

WRONG = """\
backbone: {path: embedded, min_pixels: 5000, max_pixels: 4000}
method: {type: naive}
optim: {records_per_step: 2, learning_rate: 1.0e-4, max_steps: 3}
output: {folder: runs, save_every_steps: 1}
"""


@pytest.mark.slow
def test_a_recipe_is_refused_without_any_wing(tmp_path: Path, python: ForkedPython) -> None:
    """A section that is missing is stood in for, while the rules look at the others."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(WRONG, encoding="utf-8")
    hidden = [prefix for prefixes in WINGS.values() for prefix in prefixes]
    printed = python.run(HIDE.format(hidden=hidden) + REFUSE.format(recipe=str(recipe)))
    assert printed.split() == ["data", "backbone.min_pixels"]


@pytest.mark.slow
@pytest.mark.parametrize("wing", list(WINGS))
def test_without_a_wing_every_other_room_can_be_imported(wing: str, python: ForkedPython) -> None:
    """Adapters are left out: they import the frameworks that they are copied into."""
    without = wings_that_need(wing)
    modules = [
        module
        for module in MODULES
        if wing_of(module) not in {*without, "command"} and not is_inside(module, ["eval.adapters"])
    ]
    code = HIDE.format(hidden=WINGS[wing]) + IMPORT_ALL.format(modules=modules)
    assert python.run(code).splitlines() == []
