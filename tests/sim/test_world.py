"""Problem sets: bands, mixtures, a user's own pass rates, errors."""

from __future__ import annotations

import numpy as np
import pytest

from isocompute.core.errors import InputError
from isocompute.sim.world import BANDS, WorldSpec, _counts, make_world, softmax
from tests.sim.helpers import SMALL


@pytest.mark.parametrize("name", BANDS)
def test_sets_lie_in_their_band(name: str) -> None:
    world = make_world(WorldSpec.of({**SMALL, "set": name}))
    low, high = BANDS[name]
    for part in (world.train, world.validation, world.out_of_distribution):
        rates = part.base_pass_rates()
        assert rates.min() >= low
        assert rates.max() <= high
    assert (len(world.train), len(world.validation), len(world.out_of_distribution)) == (300, 100, 50)


def test_extremely_hard_is_mostly_far_below_one_in_128() -> None:
    rates = make_world(WorldSpec.of({**SMALL, "set": "extremely_hard"})).train.base_pass_rates()
    assert np.mean((1 - rates) ** 128) > 0.4
    assert rates.mean() < 1 / 128


def test_mixture_has_its_shares() -> None:
    spec = WorldSpec.of({**SMALL, "set": "dual", "mixture": {"hard": 0.5, "easy": 0.25, "very_easy": 0.25}})
    rates = np.concatenate([p.base_pass_rates() for p in (make_world(spec).train, make_world(spec).validation)])
    for name, share in (("hard", 0.5), ("easy", 0.25), ("very_easy", 0.25)):
        low, high = BANDS[name]
        assert np.mean((rates >= low) & (rates <= high)) == pytest.approx(share, abs=0.01)


def test_a_share_of_nothing_has_no_problem() -> None:
    """151 problems in halves: the odd one goes to one of the halves."""
    table = {"set": "m", "mixture": {"extremely_hard": 0.0, "easy": 0.5, "very_easy": 0.5}}
    world = make_world(WorldSpec.of({**SMALL, **table, "size": 100, "validation": 51}))
    for part in (world.train, world.validation, world.out_of_distribution):
        assert part.base_pass_rates().min() >= BANDS["easy"][0]


@pytest.mark.parametrize(
    ("shares", "count", "counts"),
    [
        ([0.5, 0.25, 0.25], 400, [200, 100, 100]),
        ([0.71, 0.29], 100, [71, 29]),  # .29 × 100 is 28.999999999999996 to a computer
        ([1 / 3, 1 / 3, 1 / 3], 100, [34, 33, 33]),
        ([0.05, 0.95], 10, [1, 9]),
        ([0.04, 0.96], 10, [0, 10]),
        ([0.5000004, 0.5000004], 4_000_000, [2_000_000, 2_000_000]),
    ],
)
def test_shares_are_rounded_by_largest_remainder(shares: list[float], count: int, counts: list[int]) -> None:
    assert _counts(shares, count) == counts


def test_own_pass_rates_are_matched_exactly() -> None:
    rng = np.random.default_rng(0)
    mine = rng.beta(0.6, 1.4, size=400).tolist()
    world = make_world(WorldSpec.of({**SMALL, "set": "mine", "pass_rates": mine}))
    got = np.sort(np.concatenate([world.train.base_pass_rates(), world.validation.base_pass_rates()]))
    np.testing.assert_allclose(got, np.clip(np.sort(mine), 1e-4, 1 - 1e-4), atol=1e-9)
    assert len(np.unique(world.train.features_PF[:, 0])) == 300  # no problem twice


def test_a_short_list_is_repeated() -> None:
    world = make_world(WorldSpec.of({**SMALL, "set": "mine", "pass_rates": [0.0, 0.25, 1.0]}))
    rates = world.train.base_pass_rates()
    assert set(np.round(rates, 4)) == {0.0001, 0.25, 0.9999}


def test_same_spec_same_world() -> None:
    first, second = (make_world(WorldSpec.of(SMALL)) for _ in "ab")
    np.testing.assert_array_equal(first.train.base_PK, second.train.base_PK)
    other = make_world(WorldSpec.of({**SMALL, "seed": 1}))
    assert not np.array_equal(first.train.base_PK, other.train.base_PK)


def test_the_base_is_partly_right() -> None:
    """Alignment 0 knows nothing (1 in K), alignment 1 knows all that the features hold."""
    shares = []
    for alignment in (0.0, 0.5, 1.0):
        part = make_world(WorldSpec.of({**SMALL, "set": "all", "alignment": alignment, "noise": 0.0})).validation
        shares.append(float((softmax(part.base_PK).argmax(axis=1) == part.correct_P).mean()))
    assert shares[0] == pytest.approx(1 / 8, abs=0.12)
    assert shares[0] < shares[1] < shares[2] == 1.0


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ({"set": "medium"}, "problems.set"),
        ({"size": 0}, "problems.size"),
        ({"colour": 1}, "problems.colour"),
        ({"mixture": {"easy": 0.5, "hard": 0.2}}, "add up to 0.7"),
        ({"mixture": {"soft": 1.0}}, "'soft' is not one of"),
        ({"pass_rates": [0.2, 1.4]}, "problems.pass_rates"),
        ({"pass_rates": []}, "empty"),
    ],
)
def test_bad_tables_name_the_field(table: dict, text: str) -> None:
    with pytest.raises(InputError, match=text):
        WorldSpec.of({**SMALL, **table})


def test_an_impossible_set_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isocompute.sim.world._MOST_POOLS", 2)
    with pytest.raises(InputError, match="too few 'hard' problems"):
        make_world(WorldSpec.of({**SMALL, "set": "hard", "alignment": 1.0, "noise": 0.0, "sharpness": 50.0}))
