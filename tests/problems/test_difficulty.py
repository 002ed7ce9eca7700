"""Corrected means against simulated truth: problems whose pass rates are known, chosen by their counts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isocompute.core.arrays import Array
from isocompute.core.errors import InputError
from isocompute.problems.difficulty import BANDS, Difficulty, choose_subsets, fit_difficulty
from tests.problems.coverage import SHAPES, Draw, trial


def simulate(draw: Draw, *, samples: int, count: int, seed: int) -> tuple[Array, Difficulty]:
    rng = np.random.default_rng([seed, samples])
    rate_P = draw(rng, count)
    return rate_P, fit_difficulty(rng.binomial(samples, rate_P), samples, replicates=2)


@pytest.mark.parametrize(("samples", "draws"), [(16, 5), (128, 1)])
def test_corrected_means_hold_the_truth(samples: int, draws: int) -> None:
    """95% intervals of the true mean of every subset, chosen by counts and by posterior, cover it about that often.

    `python -m tests.problems.coverage` is the same with enough draws to tell shapes apart.
    """
    rows = [
        row
        for shape in SHAPES
        for seed in range(draws)
        for row in trial(shape, samples=samples, problems=500, seed=seed, replicates=40)
    ]
    truth, naive, corrected = (np.array([row[i] for row in rows]) for i in (2, 3, 4))
    assert np.mean([row[5] for row in rows]) >= 0.88
    assert abs(np.mean(corrected - truth)) < 0.003
    if samples == 16:
        assert np.mean(np.abs(corrected - truth)) < 0.6 * np.mean(np.abs(naive - truth))


@pytest.mark.parametrize("shape", SHAPES)
def test_chosen_by_posterior_the_true_mean_lies_in_the_band(shape: str) -> None:
    rate_P, found = simulate(SHAPES[shape], samples=16, count=6000, seed=1)
    for name, chosen in choose_subsets(found).items():
        if chosen.mean is None or chosen.mean.size < 200 or name == "extremely-hard":
            continue
        truth = rate_P[chosen.chosen_D[found.counts.index_P]].mean()
        assert BANDS[name].low - 0.01 <= truth <= BANDS[name].high + 0.01, name


def test_regression_to_the_mean() -> None:
    """A model that is right about .6 of the time: what 16 samples call easy is not, and hard is far from it."""
    rate_P, found = simulate(lambda rng, n: rng.beta(3, 2, n), samples=16, count=20_000, seed=0)
    easy = choose_subsets(found, naive=True)["easy"]
    truth = rate_P[easy.chosen_D[found.counts.index_P]].mean()
    assert easy.mean is not None
    assert easy.mean.naive < truth - 0.03
    assert easy.mean.interval[0] <= truth <= easy.mean.interval[1]
    hard = choose_subsets(found, naive=True)["hard"]
    assert hard.mean is not None
    assert hard.mean.corrected > 3 * hard.mean.naive


def test_a_filtered_set_is_noticed_and_corrected() -> None:
    """A set that keeps problems at or below 9/16 by the counts themselves, as public sets do."""
    rng = np.random.default_rng(0)
    rate_P = rng.beta(0.6, 0.8, 12_000)
    correct_P = rng.binomial(16, rate_P)
    kept_P = correct_P <= 9
    rate_P, correct_P = rate_P[kept_P], correct_P[kept_P]
    plain = fit_difficulty(correct_P, 16, replicates=20)
    filtered = fit_difficulty(correct_P, 16, kept=(0, 9 / 16), replicates=60)
    assert plain.misfit < 1e-6
    assert filtered.misfit > 0.05
    for found, right in ((plain, False), (filtered, True)):
        easy = choose_subsets(found, naive=True)["easy"]
        truth = rate_P[easy.chosen_D[found.counts.index_P]].mean()
        assert easy.mean is not None
        assert bool(easy.mean.interval[0] <= truth <= easy.mean.interval[1]) is right
    with pytest.raises(InputError, match=r"kept = 0:0\.25: \d+ problems"):
        fit_difficulty(correct_P, 16, kept=(0, 0.25))
    with pytest.raises(InputError, match="range of measured pass rates"):
        fit_difficulty(correct_P, 16, kept=(0.5, 0.25))


def test_an_unfiltered_set_is_not_called_filtered() -> None:
    chances = [simulate(draw, samples=16, count=2000, seed=3)[1].misfit for draw in SHAPES.values()]
    assert min(chances) > 0.01


@given(st.lists(st.tuples(st.integers(1, 20), st.integers(0, 20)), min_size=1, max_size=40))
def test_posterior(pairs: list[tuple[int, int]]) -> None:
    """Posteriors are distributions; their means rise with the count, and stay in the hull of what the data allow."""
    samples_P = [m for m, _ in pairs]
    correct_P = [min(c, m) for m, c in pairs]
    found = fit_difficulty(correct_P, samples_P, replicates=3)
    np.testing.assert_allclose(found.posterior_DK.sum(axis=1), 1)
    assert (found.variance_D >= 0).all()
    for m in set(samples_P):
        means = found.mean_D[found.counts.samples_D == m]
        assert (np.diff(means) >= -1e-9).all()
    whole = found.subset_mean()
    assert whole is not None
    assert whole.size == len(pairs)
    assert 0 <= whole.interval[0] <= whole.corrected <= whole.interval[1] <= 1
    np.testing.assert_allclose(found.chance_D(0, 1), 1)
    assert (found.all_wrong_D(1) <= 1 - found.mean_D + 1e-9).all()  # a rate of 0 stands for rates too small to be seen


def test_many_samples_change_nothing() -> None:
    rng = np.random.default_rng(0)
    correct_P = rng.binomial(4096, rng.random(200))
    found = fit_difficulty(correct_P, 4096, replicates=2)
    np.testing.assert_allclose(found.mean_D[found.counts.index_P], correct_P / 4096, atol=0.02)


def test_no_success_has_an_interval() -> None:
    found = fit_difficulty([0] * 100, 16, replicates=20)
    mean = found.subset_mean()
    assert mean is not None
    assert mean.corrected == pytest.approx(0, abs=1e-3)
    assert 1 / 1600 < mean.interval[1] < 0.02
    assert found.subset_mean(np.zeros(1, dtype=np.bool_)) is None


def test_extremely_hard_is_about_128_fresh_samples() -> None:
    """16 failures do not make a problem extremely hard where the set has problems of rate .05; 128 failures do."""
    rng = np.random.default_rng(0)
    rate_P = rng.choice([0.02, 0.6], 2000)
    few = fit_difficulty(rng.binomial(16, rate_P), 16, replicates=2)
    assert choose_subsets(few, naive=True)["extremely-hard"].mean is not None
    assert choose_subsets(few)["extremely-hard"].mean is None
    never_P = rng.choice([0.0, 0.6], 2000)
    many = fit_difficulty(rng.binomial(128, never_P), 128, replicates=2)
    chosen = choose_subsets(many)["extremely-hard"]
    assert chosen.mean is not None
    assert chosen.mean.size == (never_P == 0).sum()
    assert chosen.in_band == pytest.approx(1, abs=1e-3)
