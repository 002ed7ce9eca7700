"""Capturing warnings in several threads at once."""

from __future__ import annotations

import threading
import warnings

from isocompute.core.errors import quiet, recorded
from isocompute.core.run import RunWarning


def test_threads_that_catch_warnings_do_not_undo_each_other() -> None:
    """One is inside `quiet` when the other begins to record: it has to wait, and the filters are as before."""
    before = list(warnings.filters)
    inside, go_on, messages = threading.Event(), threading.Event(), []

    def hush() -> None:
        with quiet(RunWarning):
            inside.set()
            go_on.wait(10)

    def listen() -> None:
        with recorded() as caught:
            warnings.warn("a cell without a point", RunWarning, stacklevel=2)
        messages.extend(str(one.message) for one in caught)

    first, second = threading.Thread(target=hush), threading.Thread(target=listen)
    first.start()
    assert inside.wait(10)
    second.start()
    second.join(0.2)
    assert not messages
    go_on.set()
    first.join(10)
    second.join(10)
    assert messages == ["a cell without a point"]
    assert warnings.filters == before


def test_one_thread_may_catch_inside_what_it_catches() -> None:
    with recorded(RunWarning) as caught:
        with quiet(RunWarning):
            warnings.warn("not this", RunWarning, stacklevel=2)
        warnings.warn("this", RunWarning, stacklevel=2)
    assert [str(one.message) for one in caught] == ["this"]
