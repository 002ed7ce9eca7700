"""The law as JSON: what `fit --json` prints, and `law.json`, which a planner reads back with its uncertainty.

`law.json` is the printed object plus `settings` (every setting's curve and all its bootstrap replicates) and the
surface's replicates, rounded to seven digits.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from isocompute.arrays import Array
from isocompute.errors import InputError
from isocompute.law.curve import Curve
from isocompute.law.families import FAMILIES
from isocompute.law.fits import CurveFit, Ensemble
from isocompute.law.frontier import bounds
from isocompute.law.law import Law, Tradeoff
from isocompute.law.optimum import Optimum
from isocompute.law.sensitivity import Slice
from isocompute.law.surface import LeftOut, Surface, Terms
from isocompute.runs import files

__all__ = ["StoredLaw", "law_to_json", "read_law", "write_law"]

_FORMAT, _VERSION = "isocompute-law", 1


@dataclass(frozen=True)
class StoredLaw:
    """A law read back: the printed object and the settings' curves with their replicates."""

    summary: dict[str, Any]
    settings: tuple[CurveFit, ...]
    surface: Surface | None


def law_to_json(law: Law) -> dict[str, Any]:
    """The object that `fit --json` prints; the keys are documented in docs/fit.md."""
    return {
        "metric": law.metric,
        "unit": law.unit,
        "points": law.points,
        "replicates": law.replicates,
        "curves": [
            {
                "run": run.curve.name,
                "problems_per_batch": run.curve.problems_per_batch,
                "rollouts_per_problem": run.curve.rollouts_per_problem,
                "seed": run.curve.seed,
                "form": run.fit.family.name,
                "form_weights": run.fit.weights,
                "base": run.fit.base,
                "base_interval": list(run.fit.base_interval()),
                "asymptote": run.fit.ceiling,
                "asymptote_interval": list(run.fit.ceiling_interval()),
                "rise_done": run.fit.rise_done,
                "parameters": run.fit.parameters(),
                "parameter_intervals": {k: list(v) for k, v in run.fit.parameter_intervals().items()},
                "at_bound": run.fit.at_bound(),
                "rmse": run.fit.rmse,
                "points": run.points,
                "records": run.records,
                "falls_after": run.falls_after,
            }
            for run in law.runs
        ],
        "early_falls": [
            {
                "run": lost.curve.name,
                "problems_per_batch": lost.curve.problems_per_batch,
                "rollouts_per_problem": lost.curve.rollouts_per_problem,
                "falls_after": lost.falls_after,
            }
            for lost in law.early
        ],
        **_tradeoff(law.joint),
        "fixed_problems": [
            {"problems_per_batch": t.value, **_tradeoff(t)} for t in law.by_problems if len(law.by_problems) > 1
        ],
        "fixed_batch": [{"batch_size": t.value, **_fixed_batch(t)} for t in law.by_batch],
        "sensitivity": [_slice(s) for s in law.slices],
        "surface": _surface(law.surface),
        "notes": list(law.notes),
    }


def _label(fit: CurveFit) -> int | str:
    """n where it is known, else the run's name."""
    n = fit.setting[1]
    return n if n is not None else fit.curves[0].name


def _tradeoff(t: Tradeoff) -> dict[str, Any]:
    front = t.frontier
    low_C, high_C = np.percentile(front.values_BC, [2.5, 97.5], axis=0)
    labels = [str(_label(fit)) for fit in t.fits]
    tried = [fit.setting[1] for fit in t.fits]
    interval_C2: Any = [None] * len(front.compute_C)
    if None not in tried:
        n_BC = np.array(tried)[front.best_BC]
        interval_C2 = np.percentile(n_BC, [2.5, 97.5], axis=0, method="inverted_cdf").T.tolist()
    counts_CS = np.stack([np.bincount(best_B, minlength=len(labels)) for best_B in front.best_BC.T])
    bound_C = [None] * len(front.best_C) if t.rollouts is None else bounds(t.fits, front.best_C, front.compute_C)
    best = []
    for compute, counts_S, interval in zip(front.compute_C, counts_CS, interval_C2, strict=True):
        probability: dict[str, float] = {}
        for index in np.flatnonzero(counts_S):
            label = labels[int(index)]
            probability[label] = probability.get(label, 0.0) + float(counts_S[index]) / len(front.best_BC)
        best.append({"compute": float(compute), "probability": probability, "interval": interval})
    return {
        "frontier": [
            {
                "compute": float(c),
                "rollouts_per_problem": t.fits[int(s)].setting[1],
                "problems_per_batch": t.fits[int(s)].setting[0],
                "run": t.fits[int(s)].curves[0].name,
                "value": float(v),
                "value_interval": [min(float(low), float(v)), max(float(high), float(v))],
                "bound": bound,
            }
            for c, s, v, low, high, bound in zip(
                front.compute_C, front.best_C, front.values_C, low_C, high_C, bound_C, strict=True
            )
        ],
        "switches": [
            {
                "compute": s.compute,
                "from": _label(t.fits[s.before]),
                "to": _label(t.fits[s.after]),
                "value": s.value,
                "from_problems_per_batch": t.fits[s.before].setting[0],
                "to_problems_per_batch": t.fits[s.after].setting[0],
                "crosses": s.crosses,
            }
            for s in front.switches
        ],
        "optimal_rollouts": None if t.rollouts is None else _optimum(t.rollouts, "C"),
        "best": best,
    }


def _optimum(o: Optimum, axis: str) -> dict[str, Any]:
    return {
        "L": o.L,
        "L_interval": list(o.L_interval),
        "k": o.k,
        "k_interval": list(o.k_interval),
        f"log10_{axis}0": o.log10_C0,
        f"log10_{axis}0_interval": list(o.midpoint_interval),
        "b": o.b,
        "b_interval": list(o.b_interval),
        "floor": o.floor,
        "floor_interval": list(o.floor_interval),
        "floor_bound": o.floor_bound,
        "ceiling": o.ceiling,
        "ceiling_interval": list(o.ceiling_interval),
        "ceiling_bound": o.ceiling_bound,
        "k_at_bound": o.k_at_bound,
        "direction": o.direction,
        "rises": o.rises,
        "probability_rises": o.probability_rises,
        "saturates": o.saturates,
    }


def _fixed_batch(t: Tradeoff) -> dict[str, Any]:
    return {
        **{key: value for key, value in _tradeoff(t).items() if key in ("frontier", "switches", "best")},
        "optimal_rollouts": None if t.rollouts is None else _optimum(t.rollouts, "M"),
        "optimal_problems": None if t.problems is None else _optimum(t.problems, "M"),
    }


def _slice(s: Slice) -> dict[str, Any]:
    return {
        "varied": s.varied,
        "fixed": s.fixed,
        "compute": s.compute,
        "values": [
            {s.varied: setting, "value": value, "interval": list(interval)}
            for setting, value, interval in zip(s.settings, s.values, s.intervals, strict=True)
        ],
        "range": s.range,
        "range_interval": list(s.range_interval),
    }


def _surface(surface: Surface | None) -> dict[str, Any] | None:
    if surface is None:
        return None
    return {
        "form": surface.family.name,
        "unit": surface.unit,
        "centre": list(surface.terms.centre),
        "terms": {
            "ceiling": [list(p) for p in surface.terms.ceiling],
            "midpoint": [list(p) for p in surface.terms.midpoint],
            "efficiency": [list(p) for p in surface.terms.efficiency],
        },
        "coefficients": surface.coefficients_Q.tolist(),
        "coefficient_intervals": np.percentile(surface.replicates_BQ, [2.5, 97.5], axis=0).T.tolist(),
        "rmse": surface.rmse,
        "leave_one_out": [
            {
                "rollouts_per_problem": left.rollouts_per_problem,
                "rmse": left.rmse,
                "final_error": left.final_error,
                "edge": left.edge,
            }
            for left in surface.left_out
        ],
    }


def write_law(law: Law, path: str | Path) -> None:
    """Write `law.json`, whole or not at all."""
    data = {"format": _FORMAT, "version": _VERSION, **law_to_json(law)}
    data["settings"] = [_setting(fit) for fit in law.settings]
    if law.surface is not None:
        data["surface"] |= {"replicates": _rounded(law.surface.replicates_BQ), "upper": _finite(law.surface.upper)}
    files.write_atomically(Path(path), json.dumps(data, allow_nan=False).encode() + b"\n")


def _rounded(array: Array) -> Any:
    with np.errstate(divide="ignore"):
        digits = 6 - np.floor(np.log10(np.maximum(np.abs(array), 1e-12)))
    scale = 10.0 ** np.clip(digits, -20, 20)
    return (np.round(array * scale) / scale).tolist()


def _setting(fit: CurveFit) -> dict[str, Any]:
    problems, rollouts = fit.setting
    e = fit.ensemble
    return {
        "problems_per_batch": problems,
        "rollouts_per_problem": rollouts,
        "runs": [curve.name for curve in fit.curves],
        "recipes": [curve.recipe for curve in fit.curves],
        "form": fit.family.name,
        "form_weights": fit.weights,
        "theta": fit.theta_K.tolist(),
        "base": fit.base,
        "ceiling": fit.ceiling,
        "rmse": fit.rmse,
        "unit": fit.unit,
        "first": fit.first,
        "last": fit.last,
        "starts": fit.starts,
        "ensemble": {
            "families": [family.name for family in FAMILIES],
            "family": e.family_B.tolist(),
            "theta": _rounded(e.theta_BK),
            "base": _rounded(e.base_B),
            "ceiling": _rounded(e.ceiling_B),
        },
    }


def read_law(path: str | Path) -> StoredLaw:
    """Read `law.json`; the settings' curves evaluate as they did when it was written."""
    try:
        data = json.loads(files.read_bytes(str(path)))
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({error}); write it with isocompute fit --out.") from error
    if not isinstance(data, dict) or data.get("format") != _FORMAT:
        raise InputError(f"{path}: not a law; write one with isocompute fit --out {path}.")
    if data.get("version") != _VERSION:
        raise InputError(
            f"{path}: version {data.get('version')} of a law; this isocompute reads {_VERSION}: fit again."
        )
    try:
        settings = tuple(_read_setting(s) for s in data.pop("settings"))
        surface = _read_surface(data["surface"]) if data.get("surface") else None
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InputError(f"{path}: its settings are damaged ({error}); fit again.") from error
    return StoredLaw(data, settings, surface)


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _read_surface(s: dict[str, Any]) -> Surface:
    terms = Terms(
        centre=(float(s["centre"][0]), float(s["centre"][1])),
        **{
            name: tuple((int(i), int(j)) for i, j in s["terms"][name]) for name in ("ceiling", "midpoint", "efficiency")
        },
    )
    return Surface(
        family=next(f for f in FAMILIES if f.name == s["form"]),
        terms=terms,
        unit=float(s["unit"]),
        coefficients_Q=np.array(s["coefficients"], dtype=np.float64),
        replicates_BQ=np.array(s["replicates"], dtype=np.float64),
        rmse=float(s["rmse"]),
        left_out=tuple(LeftOut(**left) for left in s["leave_one_out"]),
        upper=np.inf if s["upper"] is None else float(s["upper"]),
    )


def _read_setting(s: dict[str, Any]) -> CurveFit:
    family = next(f for f in FAMILIES if f.name == s["form"])
    e = s["ensemble"]
    order = [[f.name for f in FAMILIES].index(name) for name in e["families"]]
    empty = np.empty(0)
    recipes = s.get("recipes") or [""] * len(s["runs"])  # older files do not have them
    curves = tuple(
        Curve(name, empty, empty, s["problems_per_batch"], s["rollouts_per_problem"], recipe=str(recipe))
        for name, recipe in zip(s["runs"], recipes, strict=True)
    )
    return CurveFit(
        curves=curves,
        family=family,
        theta_K=np.array(s["theta"], dtype=np.float64),
        base=float(s["base"]),
        ceiling=float(s["ceiling"]),
        rmse=float(s["rmse"]),
        weights=s["form_weights"],
        unit=float(s["unit"]),
        first=float(s["first"]),
        last=float(s["last"]),
        starts=float(s["starts"]),
        ensemble=Ensemble(
            float(s["unit"]),
            np.array(order, dtype=np.int64)[np.array(e["family"], dtype=np.int64)],
            np.array(e["theta"], dtype=np.float64),
            np.array(e["base"], dtype=np.float64),
            np.array(e["ceiling"], dtype=np.float64),
        ),
    )
