from __future__ import annotations

import math

import pytest

from isocompute.core.formatting import number, plural, value


@pytest.mark.parametrize(
    ("x", "text"),
    [(999.4, "999"), (999.6, "1k"), (999_499, "999k"), (999_500, "1M"), (999_999, "1M"), (-999_999, "-1M")],
)
def test_a_number_that_rounds_up_to_the_next_suffix_has_it(x: float, text: str) -> None:
    assert number(x) == text


@pytest.mark.parametrize(
    ("x", "text"),
    [(9.99e14, "999T"), (9.996e14, "1e15"), (1e15, "1e15"), (-1.5e15, "-1.5e15"), (1.234e21, "1.23e21")],
)
def test_past_the_largest_suffix_a_number_is_a_power_of_ten(x: float, text: str) -> None:
    assert number(x) == text


def test_a_large_reward_reads_as_compute_does() -> None:
    assert value(5.268e17) == "5.27e17"


def test_infinity_has_no_suffix() -> None:
    assert (number(math.inf), number(-math.inf)) == ("inf", "-inf")


def test_one_thing_has_no_s() -> None:
    assert [plural(count, "run") for count in (0, 1, 2, 1200)] == ["0 runs", "1 run", "2 runs", "1200 runs"]
