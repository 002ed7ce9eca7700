from __future__ import annotations

import threading
from functools import partial

import pytest

from isocompute.core.errors import InputError
from isocompute.web.cache import ResultCache
from tests.sweep.tools import until


def test_a_result_is_made_once_for_each_version_of_the_files() -> None:
    cache, made = ResultCache(), []
    for version in ("1", "1", "1"):
        cache.get("law", version, lambda: made.append(1))
    assert len(made) == 1


def test_many_who_ask_at_once_share_one_making() -> None:
    cache, made, gate = ResultCache(), [], threading.Event()

    def make() -> int:
        gate.wait(30)
        made.append(1)
        return 7

    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(cache.get("law", "1", make).value)) for _ in range(8)]
    for thread in threads:
        thread.start()
    gate.set()
    for thread in threads:
        thread.join()
    assert found == [7] * 8 and made == [1]


def test_the_last_result_is_answered_while_the_next_is_made() -> None:
    cache, gate = ResultCache(), threading.Event()
    cache.get("law", "1", lambda: "old")

    def make() -> str:
        gate.wait(30)
        return "new"

    stale = cache.get("law", "2", make)
    assert (stale.value, stale.version, stale.fresh) == ("old", "1", False)
    assert cache.get("law", "3", make).value == "old"  # one at a time
    gate.set()
    until(lambda: cache.get("law", "2", make).fresh)
    assert cache.get("law", "2", make).value == "new"


def test_an_error_is_kept_and_is_not_answered_in_place_of_a_newer_result() -> None:
    cache, made = ResultCache(), []

    def fail() -> None:
        made.append(1)
        raise InputError("too few points")

    for _ in range(3):
        with pytest.raises(InputError, match="too few"):
            cache.get("law", "1", fail)
    assert len(made) == 1
    assert cache.get("law", "2", lambda: 5).value == 5


def test_the_oldest_results_make_room() -> None:
    cache, made = ResultCache(size=2), []
    for key in ("a", "b", "c", "a"):
        cache.get(key, "1", partial(made.append, key))
    assert made == ["a", "b", "c", "a"]


def test_two_results_are_made_at_a_time() -> None:
    cache, gate, started = ResultCache(), threading.Event(), []

    def make(key: str) -> None:
        started.append(key)
        gate.wait(30)

    threads = [threading.Thread(target=cache.get, args=(key, "1", partial(make, key))) for key in "abc"]
    for thread in threads:
        thread.start()
    until(lambda: len(started) == 2)
    gate.set()
    for thread in threads:
        thread.join()
    assert sorted(started) == ["a", "b", "c"]
