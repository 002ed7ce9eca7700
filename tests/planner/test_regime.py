"""The diagnosis names the limit a setup was built with, on simulated sweeps and on published observations."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isocompute.core.curve import Curve
from isocompute.core.errors import InputError
from isocompute.data import Run, RunSet, RunSettings
from isocompute.law.fits import fit_groups
from isocompute.planner.regime import ADVICE, REGIMES, Diagnosis, Limit, Sweep, by_rollouts, diagnose
from tests.planner.regimes import SETUPS, sweep

SEEDS = 5


@pytest.mark.parametrize("regime", REGIMES)
def test_the_limit_of_a_simulated_setup_is_named(regime: str) -> None:
    """Five worlds each, drawn anew; more of them, and other settings: benchmarks/regimes.py."""
    named = [diagnose(sweep(SETUPS[regime], seed=seed)).regime for seed in range(SEEDS)]
    assert named == [regime] * SEEDS


def finding(diagnosis: Diagnosis, regime: str) -> Limit:
    return next(f for f in diagnosis.findings if f.regime == regime)


def curve(n: int, compute: np.ndarray, values: np.ndarray, seed: int | None = None, **columns: Any) -> Run:
    noise = 0.003 * np.random.default_rng(n + 1000 * (seed or 0)).standard_normal(len(compute))
    points = pl.DataFrame({"rollouts": compute, "avg@4": np.clip(values + noise, 0, 1), **columns})
    return Run(f"n{n}s{seed}", RunSettings(problems_per_batch=32, rollouts_per_problem=n, seed=seed), points)


def rising(to: float, scale: float, compute: np.ndarray) -> np.ndarray:
    return 0.6 + (to - 0.6) * (1 - np.exp(-compute / scale))


def test_settings_whose_compute_does_not_meet_are_not_compared() -> None:
    """One curve for all n; n = 8 ends where the others have not begun."""
    early, late = np.geomspace(100, 1e3, 12), np.geomspace(1e4, 1e6, 12)
    runs = [curve(n, c, 0.2 + 0.4 / (1 + 3000 / c)) for n, c in ((8, early), (16, late), (32, late))]
    found = diagnose(RunSet(tuple(runs)))
    assert (finding(found, "updates").verdict, finding(found, "noise").verdict) == ("unknown", "unknown")


def test_settings_that_differ_in_bp_too_are_not_compared_by_n() -> None:
    compute = np.geomspace(100, 1e5, 12)
    runs = [
        Run(f"{bp}x{n}", RunSettings(problems_per_batch=bp, rollouts_per_problem=n), curve(n, compute, v).points)
        for bp, n, v in (
            (8, 8, rising(0.8, 1e4, compute)),
            (16, 8, rising(0.7, 1e4, compute)),
            (32, 16, rising(0.75, 1e4, compute)),
        )
    ]
    found = diagnose(RunSet(tuple(runs)))
    assert (finding(found, "updates").verdict, finding(found, "noise").verdict) == ("unknown", "unknown")


def test_two_setups_that_differ() -> None:
    """A 1.8M-parameter decoder on modular arithmetic, as measured on one H200 (Bp = 32).

    400 problems: the training set is learnt to .999 while validation falls from .62 to .33. 100,000 problems: the
    smallest n leads at every budget up to 5M rollouts.
    """
    compute = np.geomspace(2e3, 2e6, 24)
    heart = 0.6 + 0.399 * (1 - np.exp(-compute / 5e4))
    falling = np.where(compute < 1e5, 0.62, 0.62 - 0.29 * np.log(np.maximum(compute, 1e5) / 1e5) / np.log(20))
    small = RunSet(tuple(curve(n, compute, falling, **{"train/avg": heart}) for n in (8, 32, 128)))
    assert diagnose(small).regime == "data"
    compute = np.geomspace(2e4, 5e6, 24)
    finals = {8: 0.945, 32: 0.92, 128: 0.86, 512: 0.72}
    fresh = RunSet(tuple(curve(n, compute, rising(v, 2e6, compute), s) for n, v in finals.items() for s in (0, 1)))
    found = diagnose(fresh)
    assert found.regime == "updates"
    assert finding(found, "data").verdict == finding(found, "interference").verdict == "unknown"
    assert "n = 8" in finding(found, "updates").evidence
    alone = finding(diagnose(RunSet(fresh.runs[::2])), "updates")
    assert alone.verdict == "unclear" and (alone.value or 0.0) > 0.0, "n = 32 is behind by less than seeds differ"


def test_a_bandit_whose_best_n_rises() -> None:
    """A linear contextual bandit's easy set: n* moves 2 → 32 → 128."""
    compute = np.geomspace(1e4, 1e8, 30)
    curves = [(2, 0.80, 3e5), (32, 0.88, 2e6), (128, 0.90, 6e6)]
    found = diagnose(RunSet(tuple(curve(n, compute, rising(a, t, compute)) for n, a, t in curves)))
    assert found.regime == "noise"
    assert "128, leads" in finding(found, "noise").evidence


def test_seeds_widen_intervals() -> None:
    compute = np.geomspace(1e4, 1e6, 12)
    values = rising(0.8, 1e5, compute)
    gaps = (0.0, 0.08, 0.16)
    runs = [
        curve(8, compute, values, seed, **{"train/avg": values + g * np.linspace(0, 1, 12)})
        for seed, g in enumerate(gaps)
    ]
    alone, together = diagnose(RunSet((runs[1],))), diagnose(RunSet(tuple(runs)))
    assert finding(alone, "data").verdict == "yes"
    assert finding(together, "data").verdict == "unclear"
    for f in (*alone.findings, *together.findings):
        if f.interval is not None and f.value is not None:
            assert f.interval[0] <= f.value <= f.interval[1]


def test_equal_n_of_one_seed_each_are_no_limit_by_noise() -> None:
    """Five n, equally good, whose seeds differ as ScaleRL's do: the best of four larger ones often leads by chance."""
    rng, grid_C = np.random.default_rng(3), np.geomspace(1e4, 1e6, 25)
    verdicts = []
    for _ in range(20):
        groups = []
        for n in (8, 16, 32, 64, 128):
            rise_C = (0.3 + 0.0072 * rng.standard_normal()) * (1 - np.exp(-grid_C / 1.5e5))
            groups.append([Curve(f"{n}", grid_C, 0.3 + rise_C + 0.004 * rng.standard_normal(25), 32, n, 0)])
        fits = fit_groups(groups, replicates=100, upper=1.0)
        verdicts += [finding.verdict for finding in by_rollouts(Sweep(tuple(fits), "rollouts"))]
    assert verdicts.count("yes") <= 2


def test_pass_rates_from_best_at_k() -> None:
    """Without the engine's own shares, held-out best@k at the largest k gives the share that never succeeds."""
    compute = np.geomspace(1e4, 1e6, 12)
    values = rising(0.8, 1e5, compute)
    lost = {"best@4": np.linspace(0.95, 0.85, 12), "best@8": np.linspace(0.97, 0.90, 12)}
    given_up = finding(diagnose(RunSet((curve(8, compute, values, **lost),))), "interference")
    assert given_up.verdict == "yes" and "best@8" in given_up.evidence
    few = {"best@4": np.linspace(0.02, 0.2, 12)}
    found = diagnose(RunSet((curve(8, compute, 0.25 * values, **few),)))
    assert found.regime == "coverage" and finding(found, "interference").verdict == "no"


@given(rates=st.lists(st.floats(0, 1), min_size=1, max_size=30), n=st.integers(2, 64))
def test_tied_groups_bound_the_unsolved(rates: list[float], n: int) -> None:
    """Where only zero-variance groups and the mean reward are logged, the true share of failures lies between."""
    p = np.array(rates)
    tied, reward, failed = (p**n + (1 - p) ** n).mean(), p.mean(), ((1 - p) ** n).mean()
    compute = np.geomspace(1e4, 1e6, 8)
    columns = {"zero_variance": np.full(8, tied), "train/avg": np.full(8, reward), "avg@4": np.full(8, 0.1)}
    found = finding(diagnose(RunSet((curve(n, compute, np.full(8, 0.1), **columns),))), "coverage")
    assert found.interval is not None
    assert found.interval[0] - 1e-9 <= failed <= found.interval[1] + 1e-9
    if found.verdict == "yes":
        assert failed > 0.5


def test_nothing_was_ever_solved() -> None:
    """Constant curves have no law; the diagnosis still says why."""
    compute = np.geomspace(1e4, 1e6, 8)
    columns = {"zero_variance": np.ones(8), "train/avg": np.zeros(8), "avg@4": np.zeros(8)}
    found = diagnose(RunSet(tuple(curve(n, compute, np.zeros(8), **columns) for n in (8, 32))))
    assert found.regime == "coverage"
    assert finding(found, "updates").verdict == "unknown"


def test_a_diagnosis_is_plain_data() -> None:
    compute = np.geomspace(1e4, 1e6, 12)
    plain = diagnose(RunSet((curve(8, compute, rising(0.8, 1e5, compute)),))).to_json()
    assert json.loads(json.dumps(plain)) == plain
    assert plain["regime"] is None and plain["advice"] is None
    assert [f["regime"] for f in plain["findings"]] == list(REGIMES)
    assert set(ADVICE) == set(REGIMES)
    with pytest.raises(InputError, match="no run has a metric 'score'"):
        diagnose(RunSet((curve(8, compute, compute / 1e6),)), metric="score")
