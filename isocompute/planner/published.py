"""Published laws by name.

A law is a small file of parameters with their source (in `laws/`), from which draws are made. The papers print no
errors of their curves. Each file states the errors that we assume (`uncertainty`), and so does every output with an
interval based on them.
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import numpy as np

from isocompute.core.arrays import Array
from isocompute.core.curve import Curve
from isocompute.core.errors import InputError
from isocompute.law.fits import CurveFit
from isocompute.law.store import curve_of_form, independent
from isocompute.planner.law import Curves, OptimumOnly, PlanningLaw, is_rate

_BEFORE = 2.0
"""Figure 6 draws a curve from the compute at which it takes the lead; we trust its form down to half of that."""


@dataclass(frozen=True)
class Entry:
    """A line of `plan --laws`."""

    name: str
    title: str
    source: str
    setup: str
    metric: str
    unit: str
    range: tuple[float, float]
    uncertainty: str


@cache
def _data() -> dict[str, dict[str, Any]]:
    folder = resources.files("isocompute.planner").joinpath("laws")
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".json")), key=lambda file: file.name)
    laws = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    return {law["name"]: law for law in laws}


def entries() -> list[Entry]:
    """All published laws, with source and validity range."""
    same = ("name", "title", "source", "setup", "metric", "unit")
    return [
        Entry(**{key: law[key] for key in same}, range=_range(law), uncertainty=law["uncertainty"]["text"])
        for law in _data().values()
    ]


def siblings(name: str, difficulty: str | None) -> list[str]:
    """Names of the laws of the same paper for a difficulty.

    >>> siblings("isocompute/joint-easy", "hard")
    ['isocompute/bp32-hard', 'isocompute/joint-hard']
    """
    family = name.partition("/")[0]
    laws = (law for law in _data().values() if law["name"].startswith(f"{family}/"))
    return [law["name"] for law in laws if law["difficulty"] == difficulty]


def _range(law: dict[str, Any]) -> tuple[float, float]:
    if law["kind"] == "optimum":
        return float(law["first"]), float(law["last"])
    return min(s["first"] for s in law["settings"]), max(s["last"] for s in law["settings"])


def published(name: str, *, replicates: int = 1000, seed: int = 0) -> PlanningLaw:
    """A published law with its draws.

    >>> law = published("isocompute/bp32-easy", replicates=100)
    >>> law.metric, law.unit, law.model.settings()
    ('avg@4', 'rollouts', [(32, 8), (32, 32), (32, 128), (32, 256), (32, 512)])
    """
    if name not in _data():
        near = difflib.get_close_matches(name.lower(), _data(), n=1, cutoff=0.3)
        raise InputError(
            f"--law {name}: no such published law{f'; did you mean {near[0]}?' if near else ';'} `isocompute plan "
            "--laws` lists them."
        )
    law = _data()[name]
    rng = np.random.default_rng([seed, 2603])
    first, last = _range(law)
    make = _curves if law["kind"] == "curves" else _optimum
    same = ("name", "source", "setup", "metric", "unit", "difficulty", "problems")
    optional = ("max_batch", "batch_size", "response_tokens", "gpu_hours_per_rollout", "rate_source", "recipe")
    return PlanningLaw(
        **{key: law[key] for key in same},
        **{key: law[key] for key in optional if key in law},
        first=first,
        last=last,
        uncertainty=law["uncertainty"]["text"],
        model=make(law, replicates, rng),
        bounded=is_rate(law["metric"]),
    )


def _level(spec: dict[str, float], value: float) -> float:
    """Standard deviation of a curve's level: as given, or the binomial error for the number of samples."""
    return float(spec["sd"]) if "sd" in spec else float(np.sqrt(value * (1.0 - value) / spec["samples"]))


def _centered(rng: np.random.Generator, size: int) -> Array:
    """Standard normal draws in pairs ±z, with mean zero, so that the draws do not shift the published curve."""
    half = rng.standard_normal((size + 1) // 2)
    return rng.permutation(np.concatenate([half, -half])[:size])


_PARAMETERS = {"hill": ("midpoint", "efficiency"), "exponential": ("scale",), "power": ("exponent",)}
"""Parameters of the published forms; midpoint and scale are computes."""


def _curves(law: dict[str, Any], replicates: int, rng: np.random.Generator) -> Curves:
    """The published curves as a posterior, with draws of the errors that the file assumes."""
    doubt, base, ceiling, shapes = law["uncertainty"], [], [], []
    for s in law["settings"]:
        names, unit = _PARAMETERS[s["form"]], float(s["first"])
        theta_BK = np.empty((replicates, len(names)))
        for k, name in enumerate(names):
            in_compute = name in ("midpoint", "scale")
            centre = np.log(s["parameters"][name] / (unit if in_compute else 1.0))
            theta_BK[:, k] = centre + doubt["log_compute" if in_compute else "log_efficiency"] * _centered(
                rng, replicates
            )
        shift_B = _level(doubt["level"], s["ceiling"]) * _centered(rng, replicates)
        base.append(s["base"] + shift_B)
        ceiling.append(np.minimum(s["ceiling"] + shift_B, 1.0))
        shapes.append(curve_of_form(np.full(replicates, s["form"]), theta_BK, unit))
    settings = [(s["problems_per_batch"], s["rollouts_per_problem"]) for s in law["settings"]]
    posterior = independent(
        settings,
        last_S=np.array([float(s["last"]) for s in law["settings"]]),
        base_SB=np.stack(base),
        ceiling_SB=np.stack(ceiling),
        curves=shapes,
        first=min(float(s["first"]) for s in law["settings"]),
    )
    empty = np.empty(0)
    fits = [
        CurveFit((Curve(law["name"], empty, empty, *setting),), posterior, i, float(s["first"]), s["first"] / _BEFORE)
        for i, (s, setting) in enumerate(zip(law["settings"], settings, strict=True))
    ]
    return Curves(tuple(fits), measured=False)


def _optimum(law: dict[str, Any], replicates: int, rng: np.random.Generator) -> OptimumOnly:
    doubt, batch = law["uncertainty"], law.get("batch_size")
    grid = tuple(
        (bp, n)
        for bp in law["problems_per_batch"]
        for n in law["rollouts_per_problem"]
        if (bp * n == batch if batch else bp * n <= law["max_batch"])
    )
    last = law["frontier"][-1][1]
    return OptimumOnly(
        slope=(law["L"], law["k"], law["x0"], law["b"]),
        along=law["along"],
        grid=grid,
        frontier=[(c, r) for c, r in law["frontier"]],
        base=law["base"],
        shift_B=doubt["doublings"] * _centered(rng, replicates),
        cost_B=law["curvature"] * np.exp(doubt["log_curvature"] * _centered(rng, replicates)),
        level_B=_level(law["level"], last) * _centered(rng, replicates),
        problems_effect={
            bp: doubt["problems_effect"] * _centered(rng, replicates) for bp in sorted({bp for bp, _ in grid})
        },
    )
