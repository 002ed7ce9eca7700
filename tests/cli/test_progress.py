"""How far a long step is, on a terminal and elsewhere."""

from __future__ import annotations

import io
import sys

import pytest

from isocompute.cli import options


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(options.time, "monotonic", lambda: now[0])
    return now


def test_a_terminal_has_one_line_that_goes_away(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", out := Terminal())
    progress = options.Progress()
    progress("evaluation at update 0", 0, 256)
    assert out.getvalue() == ""  # what is quick needs no line
    for done in (100, 120, 256):
        clock[0] += 0.6 if done != 120 else 0.1
        progress("evaluation at update 0", done, 256)
    first, second = (f"evaluation at update 0: {done} of 256 problems" for done in (100, 256))
    assert out.getvalue() == f"\r{first}\r{second}"
    progress.clear()
    assert out.getvalue().endswith(f"\r{' ' * len(second)}\r")
    before = out.getvalue()
    progress.clear()
    assert out.getvalue() == before


def test_a_file_has_a_line_now_and_then(clock: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", out := io.StringIO())
    progress = options.Progress()
    for done in range(1000, 7001, 1000):
        clock[0] += 10.0
        progress("sampling", done, 20_000)
    progress.clear()
    assert out.getvalue().splitlines() == ["sampling: 3,000 of 20,000 problems", "sampling: 6,000 of 20,000 problems"]
