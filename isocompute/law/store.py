"""The law as JSON: what `fit --json` prints, and `law.json`, which a planner reads back with its uncertainty.

`law.json` is the printed object plus `settings` (every setting's curve and all its bootstrap replicates) and the
surface's replicates, rounded to seven digits.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from isocompute.core import files
from isocompute.core.arrays import Array
from isocompute.core.curve import Curve
from isocompute.core.errors import InputError
from isocompute.law.families import FAMILIES, Family
from isocompute.law.fits import CurveFit, Ensemble
from isocompute.law.law import Law
from isocompute.law.surface import LeftOut, Surface, Terms

__all__ = ["StoredLaw", "check_out", "is_law_file", "read_law", "write_law"]

_FORMAT, _VERSION = "isocompute-law", 1
_BEGINS = b'{"format": "isocompute-law"'
_PRINTED = {"metric", "unit", "curves", "frontier"}
"""Keys of what `fit --json` prints, which says no format."""


@dataclass(frozen=True)
class StoredLaw:
    """A law read back: the printed object and the settings' curves with their replicates."""

    summary: dict[str, Any]
    settings: tuple[CurveFit, ...]
    surface: Surface | None


def write_law(law: Law, path: str | Path) -> None:
    """Write `law.json`, whole or not at all; over another law, over nothing else."""
    check_out(path)
    data = {"format": _FORMAT, "version": _VERSION, **law.to_json()}
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
        "seed_spread": fit.seed_deviation,
        "trend": fit.trend,
        "ensemble": {
            "families": [family.name for family in FAMILIES],
            "family": e.family_B.tolist(),
            "theta": _rounded(e.theta_BK),
            "base": _rounded(e.base_B),
            "ceiling": _rounded(e.ceiling_B),
        },
    }


def is_law_file(path: str | Path) -> bool:
    """Whether there is a `.json` here that `fit` wrote or printed, of whatever version and however damaged; other
    `.json` are a trainer's logs, as far as anyone knows.
    """
    address = str(path)
    if not address.lower().endswith(".json") or not files.exists(address) or files.is_folder(address):
        return False
    return _is_law(files.read_bytes(address))


def check_out(path: str | Path) -> None:
    """Refuse to write a law over what is none: a log or table that was named by mistake cannot be had back."""
    there = Path(path)
    if there.is_file() and (data := files.read_bytes(str(path))) and not _is_law(data):
        raise InputError(f"--out {path}: this file is there and is not a law; name another, such as law.json.")


def _is_law(data: bytes) -> bool:
    if data.startswith(_BEGINS):
        return True
    try:
        found = json.loads(data)
    except ValueError:
        return False
    return isinstance(found, dict) and (found.get("format") == _FORMAT or found.keys() >= _PRINTED)


def read_law(path: str | Path) -> StoredLaw:
    """Read `law.json`; the settings' curves evaluate as they did when it was written."""
    try:
        data = json.loads(files.read_bytes(str(path)))
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({error}); write it with isocompute fit --out.") from error
    if not isinstance(data, dict) or data.get("format") != _FORMAT:
        raise InputError(f"{path}: not a law; isocompute fit RUNS --out law.json writes one.")
    if data.get("version") != _VERSION:
        raise InputError(
            f"{path}: version {data.get('version')} of a law; this isocompute reads {_VERSION}: fit again."
        )
    again = f"write it again with isocompute fit RUNS --out {path}."
    try:
        checked = _LawFile.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        field, text = ".".join(map(str, first["loc"])), str(first["msg"]).removeprefix("Value error, ")
        if first["type"] == "model_type":
            text = "it should be an object"
        raise InputError(f"{path}: {field}: {text[:1].lower() + text[1:]}; {again}") from error
    try:
        surface = _read_surface(data["surface"]) if data.get("surface") else None
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InputError(f"{path}: surface: it is damaged ({error}); {again}") from error
    del data["settings"]
    return StoredLaw(data, tuple(map(_read_setting, checked.settings)), surface)


_Count = Annotated[int, Field(ge=1)]


class _Part(BaseModel):
    """Of a `law.json` what a law is read from; numbers are finite and what else stands there is left alone."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, frozen=True)


class _EnsembleFile(_Part):
    families: list[str]
    family: list[Annotated[int, Field(ge=0)]]
    theta: list[list[float]]
    base: list[float]
    ceiling: list[float]

    @field_validator("families")
    @classmethod
    def _known(cls, names: list[str]) -> list[str]:
        for name in names:
            _family(name)
        return names

    @model_validator(mode="after")
    def _whole(self) -> _EnsembleFile:
        widths = {len(row) for row in self.theta}
        if len({len(self.family), len(self.theta), len(self.base), len(self.ceiling)}) > 1 or len(widths) > 1:
            raise ValueError("its replicates differ in length")
        if any(i >= len(self.families) for i in self.family):
            raise ValueError(f"a replicate's family is none of its {len(self.families)}")
        if widths and max(len(_family(name).parameters) for name in self.families) > min(widths):
            raise ValueError("its replicates lack parameters of their forms")
        return self


class _SettingFile(_Part):
    problems_per_batch: _Count | None
    rollouts_per_problem: _Count | None
    runs: list[str] = Field(min_length=1)
    recipes: list[str] | None = None  # older files do not have them
    form: str
    form_weights: dict[str, float]
    theta: list[float]
    base: float
    ceiling: float
    rmse: float = Field(ge=0)
    unit: float = Field(gt=0)
    first: float = Field(gt=0)
    last: float
    starts: float = Field(ge=0)
    seed_spread: float = Field(default=0.0, ge=0)  # older files do not have it
    trend: float | None = None  # nor this
    ensemble: _EnsembleFile

    @model_validator(mode="after")
    def _whole(self) -> _SettingFile:
        if len(self.theta) != len(_family(self.form).parameters):
            raise ValueError(
                f"theta has {len(self.theta)} numbers, {self.form} has {len(_family(self.form).parameters)}"
            )
        if self.first > self.last:
            raise ValueError(f"first = {self.first:g} is after last = {self.last:g}")
        if self.recipes and len(self.recipes) != len(self.runs):
            raise ValueError(f"{len(self.recipes)} recipes of {len(self.runs)} runs")
        return self


class _CurveFile(_Part):
    run: str
    last: float | None = None  # older files do not have it
    falls_after: float | None = None


class _EarlyFallFile(_Part):
    problems_per_batch: _Count | None
    rollouts_per_problem: _Count | None
    falls_after: float


class _LawFile(_Part):
    metric: str = Field(min_length=1)
    unit: Literal["rollouts", "tokens", "gpu_hours", "steps"]
    settings: list[_SettingFile] = Field(min_length=1)
    curves: list[_CurveFile] = []
    early_falls: list[_EarlyFallFile] = []


def _family(name: object) -> Family:
    """The curves' form of this name."""
    known = {family.name: family for family in FAMILIES}
    if name not in known:
        raise ValueError(f"form '{name}' is not one of {', '.join(known)}")
    return known[str(name)]


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _read_surface(s: dict[str, Any]) -> Surface:
    terms = Terms(
        centre=(float(s["centre"][0]), float(s["centre"][1])),
        **{
            name: tuple((int(i), int(j)) for i, j in s["terms"][name]) for name in ("ceiling", "midpoint", "efficiency")
        },
    )
    coefficients_Q = np.array(s["coefficients"], dtype=np.float64)
    replicates_BQ = np.array(s["replicates"], dtype=np.float64)
    if replicates_BQ.shape != (len(replicates_BQ), len(coefficients_Q)):
        raise ValueError("its replicates differ in length from its coefficients")
    if not (np.isfinite(coefficients_Q).all() and np.isfinite(replicates_BQ).all()):
        raise ValueError("a coefficient is not finite")
    return Surface(
        family=_family(s["form"]),
        terms=terms,
        unit=float(s["unit"]),
        coefficients_Q=coefficients_Q,
        replicates_BQ=replicates_BQ,
        rmse=float(s["rmse"]),
        left_out=tuple(LeftOut(**left) for left in s["leave_one_out"]),
        upper=np.inf if s["upper"] is None else float(s["upper"]),
    )


def _read_setting(s: _SettingFile) -> CurveFit:
    e = s.ensemble
    order = [FAMILIES.index(_family(name)) for name in e.families]
    empty = np.empty(0)
    curves = tuple(
        Curve(name, empty, empty, s.problems_per_batch, s.rollouts_per_problem, recipe=recipe)
        for name, recipe in zip(s.runs, s.recipes or [""] * len(s.runs), strict=True)
    )
    return CurveFit(
        curves=curves,
        family=_family(s.form),
        theta_K=np.array(s.theta, dtype=np.float64),
        base=s.base,
        ceiling=s.ceiling,
        rmse=s.rmse,
        weights=s.form_weights,
        unit=s.unit,
        first=s.first,
        last=s.last,
        starts=s.starts,
        ensemble=Ensemble(
            s.unit,
            np.array(order, dtype=np.int64)[np.array(e.family, dtype=np.int64)],
            np.array(e.theta, dtype=np.float64),
            np.array(e.base, dtype=np.float64),
            np.array(e.ceiling, dtype=np.float64),
        ),
        seed_deviation=s.seed_spread,
        trend=s.trend,
    )
