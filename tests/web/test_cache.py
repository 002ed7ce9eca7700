from __future__ import annotations

import threading
from functools import partial

import pytest

from isocompute.core.errors import InputError
from isocompute.web.cache import Cache, PendingError
from tests.sweep.tools import until


def test_a_result_is_made_once_for_each_version_of_the_files() -> None:
    cache, made = Cache(patience=30), []
    for version in ("1", "1", "1"):
        cache.get("law", version, lambda: made.append(1), what="law")
    assert len(made) == 1


def test_many_who_ask_at_once_share_one_making() -> None:
    cache, made, gate = Cache(patience=30), [], threading.Event()

    def make() -> int:
        gate.wait(30)
        made.append(1)
        return 7

    found: list[int] = []
    threads = [
        threading.Thread(target=lambda: found.append(cache.get("law", "1", make, what="law").value)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    gate.set()
    for thread in threads:
        thread.join()
    assert found == [7] * 8 and made == [1]


def test_the_last_result_is_given_out_while_the_next_is_made() -> None:
    cache, gate = Cache(patience=30), threading.Event()
    cache.get("law", "1", lambda: "old", what="law")

    def make() -> str:
        gate.wait(30)
        return "new"

    stale = cache.get("law", "2", make, what="law")
    assert (stale.value, stale.fresh) == ("old", False)
    gate.set()
    until(lambda: cache.get("law", "2", make, what="law").fresh)
    assert cache.get("law", "2", make, what="law").value == "new"


def test_a_first_result_that_takes_longer_than_patience_is_pending_and_comes_later() -> None:
    cache, gate = Cache(patience=0.0), threading.Event()

    def make() -> str:
        gate.wait(30)
        return "done"

    with pytest.raises(PendingError, match="law of 3 runs"):
        cache.get("law", "1", make, what="law of 3 runs")
    gate.set()

    def there() -> bool:
        try:
            return cache.get("law", "1", make, what="law").value == "done"
        except PendingError:
            return False

    until(there)


def test_an_error_is_kept_and_is_not_shown_in_place_of_a_newer_result() -> None:
    cache, made = Cache(patience=30), []

    def fail() -> None:
        made.append(1)
        raise InputError("too few points")

    for _ in range(3):
        with pytest.raises(InputError, match="too few"):
            cache.get("law", "1", fail, what="law")
    assert len(made) == 1
    assert cache.get("law", "2", lambda: 5, what="law").value == 5


def test_the_oldest_results_make_room() -> None:
    cache, made = Cache(patience=30, size=2), []
    for key in ("a", "b", "c", "a"):
        cache.get(key, "1", partial(made.append, key), what="law")
    assert made == ["a", "b", "c", "a"]


def test_a_quick_result_waits_for_no_turn_and_is_never_out_of_date() -> None:
    cache, gate = Cache(patience=0.0), threading.Event()
    for key in ("a", "b", "c"):
        with pytest.raises(PendingError):
            cache.get(key, "1", lambda: gate.wait(30), what="law")
    prompt = Cache(patience=30)
    prompt._turn = cache._turn  # all turns are taken
    assert prompt.get("forecast", "1", lambda: 1, what="forecast", quick=True).value == 1
    second = prompt.get("forecast", "2", lambda: 2, what="forecast", quick=True)
    assert (second.value, second.fresh) == (2, True)
    gate.set()


def test_after_an_error_there_is_a_rough_result_again() -> None:
    cache, gate = Cache(patience=5), threading.Event()

    def fail() -> str:
        raise InputError("too short")

    with pytest.raises(InputError):
        cache.get("law", "1", fail, what="law", rough=fail)

    def slowly() -> str:
        gate.wait(30)
        return "final"

    assert cache.get("law", "2", slowly, what="law", rough=lambda: "rough").value == "rough"
    gate.set()
    assert cache.get("law", "2", slowly, what="law", rough=lambda: "rough", final=True).value == "final"
