"""Does `isocompute health` see a collapse in time, and leave steady runs alone?

    python benchmarks/health_runs.py PATH...      # runs, studies or trainers' logs
    python benchmarks/health_runs.py --noise      # saturating curves with Gaussian noise: how often is one flagged?

A run falls when its reward (held-out where there is one) ends, by the mean of its last tenth, below the best mean of as
many points (three at least) by over a fifth of its rise and .04 of the scale, or when nothing is left of what the base
model could do. Every other run is steady. That is read from the whole run; the flags only see what came before them.
`fall done` is the share of the fall that lies behind at the first flag and at the first problem, between evaluations on
a straight line.
"""

from __future__ import annotations

import argparse
import warnings
from dataclasses import dataclass

import numpy as np
import polars as pl

from isocompute import load
from isocompute.core.curve import choose_metric, scale_of
from isocompute.core.errors import InputError
from isocompute.data import Run, RunSet, RunSettings
from isocompute.diagnose.health import Health, check
from isocompute.diagnose.series import Series, series_of, trailing

FEWEST = 4


@dataclass(frozen=True)
class Fall:
    """From the best point to the first one that is as low as the end."""

    rows: np.ndarray
    done: np.ndarray
    """Share of the fall that is over, at each of these rows."""


def fall_of(series: Series) -> Fall | None:
    """The fall of a whole run, or None where it is steady."""
    values = series.values_T
    last = max(1, len(values) // 10)
    width = max(1 if len(values) < 6 else 3, last)
    level = trailing(np.mean, values, width)
    at = width - 1 + int(level[width - 1 :].argmax())
    top = at + 1 - width + int(values[at + 1 - width : at + 1].argmax()) if width <= 3 else at
    best, end = float(level[at]), float(values[-last:].mean())
    nothing_left = values[0] > 0 and end <= 0.1 * values[0]
    if not nothing_left and best - end <= max(0.2 * (best - float(values[0])), 0.04 * scale_of(values)):
        return None
    track = values if width <= 3 else level
    done = np.clip((best - track[top:]) / (best - end), 0.0, 1.0)
    return Fall(series.row_T[top:], np.maximum.accumulate(done))


def row_of(run: Run, step: int | None) -> int:
    return 0 if step is None else int((run.points["step"] <= step).sum()) - 1


def flagged(run: Run, health: Health, severity: str | None) -> int | None:
    steps = [f.since_step for f in health.findings if severity in (None, f.severity)]
    return row_of(run, steps[0]) if steps else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="*")
    parser.add_argument("--noise", action="store_true")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    if asked.noise:
        on_noise()
        on_small_sets()
    if asked.paths:
        on_runs(asked.paths)


def on_noise() -> None:
    """Held-out reward with a noise of .005 to .04, and training's with .02 to .2."""
    for points, draws in ((20, 300), (60, 300), (200, 200), (1000, 60)):
        flagged = {"avg@1": 0, "train/avg": 0}
        for seed in range(draws):
            rng = np.random.default_rng([points, seed])
            for name, (low, high) in {"avg@1": (0.005, 0.04), "train/avg": (0.02, 0.2)}.items():
                curve = 0.3 + 0.4 * (1 - np.exp(-3.0 * np.arange(points) / points))
                values = np.clip(curve + rng.uniform(low, high) * rng.normal(size=points), 0, 1)
                table = pl.DataFrame({"step": np.arange(points), name: values})
                flagged[name] += check(Run("noise", RunSettings(problems_per_batch=32), table)).verdict != "healthy"
        held_out, train = flagged.values()
        print(f"{points} points, {draws} runs: {held_out} flagged by held-out reward, {train} by training's")


def on_small_sets() -> None:
    """Five further held-out sets of thirty problems, k samples of each, beside a large one."""
    for k in (1, 4, 32):
        flagged = 0
        for seed in range(200):
            rng = np.random.default_rng([k, seed])
            points = int(rng.integers(8, 60))
            rise = 1 - np.exp(-3.0 * np.arange(points) / points)
            table = {f"avg@{k}": 0.3 + 0.4 * rise + 0.01 * rng.normal(size=points)}
            for low in (0.05, 0.1, 0.2, 0.4, 0.6):
                table[f"avg@{k}/{low}"] = rng.binomial(30 * k, low + 0.5 * low * rise) / (30.0 * k)
            health = check(Run("noise", RunSettings(), pl.DataFrame({"step": np.arange(points), **table})))
            flagged += any(finding.code == "reward_fall" for finding in health.findings)
        print(f"five sets of 30 problems beside the first at k = {k}, 200 runs: {flagged} falls found")


def on_runs(paths: list[str]) -> None:
    """Every run, then the sums."""
    falling: list[tuple[float, float]] = []
    steady: list[str] = []
    print(f"{'run':52} {'kind':7} {'verdict':8} {'any flag':>9} {'problem':>8}  {'fall done':>10}  findings")
    for path in paths:
        for run in load(path):
            try:
                series = series_of(run, choose_metric(RunSet((run,))))
            except InputError:
                continue
            if series is None or len(series) < FEWEST:
                continue
            health, fall = check(run), fall_of(series)
            any_at, problem_at = flagged(run, health, None), flagged(run, health, "problem")
            shares = [
                1.0 if at is None else float(np.interp(at, fall.rows, fall.done)) for at in (any_at, problem_at) if fall
            ]
            if fall:
                falling.append((shares[0], shares[1]))
            else:
                steady.append(health.verdict)
            rows = ["–" if at is None else f"{at + 1}/{run.points.height}" for at in (any_at, problem_at)]
            done = f"{shares[0]:.0%} / {shares[1]:.0%}" if fall else "–"
            codes = ", ".join(dict.fromkeys(f.code for f in health.findings))
            kind = "falls" if fall else "steady"
            print(f"{run.name[-52:]:52} {kind:7} {health.verdict:8} {rows[0]:>9} {rows[1]:>8}  {done:>10}  {codes}")
    early = [sum(share < 0.5 for share in column) for column in zip(*falling, strict=True)] or [0, 0]
    print(f"\n{len(falling)} runs fall: {early[0]} flagged before half of it is over, {early[1]} as a problem")
    print(
        f"{len(steady)} runs are steady: {sum(v != 'healthy' for v in steady)} flagged, "
        f"{sum(v == 'problem' for v in steady)} as a problem"
    )


if __name__ == "__main__":
    main()
