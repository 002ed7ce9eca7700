"""Work on branches of a stream: who waits for whom, with streams that only write down what is asked of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from isocompute.rl.fast.branches import Branches


class Stream:
    """What is asked of it goes to a log, beside that of the others."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def record_event(self) -> str:
        self.log.append(f"{self.name} marks")
        return f"mark of {self.name}"

    def wait_event(self, event: str) -> None:
        self.log.append(f"{self.name} waits for {event}")

    def wait_stream(self, other: Stream) -> None:
        self.log.append(f"{self.name} waits for {other.name}")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A GPU of which every second new stream is the current one: PyTorch's pool is small."""
    out: list[str] = []
    main = current = Stream("main", out)
    made = iter((Stream("side", out), main, Stream("third", out)))

    @contextmanager
    def on(stream: Stream) -> Iterator[None]:
        nonlocal current
        before, current = current, stream
        yield
        current = before

    monkeypatch.setattr(torch.cuda, "Stream", lambda _: next(made))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: current)
    monkeypatch.setattr(torch.cuda, "stream", on)
    return out


def _working(log: list[str], name: str) -> str:
    log.append(f"{name} on {torch.cuda.current_stream().name}")  # type: ignore[attr-defined]  # a `Stream` of this file
    return name


BEGUN = [
    "main marks",
    "side waits for mark of main",
    "a on side",
    "main waits for mark of main",
    "b on main",
    "third waits for mark of main",
    "c on third",
]
"""A branch that is the main stream keeps none of the others waiting."""
JOINED = ["main waits for side", "main waits for main", "main waits for third"]


def test_branches_begin_together_and_all_come_back(log: list[str]) -> None:
    branches = Branches(3, torch.device("cuda"))
    assert branches.each([lambda name=name: _working(log, name) for name in "abc"]) == ["a", "b", "c"]
    assert log == BEGUN + JOINED


def test_the_main_stream_goes_on_until_it_waits(log: list[str]) -> None:
    branches = Branches(3, torch.device("cuda"))
    with branches.beside([lambda name=name: _working(log, name) for name in "abc"]) as begun:
        _working(log, "forward")
        begun.wait()
        begun.wait()
        _working(log, "loss")
    assert begun.results == ["a", "b", "c"]
    assert log == [*BEGUN, "forward on main", *JOINED, "loss on main"]


def test_branches_come_back_from_an_error(log: list[str]) -> None:
    """A capture that they do not come back to cannot end."""

    def broken() -> str:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        Branches(3, torch.device("cuda")).each([lambda: _working(log, "a"), broken, lambda: "c"])
    assert log[-2:] == JOINED[:2]


def test_a_single_call_needs_no_branch(log: list[str]) -> None:
    assert Branches(1, torch.device("cuda")).each([lambda: _working(log, "a")]) == ["a"]
    assert log == ["a on main"]


def test_without_a_gpu_calls_follow_each_other() -> None:
    seen: list[str] = []
    branches = Branches(2, torch.device("cpu"))
    with branches.beside([lambda: seen.append("a"), lambda: seen.append("b")]) as begun:
        seen.append("main")
        begun.wait()
    assert seen == ["a", "b", "main"]
