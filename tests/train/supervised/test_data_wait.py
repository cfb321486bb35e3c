"""A wait for data is named while it lasts, and counted."""

from __future__ import annotations

import re
import time

import pytest

from mmrm.train.supervised.data_wait import announced_wait


def test_a_long_wait_is_announced_again_and_again(capsys: pytest.CaptureFixture[str]) -> None:
    with announced_wait(rank=3, step=17, patience=0.05):
        time.sleep(0.5)
    printed = capsys.readouterr().err
    messages = re.findall(r"rank 3: waiting for the records of step 17 for \d+ s", printed)
    assert len(messages) >= 2


def test_a_short_wait_is_not_announced(capsys: pytest.CaptureFixture[str]) -> None:
    with announced_wait(rank=0, step=1, patience=600.0):
        pass
    assert capsys.readouterr().err == ""


def test_an_error_ends_the_announcements(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OSError, match="gone"), announced_wait(rank=0, step=1, patience=0.02):
        raise OSError("gone")
    time.sleep(0.1)
    assert capsys.readouterr().err == ""
