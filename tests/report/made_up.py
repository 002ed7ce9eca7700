"""Studies with known answers for the tests of the report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from isocompute.data import Run, RunSet, RunSettings
from isocompute.report.evidence import Evidence
from isocompute.report.figures import Figure, Missing, draw
from tests.conftest import write_points

BUDGET = 1e6
Value = Callable[[float, int, int], float]
"""(compute, Bp, n) -> reward."""

CEILINGS = {8: 0.55, 32: 0.62, 128: 0.70}


def truth(compute: float, bp: int, n: int, *, midpoint: float = 2e4, efficiency: float = 1.5) -> float:
    """Larger n reach higher and later; Bp hardly matters."""
    ceiling = CEILINGS[n] - 0.002 * np.log2(bp / 32)
    return float(0.3 + (ceiling - 0.3) / (1 + (midpoint * (n / 8) ** 0.6 / compute) ** efficiency))


def points(
    bp: int, n: int, metrics: dict[str, Value], *, noise: float = 0.002, count: int = 24
) -> list[dict[str, Any]]:
    rng = np.random.default_rng([bp, n, len(metrics)])
    out = []
    for step in np.unique(np.geomspace(max(1, 2e3 / (bp * n)), BUDGET / (bp * n), count).round().astype(int)):
        compute = int(step) * bp * n
        values = {name: round(f(compute, bp, n) + noise * rng.standard_normal(), 5) for name, f in metrics.items()}
        out.append({"step": int(step), "rollouts": compute, "tokens": 500 * compute, **values})
    return out


def run(
    bp: int,
    n: int,
    *,
    name: str | None = None,
    metrics: dict[str, Value] | None = None,
    noise: float = 0.002,
    **settings: Any,
) -> Run:
    told = RunSettings(problems_per_batch=bp, rollouts_per_problem=n, seed=0, **settings)
    rows = points(bp, n, metrics or {"avg@4": truth}, noise=noise)
    return Run(name or f"{settings.get('problems', 'run')}-{bp}x{n}", told, pl.DataFrame(rows))


def study(
    bps: Iterable[int] = (32,),
    ns: Iterable[int] = tuple(CEILINGS),
    *,
    metrics: dict[str, Value] | None = None,
    **settings: Any,
) -> list[Run]:
    return [run(bp, n, metrics=metrics, **settings) for bp in bps for n in ns]


def evidence(runs: Sequence[Run], *, metric: str | None = None, replicates: int = 60) -> Evidence:
    return Evidence.of(RunSet(tuple(runs), "made-up"), metric=metric, replicates=replicates)


def drawn(name: str, runs: Sequence[Run] | Evidence, **options: Any) -> Figure:
    found = draw(name, runs if isinstance(runs, Evidence) else evidence(runs, **options))
    assert isinstance(found, Figure), f"{name} needs {found.needs}"
    return found


def missing(name: str, runs: Sequence[Run] | Evidence, **options: Any) -> str:
    found = draw(name, runs if isinstance(runs, Evidence) else evidence(runs, **options))
    assert isinstance(found, Missing), found.caption
    return found.needs


def write(folder: Path, runs: Sequence[Run]) -> Path:
    """Runs as run folders."""
    for r in runs:
        write_points(folder / r.name, r.points.to_dicts(), **r.settings.model_dump(exclude_none=True))
    return folder
