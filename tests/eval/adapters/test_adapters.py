"""The adapters as files: each holds the one client, and works when it is copied alone."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.adapters.write_client import (
    BEGIN,
    END,
    SOURCE,
    adapter_files,
    client_lines,
    fault_of,
    with_client,
)

CLIENT = SOURCE.read_text(encoding="utf-8")
ADAPTERS = {path.name: path.read_text(encoding="utf-8") for path in adapter_files()}
CHATML = {"TURN", "TURN_END", "IMAGE", "turns_of", "parts_of_turn"}
"""Names that are defined in each of the two adapters that read rendered prompts."""


def chatml_definitions(adapter: str) -> dict[str, str]:
    """Return the code of the definitions in CHATML by name, with their docstrings."""
    code_by_name = {}
    for node in ast.parse(adapter).body:
        if isinstance(node, ast.FunctionDef):
            code_by_name[node.name] = ast.unparse(node)
        elif isinstance(node, ast.Assign):
            code_by_name[ast.unparse(node.targets[0])] = ast.unparse(node)
    return {name: code for name, code in code_by_name.items() if name in CHATML}


def test_there_are_seven_adapters() -> None:
    names = ("ms_swift", "openrlhf", "slime", "trl", "unirl", "verl_omni", "verl")
    assert list(ADAPTERS) == [f"{name}_reward.py" for name in names]


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_holds_the_client_of_reward_client(name: str) -> None:
    adapter = ADAPTERS[name]
    assert fault_of(adapter, CLIENT) == ""
    assert adapter == with_client(adapter, CLIENT), f"{name}: run `make adapters`"


def test_the_client_is_everything_below_the_imports() -> None:
    lines = client_lines(CLIENT)
    assert lines.startswith("TRIES = 8\n")
    assert CLIENT.endswith("\n\n" + lines)
    assert "import" not in lines.split("class RewardServer:")[0]


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_edit_by_hand_is_found_and_undone(name: str) -> None:
    adapter = ADAPTERS[name]
    edited = adapter.replace("TRIES = 8\n", "TRIES = 9\n")
    assert edited != adapter
    assert with_client(edited, CLIENT) == adapter


def test_a_changed_client_is_written_into_an_adapter_and_the_rest_stays() -> None:
    changed_client = CLIENT.replace("TRIES = 8\n", "TRIES = 9\n")
    adapter = ADAPTERS["slime_reward.py"]
    assert with_client(adapter, changed_client) == adapter.replace("TRIES = 8\n", "TRIES = 9\n")


def test_an_adapter_that_cannot_hold_the_client_is_refused() -> None:
    adapter = ADAPTERS["verl_reward.py"]
    without_import = adapter.replace("import random\n", "")
    assert fault_of(without_import, CLIENT) == "lacks `import random`, which the client needs"
    assert "0 times" in fault_of(adapter.replace(END, ""), CLIENT)
    assert "2 times" in fault_of(adapter + BEGIN, CLIENT)
    end_first = adapter.replace(END, "").replace(BEGIN, END + BEGIN)
    assert "end of the client above its beginning" in fault_of(end_first, CLIENT)


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_imports_nothing_of_this_project(name: str) -> None:
    packages: set[str] = set()
    for node in ast.walk(ast.parse(ADAPTERS[name])):
        if isinstance(node, ast.Import):
            packages.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            packages.add(str(node.module).partition(".")[0])
    assert packages & {"mmrm", "data", "models", "eval", "train", "tools", "tests"} == set()
    assert "reward_client" not in packages


def test_rendered_prompts_are_read_by_equal_code() -> None:
    """Both adapters are copied alone, so neither can import the definitions of the other."""
    definitions = chatml_definitions(ADAPTERS["slime_reward.py"])
    assert definitions.keys() == CHATML
    assert definitions == chatml_definitions(ADAPTERS["openrlhf_reward.py"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["trl_reward", "slime_reward"])
def test_a_copied_adapter_works_alone(name: str, tmp_path: Path) -> None:
    shutil.copy(SOURCE.parent / f"{name}.py", tmp_path)
    code = (
        f"import sys, {name}\n"
        f"print({name}.sendable('Which?', [b'1'])[0]['content'][1]['text'])\n"
        "print([module for module in sys.modules if module.partition('.')[0] == 'mmrm'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["Which?", "[]"]
