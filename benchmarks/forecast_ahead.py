"""How good forecasts are further ahead: runs cut at 1/2, 1/4 and 1/8 of their compute, their ends predicted.

    python benchmarks/forecast_ahead.py results/2026-11-16-lm-grid.csv [--metric avg@4] [--ahead 2,4,8]

Printed are median and mean error of the forecast, of "the mean of the last three evaluations" and of one Hill fit, and
how often the 80% interval holds what was reached (the mean over the last tenth of the compute): for all runs, and for
those that did not fall for good after the cut, which nothing before it says.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np

from isocompute.core.curve import MINIMUM_POINTS, Curve, curves_of
from isocompute.data import load
from isocompute.law.curves import collapse_start
from isocompute.law.forecasting import Backtest, backtest


@dataclass(frozen=True)
class Test:
    """A backtest, and whether the run held after it."""

    made: Backtest
    held: bool


def tests_of(curves: list[Curve], ahead: float) -> list[Test]:
    out = []
    for curve in curves:
        end = int((curve.compute_C <= curve.compute_C[-1] / ahead * (1 + 1e-12)).sum())
        if end < MINIMUM_POINTS or np.ptp(curve.values_C[:end]) == 0:
            continue
        fall = collapse_start(curve.values_C, shortest=1)
        out.append(Test(backtest(curve, ahead=ahead), fall is None or fall < end))
    return out


def show(tests: list[Test], what: str) -> None:
    made = [test.made for test in tests]
    errors = np.array([[m.forecast.value, m.last_three, m.hill] for m in made]) - [[m.target] for m in made]
    middle, mean = np.median(np.abs(errors), axis=0), np.abs(errors).mean(axis=0)
    held = np.mean([m.covered for m in made])
    width = np.median([m.forecast.interval[1] - m.forecast.interval[0] for m in made])
    cells = "   ".join(f"{m:.4f} ({a:.4f})" for m, a in zip(middle, mean, strict=True))
    print(f"  {what:10s} {len(tests):4d}   {cells}   {held:4.0%}  {width:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs")
    parser.add_argument("--metric", default="avg@4")
    parser.add_argument("--ahead", default="2,4,8")
    args = parser.parse_args()
    curves, _, _ = curves_of(load(args.runs), metric=args.metric)
    print("             runs   isocompute        last three        one Hill fit      held  interval's width")
    for ahead in map(float, args.ahead.split(",")):
        tests = tests_of(curves, ahead)
        print(f"{ahead:g} times ahead")
        show(tests, "all")
        show([test for test in tests if test.held], "that held")


if __name__ == "__main__":
    main()
