"""The page of a run that goes on: written when there is something new, and loaded anew without losing the reader's place."""

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mmrm.eval import report
from mmrm.eval.report import has_ended, watch, write_report
from mmrm.eval.reporting.run_content import read_run
from mmrm.eval.results.run_folder import LOG
from tests.eval.browser import browser
from tests.eval.made_run import log, make_run

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
ROWS = 24
HELD = (
    "const real = setTimeout; window.setTimeout = (what, ms) => "
    "{ if (ms === 20000) window.again = what; else real(what, ms); };"
)
END = {"step": 200, "train_runtime": 12.5}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("watched"), ROWS)


def write_log(run: Path, *lines: dict[str, float], more: str = "") -> None:
    run.mkdir(exist_ok=True)
    (run / LOG).write_text("".join(json.dumps(line) + "\n" for line in lines) + more)


@pytest.mark.slow
def test_a_run_is_followed_from_before_its_first_line_to_its_end(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, output, pages = tmp_path / "run", tmp_path / "page.html", list[str]()

    def events() -> Iterator[None]:
        assert not output.exists()
        write_log(run, *log(3))
        yield
        pages.append(output.read_text())
        write_log(run, *log(5))
        yield
        pages.append(output.read_text())
        before = output.stat().st_mtime_ns
        yield
        assert output.stat().st_mtime_ns == before  # nothing is new
        shutil.copytree(made, run, symlinks=True, dirs_exist_ok=True)
        (run / "checkpoint-200" / "trainer_state.json").write_text(
            '{"log_his'
        )  # just being written
        yield
        pages.append(output.read_text())
        write_log(run, *log(200), END)
        yield
        pytest.fail("the run has ended")

    happening = events()
    monkeypatch.setattr(time, "sleep", lambda seconds: next(happening))
    watch(run, output)
    pages.append(output.read_text())
    assert ["location.reload" in page for page in pages] == [True, True, True, False]
    assert len(set(pages)) == 4
    assert ["checkpoint-200" in page for page in pages] == [False, False, True, True]
    said = capsys.readouterr().out.splitlines()
    assert "waiting: " in said[0]
    assert len(said) == 3
    assert said[1].endswith("page.html, the run goes on")
    assert said[2].endswith("page.html: the run has ended")


def test_the_log_file_is_ahead_of_the_checkpoints_and_its_last_line_may_be_half_written(
    made: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(made, run, symlinks=True)
    assert read_run(run).log[-1]["step"] == 200
    assert has_ended(run)  # a version without a log file
    write_log(run, *log(200), {"step": 210, "loss": 0.25}, more='{"step": 220, "lo')
    assert not has_ended(run)
    content = read_run(run)
    assert content.log[-1] == {"step": 210, "loss": 0.25}
    assert not content.problems
    write_log(run, *log(2), more='{"st\n{"step": 3, "loss": 0.5}\n')
    content = read_run(run)
    assert content.log[-1]["step"] == 3
    assert ["line 5 is left out" in problem for problem in content.problems] == [True]


def test_a_run_goes_on_until_its_last_checkpoint_has_been_copied(
    made: Path, tmp_path: Path
) -> None:
    """Its results are in the staging folder of a node until then."""
    run = tmp_path / "run"
    shutil.copytree(made, run, symlinks=True)
    write_log(run, *log(200), {"step": 200, "train_runtime": 3.0})
    assert has_ended(run)
    copying = run / "copying-checkpoint-200"
    copying.mkdir()
    assert not has_ended(run)
    copying.rmdir()
    assert has_ended(run)


def test_a_sweep_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sweep.json").write_text("{}")
    monkeypatch.setattr("sys.argv", ["report.py", str(tmp_path), "--watch"])
    with pytest.raises(SystemExit, match="--watch follows a run"):
        report.main()


@pytest.mark.slow
@pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium"
)
def test_the_open_page_loads_itself_anew_and_the_reader_stays_where_he_is(
    made: Path, tmp_path: Path
) -> None:
    assert CHROMIUM is not None
    page = tmp_path / "page.html"
    write_report(made, page, live=True)
    with browser(CHROMIUM, tmp_path / "profile") as tab:
        tab.size(1200, 800)
        tab.call("Page.addScriptToEvaluateOnNewDocument", source=HELD)
        tab.open(page)
        tab.run("document.querySelector('#provenance details').open = true")
        tab.run(
            "(e => { e.value = 'wrong'; e.dispatchEvent(new Event('change')) })(document.getElementById('outcome'))"
        )
        tab.run("document.querySelectorAll('#list button')[2].click()")
        tab.run("scrollTo(0, document.getElementById('curves').offsetTop)")
        looks = [
            "document.getElementById('position').textContent",
            "document.getElementById('outcome').value",
            "document.querySelector('#provenance details').open",
            "Math.round(scrollY)",
        ]
        before = [tab.run(look) for look in looks]
        assert before[:3] == [f"Example 3 of {before[0].split()[-1]}", "wrong", True]
        assert before[3] > 500
        write_report(made, page, live=True)
        tab.load_anew("(() => { window.marker = true; real(again, 100); })()")
        assert tab.run("window.marker") is None
        assert [tab.run(look) for look in looks] == before
        assert "loads itself anew every 20 seconds" in tab.run("document.body.innerText")
        assert tab.problems == []
