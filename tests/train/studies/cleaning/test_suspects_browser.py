"""The page of suspects in headless Chromium: decisions by keys, undone, kept, and downloaded in the form of a recipe."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mmrm.data.preparation.decisions import read_decisions
from mmrm.train.studies.cleaning.folds import read_records
from mmrm.train.studies.cleaning.label_errors import LabelErrors
from mmrm.train.studies.cleaning.label_study import JudgedLabels, Thresholds
from mmrm.train.studies.cleaning.preference_cycles import contradictions
from mmrm.train.studies.cleaning.suspects_page import suspects_page
from tests.data.mixtures import mixture
from tests.eval.browser import Browser, browser

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = [
    pytest.mark.skipif(
        CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium"
    ),
    pytest.mark.slow,
]
VISIBLE = "[...document.querySelectorAll('article')].findIndex(article => !article.hidden)"
POSITION = "document.getElementById('position').textContent"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Give a page with labels and a blind page, of generated records with pictures."""
    folder = tmp_path_factory.mktemp("pages")
    source = {"type": "shapes", "level": "demo", "rows": 12, "text_only": 0.0}
    found = mixture(folder, [source])
    records = read_records(found)
    probabilities = np.linspace(0.99, 0.01, 12)
    errors = LabelErrors((), probabilities)
    labels = JudgedLabels(
        records,
        margins=np.linspace(-2, 2, 12),
        probabilities=probabilities,
        errors=errors,
        contradictions=contradictions([record.preferences for record in records.records]),
        thresholds=Thresholds(0.5, 0.9),
    )
    files = {}
    for name, is_blind in (("open", False), ("blind", True)):
        files[name] = folder / f"{name}.html"
        files[name].write_text(suspects_page(labels, found, "mine", 4, is_blind=is_blind))
    return files


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert CHROMIUM is not None
    with browser(CHROMIUM, tmp_path_factory.mktemp("profile")) as started:
        yield started


def opened(chromium: Browser, page: Path) -> Browser:
    """Open a page without decisions."""
    chromium.problems.clear()
    chromium.requests.clear()
    chromium.open(page)
    chromium.load_anew("localStorage.clear(); location.reload()")
    return chromium


def press(tab: Browser, keys: str) -> None:
    """Press keys one after the other."""
    for key in keys:
        tab.press(key, ord(key.upper()), text=key)


def test_decisions_by_keys_are_undone_kept_and_written(
    chromium: Browser, pages: dict[str, Path], tmp_path: Path
) -> None:
    tab = opened(chromium, pages["open"])
    tab.size(1200, 900)
    assert tab.run(VISIBLE) == 0
    press(tab, "rwel")
    assert tab.run(POSITION) == "Record 4 of 4, 4 decided"
    press(tab, "u")
    assert tab.run(POSITION) == "Record 4 of 4, 3 decided"
    press(tab, "ppn")
    assert tab.run(VISIBLE) == 2
    # A decision that is changed and undone is what it was before.
    press(tab, "ru")
    assert tab.run("document.querySelectorAll('.decision')[2].textContent") == (
        "Both are equally good."
    )
    tab.load_anew("location.reload()")
    assert tab.run(POSITION) == "Record 4 of 4, 3 decided"
    file = tmp_path / "decisions.jsonl"
    file.write_text(tab.run("written()"))
    assert sorted(read_decisions([str(file)]).by_key.values()) == ["equal", "flip", "keep"]
    assert all(url.startswith(("data:", "file:")) for url in tab.requests)
    assert tab.problems == []


def test_the_button_downloads_the_decisions(
    chromium: Browser, pages: dict[str, Path], tmp_path: Path
) -> None:
    tab = opened(chromium, pages["open"])
    tab.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    press(tab, "ww")
    tab.run("document.getElementById('download').click()")
    file = tmp_path / "decisions.jsonl"
    tab.wait_until("true")
    for _ in range(200):
        if file.exists():
            break
        tab.run("new Promise(resolve => setTimeout(resolve, 50))")
    assert list(read_decisions([str(file)]).by_key.values()) == ["flip", "flip"]
    assert tab.problems == []


def test_a_blind_page_says_which_response_is_better(
    chromium: Browser, pages: dict[str, Path]
) -> None:
    tab = opened(chromium, pages["blind"])
    press(tab, "a" * 8)
    firsts = tab.run("articles.map(article => article.dataset.first)")
    assert len(firsts) == 8
    assert tab.run("articles.map(article => decisions.get(article.dataset.key))") == firsts
    assert tab.run("document.querySelector('.decision').textContent") == "A is better."
    press(tab, "b")
    assert tab.run("decisions.get(articles[7].dataset.key)") == tab.run(
        "articles[7].dataset.second"
    )
    assert tab.problems == []


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", ["open", "blind"])
def test_nothing_is_wider_than_the_window_and_axe_finds_nothing(
    chromium: Browser, pages: dict[str, Path], name: str, dark: bool
) -> None:
    tab = opened(chromium, pages[name])
    for width in (360, 1200):
        tab.size(width, 800, dark=dark)
        assert tab.run("document.documentElement.scrollWidth") <= width
    axe = pytest.importorskip(
        "axe_core_python", reason="no axe-core here: pip install axe-core-python"
    )
    tab.run(Path(axe.__file__).with_name("axe.min.js").read_text(encoding="utf-8") + ";0")
    assert (
        tab.run(
            "axe.run().then(found => found.violations.map(one => `${one.id} ${one.nodes[0].html}`))"
        )
        == []
    )
