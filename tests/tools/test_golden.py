"""The tool that compares what two trees compute: what it calls a difference, and what it leaves out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tools import golden

SCRIPT = Path(golden.__file__)
RECORDING: dict[str, Any] = {
    "naive": {
        "status": 0,
        "printed": ["accuracy   93.8 % of 16 rows", "done in 3.2 s"],
        "message": ["16 rows were read."],
        "log": [{"loss": 0.6931, "step": 1, "text": "Response 1 is better."}],
        "files": {"result.json": {"notes": ["Limited to 16 rows."], "right": 15}},
    }
}

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(st.sampled_from(["loss", "printed", "message", "notes"]), children)
    ),
    max_leaves=8,
)


def changed(*path: str | int, value: Any) -> dict[str, Any]:
    """Return RECORDING with another value at the end of a path of keys."""
    recording: dict[str, Any] = json.loads(json.dumps(RECORDING))
    parent: Any = recording
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
    return recording


def places(other: dict[str, Any], *, texts: bool = False) -> list[str]:
    """Return the places at which a recording differs from RECORDING."""
    return [place for place, _ in golden.differences(RECORDING, other, texts=texts)]


def compared(folder: Path, other: dict[str, Any]) -> int:
    """Return the status of comparing RECORDING with another recording."""
    for name, recording in (("first", RECORDING), ("second", other)):
        (folder / name).mkdir()
        (folder / name / "training.json").write_text(json.dumps(recording), encoding="utf-8")
    return golden.compare(folder / "first", folder / "second", texts=False)


@settings(deadline=None, max_examples=50)
@given(value=JSON, texts=st.booleans())
def test_a_value_does_not_differ_from_itself(value: Any, texts: bool) -> None:
    again = json.loads(json.dumps(value))
    assert list(golden.differences(value, again, texts=texts)) == []


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("naive", "status"), 1),
        (("naive", "log", 0, "loss"), 0.6932),
        (("naive", "log", 0, "step"), 1.0),
        (("naive", "log", 0, "text"), "Response 2 is better."),
        (("naive", "log"), []),
        (("naive", "files", "result.json", "right"), None),
        (("naive", "printed", 0), "accuracy   93.7 % of 16 rows"),
        (("naive", "files", "result.json", "notes"), ["Limited to 17 rows."]),
    ],
)
def test_changed_results_are_reported(path: tuple[str | int, ...], value: Any) -> None:
    assert len(places(changed(*path, value=value))) == 1


def test_added_keys_missing_keys_and_another_order_are_reported() -> None:
    line = RECORDING["naive"]["log"][0]
    without_text = {"loss": 0.6931, "step": 1}
    reversed_line = dict(reversed(line.items()))
    for other in (without_text, {**line, "margin": 0.1}, reversed_line):
        assert places(changed("naive", "log", 0, value=other)) == ["/naive/log/0"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("naive", "printed"), ["16 rows were judged"]),
        (("naive", "message"), ["17 rows were not read."]),
        (("naive", "files", "result.json", "notes"), ["Only 16 rows, so it is not comparable."]),
    ],
)
def test_texts_are_compared_only_on_demand(path: tuple[str | int, ...], value: Any) -> None:
    recording = changed(*path, value=value)
    if path[-1] == "printed":
        recording = changed(*path, value=["accuracy of 93.8 % on", "16 rows"])
    assert places(recording) == []
    assert places(recording, texts=True)


def test_durations_are_no_difference() -> None:
    slower = changed("naive", "printed", 1, value="done in 47 s")
    assert places(slower) == []
    assert places(slower, texts=True) == []


def test_progress_bars_and_fingerprints_are_no_difference() -> None:
    bar = "Loading weights: 100%|####| 131/131 [00:00<00:00, {}it/s]"
    scored = "scored by http://ADDRESS, checkpoint {}"
    first = {"message": [bar.format(9362)], "notes": [scored.format("f6cf" * 16)]}
    second = {"message": [bar.format(71), bar.format(9)], "notes": [scored.format("6947" * 16)]}
    assert list(golden.differences(first, second, texts=True)) == []


def test_the_status_says_whether_recordings_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "equal").mkdir()
    (tmp_path / "different").mkdir()
    assert compared(tmp_path / "equal", RECORDING) == 0
    assert "0 differences in 1 sections" in capsys.readouterr().out
    assert compared(tmp_path / "different", changed("naive", "status", value=2)) == 1
    assert "training.json /naive/status: 0 and 2" in capsys.readouterr().out


def test_a_section_of_one_recording_alone_is_a_difference(tmp_path: Path) -> None:
    assert compared(tmp_path, RECORDING) == 0
    (tmp_path / "second" / "studies.json").write_text("{}", encoding="utf-8")
    assert golden.compare(tmp_path / "first", tmp_path / "second", texts=False) == 1


def test_two_folders_without_a_recording_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="neither"):
        golden.compare(tmp_path, tmp_path, texts=False)


def test_volatile_keys_and_paths_are_left_out(tmp_path: Path) -> None:
    line = {"loss": 0.5, "tokens_per_second": 3.0, "train_runtime": 1.0, "ties": 0}
    assert golden.without_volatile([line]) == [{"loss": 0.5, "ties": 0}]
    commands = golden.Commands(tmp_path / "clone", Path(sys.executable), tmp_path / "work")
    text = f"{tmp_path}/clone/models and {tmp_path}/work/naive at 127.0.0.1:41234"
    assert commands.without_paths([text]) == ["CLONE/models and WORK/naive at ADDRESS"]


def test_digests_of_generating_code_are_left_out() -> None:
    revision = "cf57fb569e93b8e3"
    record = {"content": f'{revision} {{"type":"shapes"}}', "revision": revision, "key": "a" * 16}
    printed = [f"| shapes | {revision[:12]} |"]
    text = golden.without_code_digests(json.dumps([record, printed]))
    assert json.loads(text) == [
        {"content": 'REVISION {"type":"shapes"}', "revision": "REVISION", "key": "a" * 16},
        ["| shapes | REVISION |"],
    ]


def schema(class_name: str, description: str) -> dict[str, Any]:
    """Return a schema with one definition, and keys that are also keywords of JSON schema."""
    definition = {
        "title": class_name,
        "description": description,
        "properties": {"title": {"type": "string"}, "layers": {"type": "integer"}},
    }
    return {
        "definitions": {class_name: definition},
        "properties": {
            "head": {"$ref": f"#/definitions/{class_name}"},
            "depth": {"$ref": f"#/definitions/{class_name}/properties/layers"},
        },
    }


def written_out(class_name: str, description: str) -> Any:
    root = schema(class_name, description)
    return golden.written_out(root, root)


def test_a_schema_does_not_depend_on_the_names_of_classes() -> None:
    first = written_out("HeadConfig", "The head.")
    second = written_out("Head", "A reward head.")
    assert first["properties"]["head"]["properties"] == {
        "title": {"type": "string"},
        "layers": {"type": "integer"},
    }
    assert first["properties"]["depth"] == {"type": "integer"}
    assert list(golden.differences(first, second, texts=False)) == []
    assert list(golden.differences(first, second, texts=True)) != []


def test_a_schema_depends_on_its_keys_and_their_order() -> None:
    other = schema("HeadConfig", "The head.")
    properties = other["definitions"]["HeadConfig"]["properties"]
    other["definitions"]["HeadConfig"]["properties"] = dict(reversed(properties.items()))
    first = written_out("HeadConfig", "The head.")
    second = golden.written_out(other, other)
    assert list(golden.differences(first, second, texts=False)) != []


REFUSED = """\
naive.yaml: 3 errors
  naive.yaml:4  head.activation = "silo"
      the value should be none, tanh or silu; did you mean silu?
  command line  optim.betas.1
      this key is required
  command line  evaluation.best_metric = "accuracy"
      possible are vl_rewardbench/accuracy, vl_rewardbench/macro, none of them without a benchmark
"""


def test_a_refusal_has_the_place_the_key_the_value_and_the_allowed_values() -> None:
    allowed = {"none", "tanh", "silu"}
    refusal = golden.refusal(golden.Ended(2, "", REFUSED), allowed)
    assert refusal["status"] == 2
    assert refusal["problems"] == [
        {
            "place": "naive.yaml:4",
            "key": "head.activation",
            "value": '"silo"',
            "allowed": ["none", "tanh", "silu"],
        },
        {"place": "command line", "key": "optim.betas.1", "value": None, "allowed": []},
        {
            "place": "command line",
            "key": "evaluation.best_metric",
            "value": '"accuracy"',
            "allowed": ["vl_rewardbench/accuracy", "vl_rewardbench/macro", "none"],
        },
    ]


def test_overrides_are_split_at_keys_alone() -> None:
    settings = "optim.lora={rank: 4, quantise: nf5} head.layers=9"
    assert golden.split_settings(settings) == [
        "optim.lora={rank: 4, quantise: nf5}",
        "head.layers=9",
    ]


def test_a_page_is_read_by_the_cells_of_its_tables(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(
        "<p>3</p><table><tr><th>run</th><td>93.8 <b>%</b></td></tr>"
        "<tr><th>seconds</th><td>4</td></tr></table>",
        encoding="utf-8",
    )
    assert golden.table_rows(page) == ["run | 93.8% | "]


@pytest.mark.slow
def test_a_recording_of_this_tree_equals_itself(tmp_path: Path) -> None:
    """Record the schemas twice with the command, compare, and compare again after a change."""
    script = [sys.executable, str(SCRIPT)]
    for name in ("first", "second"):
        record = [*script, "record", str(tmp_path / name), "--only", "schemas"]
        subprocess.run(record, check=True)
    comparison = [*script, "compare", str(tmp_path / "first"), str(tmp_path / "second"), "--texts"]
    assert subprocess.run(comparison).returncode == 0
    file = tmp_path / "second" / "schemas.json"
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace('"learning_rate"', '"learning_rates"'), encoding="utf-8")
    assert subprocess.run(comparison).returncode == 1
