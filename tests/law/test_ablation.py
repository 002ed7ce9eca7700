from __future__ import annotations

import numpy as np
import pytest

from isocompute.core.curve import Curve
from isocompute.core.errors import InputError
from isocompute.law.comparison import leave_one_out


def made(
    name: str, *, ceiling: float, middle: float, seeds: int = 3, noise: float = 0.004, first: int = 0
) -> list[Curve]:
    """Hill curves with R0 = .3 and B = 1.5, known to the last digit but for their noise."""
    compute = np.geomspace(100, 64_000, 40)
    truth = 0.3 + (ceiling - 0.3) / (1 + (middle / compute) ** 1.5)
    out = []
    for seed in range(seeds):
        rng = np.random.default_rng([first, seed])
        values = truth + noise * rng.standard_normal(len(compute))
        out.append(Curve(f"{name}-{seed}", compute, values, problems_per_batch=8, rollouts_per_problem=8, seed=seed))
    return out


def test_ceilings_and_speeds_are_told_apart():
    found = leave_one_out(
        made("whole", ceiling=0.8, middle=3000),
        {
            "lower": made("lower", ceiling=0.7, middle=3000, first=1),
            "slower": made("slower", ceiling=0.8, middle=9000, first=2),
            "equal": made("equal", ceiling=0.8, middle=3000, first=3),
            "better": made("better", ceiling=0.88, middle=3000, first=4),
        },
        replicates=200,
    )
    verdicts = {part.name: part.verdict for part in found.parts}
    assert verdicts["lower"] == "raises the ceiling"
    assert verdicts["slower"].startswith("speeds up")
    assert verdicts["equal"] == "no difference seen"
    assert verdicts["better"] == "lowers the ceiling"


def test_half_of_the_compute_predicts_the_end():
    found = leave_one_out(made("whole", ceiling=0.8, middle=3000), {}, replicates=200)
    whole = found.whole
    end = 0.3 + 0.5 / (1 + (3000 / 60_000) ** 1.5)
    assert max(c.compute_C[-1] for c in whole.half.curves) <= 32_000
    assert whole.reached == pytest.approx(end, abs=0.01)
    assert whole.predicted == pytest.approx(end, abs=0.015)
    low, high = whole.predicted_interval
    assert low <= whole.predicted <= high and high - low < 0.1


def test_the_prediction_does_not_see_the_second_half():
    curves = made("whole", ceiling=0.8, middle=3000)
    changed = [
        Curve(c.name, c.compute_C, np.where(c.compute_C > 33_000, c.values_C + 0.05, c.values_C), 8, 8, c.seed)
        for c in curves
    ]
    first, second = (leave_one_out(side, {}, replicates=100).whole.predicted for side in (curves, changed))
    assert first == pytest.approx(second, abs=1e-9)


def test_a_half_without_points_is_named():
    short = [Curve("r", np.array([1.0, 600, 700, 800, 900, 1000]), np.linspace(0.1, 0.5, 6), 8, 8)]
    with pytest.raises(InputError, match="1 points in the first 50% of its compute"):
        leave_one_out(short, {})
    with pytest.raises(InputError, match="cannot be fitted"):
        leave_one_out(short, {}, share=1.0)
