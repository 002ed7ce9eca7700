"""Reads and writes `law.json`, the fitted law that a plan is made with.

It contains the object that `fit --json` prints, `settings` (every setting's curve and bootstrap draws) and the draws of
the surface, rounded to seven digits.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from isocompute.core import files
from isocompute.core.arrays import Array
from isocompute.core.curve import Curve
from isocompute.core.errors import InputError
from isocompute.law.fits import CurveFit, Ensemble
from isocompute.law.law import Law
from isocompute.law.solver import FAMILIES, Family
from isocompute.law.surface import LeftOut, Surface, Terms

_FORMAT, _VERSION = "isocompute-law", 1
_BEGINS = b'{"format": "isocompute-law"'
_PRINTED = {"metric", "unit", "curves", "frontier"}
"""Keys of what `fit --json` prints, which has no `format`."""


@dataclass(frozen=True)
class StoredLaw:
    """A law read from a file: the printed object, and the settings' curves with their draws."""

    summary: dict[str, Any]
    settings: tuple[CurveFit, ...]
    surface: Surface | None


def write_law(law: Law, path: str | Path) -> None:
    """Write `law.json` atomically; it may replace another law, but no other file."""
    check_out(path)
    data = {"format": _FORMAT, "version": _VERSION, **law.to_json()}
    data["settings"] = [_SettingFile.of(fit).model_dump() for fit in law.settings]
    if law.surface is not None:
        upper = law.surface.upper if np.isfinite(law.surface.upper) else None
        data["surface"] |= {"replicates": _rounded(law.surface.replicates_BQ), "upper": upper}
    files.write_atomically(Path(path), json.dumps(data, allow_nan=False).encode() + b"\n")


def read_law(path: str | Path) -> StoredLaw:
    """Read `law.json`; the settings' curves have the values they had when it was written."""
    content = files.read_bytes(str(path))
    try:
        data = json.loads(content)
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
        where, text = ".".join(map(str, first["loc"])), str(first["msg"]).removeprefix("Value error, ")
        if first["type"] == "model_type":
            text = "it should be an object"
        raise InputError(f"{path}: {where}: {text[:1].lower() + text[1:]}; {again}") from error
    try:
        surface = _surface(data["surface"]) if data.get("surface") else None
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise InputError(f"{path}: surface: it is damaged ({error}); {again}") from error
    del data["settings"]
    return StoredLaw(data, tuple(each.fit() for each in checked.settings), surface)


def is_law_file(path: str | Path) -> bool:
    """Whether `fit` wrote or printed this `.json`, in any version and even if damaged; others may be trainers' logs."""
    address = str(path)
    if not address.lower().endswith(".json") or not files.exists(address) or files.is_folder(address):
        return False
    return _is_law(files.read_bytes(address))


def check_out(path: str | Path) -> None:
    """Raise if writing a law would overwrite another file, such as a log that was named by mistake."""
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


def _rounded(array: Array) -> Any:
    with np.errstate(divide="ignore"):
        digits = 6 - np.floor(np.log10(np.maximum(np.abs(array), 1e-12)))
    scale = 10.0 ** np.clip(digits, -20, 20)
    return (np.round(array * scale) / scale).tolist()


def _family(name: object) -> Family:
    """The curves' form of this name."""
    known = {family.name: family for family in FAMILIES}
    if name not in known:
        raise ValueError(f"form '{name}' is not one of {', '.join(known)}")
    return known[str(name)]


_Count = Annotated[int, Field(ge=1)]
_Form = Annotated[str, AfterValidator(lambda name: _family(name).name)]


class _Part(BaseModel):
    """A part of `law.json` as it is read: numbers must be finite, and unknown keys are ignored."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, frozen=True)


class _EnsembleFile(_Part):
    families: list[_Form]
    family: list[Annotated[int, Field(ge=0)]]
    theta: list[list[float]]
    base: list[float]
    ceiling: list[float]

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


_AS_IN_FIT = ("base", "ceiling", "rmse", "unit", "first", "last", "starts", "trend")
"""Fields of `CurveFit` that are stored unchanged."""


class _SettingFile(_Part):
    problems_per_batch: _Count | None
    rollouts_per_problem: _Count | None
    runs: list[str] = Field(min_length=1)
    recipes: list[str] | None = None  # not in older files
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
    seed_spread: float = Field(default=0.0, ge=0)  # not in older files
    trend: float | None = None  # not in older files
    ensemble: _EnsembleFile

    @model_validator(mode="after")
    def _whole(self) -> _SettingFile:
        parameters = len(_family(self.form).parameters)
        if len(self.theta) != parameters:
            raise ValueError(f"theta has {len(self.theta)} numbers, {self.form} has {parameters}")
        if self.first > self.last:
            raise ValueError(f"first = {self.first:g} is after last = {self.last:g}")
        if self.recipes and len(self.recipes) != len(self.runs):
            raise ValueError(f"{len(self.recipes)} recipes of {len(self.runs)} runs")
        return self

    @classmethod
    def of(cls, fit: CurveFit) -> _SettingFile:
        draws = fit.ensemble
        return cls(
            problems_per_batch=fit.setting[0],
            rollouts_per_problem=fit.setting[1],
            runs=[curve.name for curve in fit.curves],
            recipes=[curve.recipe for curve in fit.curves],
            form=fit.family.name,
            form_weights=fit.weights,
            theta=fit.theta_K.tolist(),
            seed_spread=fit.seed_deviation,
            ensemble=_EnsembleFile(
                families=[family.name for family in FAMILIES],
                family=draws.family_B.tolist(),
                theta=_rounded(draws.theta_BK),
                base=_rounded(draws.base_B),
                ceiling=_rounded(draws.ceiling_B),
            ),
            **{name: getattr(fit, name) for name in _AS_IN_FIT},
        )

    def fit(self) -> CurveFit:
        """The setting's curve, with its draws and without its points."""
        draws, setting = self.ensemble, (self.problems_per_batch, self.rollouts_per_problem)
        place_F = np.array([FAMILIES.index(_family(name)) for name in draws.families], dtype=np.int64)
        recipes = self.recipes or [""] * len(self.runs)
        return CurveFit(
            curves=tuple(
                Curve(name, np.empty(0), np.empty(0), *setting, recipe=recipe)
                for name, recipe in zip(self.runs, recipes, strict=True)
            ),
            family=_family(self.form),
            theta_K=np.array(self.theta, dtype=np.float64),
            weights=self.form_weights,
            ensemble=Ensemble(
                self.unit,
                place_F[np.array(draws.family, dtype=np.int64)],
                np.array(draws.theta, dtype=np.float64),
                np.array(draws.base, dtype=np.float64),
                np.array(draws.ceiling, dtype=np.float64),
            ),
            seed_deviation=self.seed_spread,
            **{name: getattr(self, name) for name in _AS_IN_FIT},
        )


class _CurveFile(_Part):
    run: str
    last: float | None = None  # not in older files
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


def _surface(s: dict[str, Any]) -> Surface:
    powers = {name: tuple((int(i), int(j)) for i, j in each) for name, each in s["terms"].items()}
    coefficients_Q, replicates_BQ = (np.array(s[name], dtype=np.float64) for name in ("coefficients", "replicates"))
    if replicates_BQ.shape != (len(replicates_BQ), len(coefficients_Q)):
        raise ValueError("its replicates differ in length from its coefficients")
    if not (np.isfinite(coefficients_Q).all() and np.isfinite(replicates_BQ).all()):
        raise ValueError("a coefficient is not finite")
    return Surface(
        family=_family(s["form"]),
        terms=Terms(centre=(float(s["centre"][0]), float(s["centre"][1])), **powers),
        unit=float(s["unit"]),
        coefficients_Q=coefficients_Q,
        replicates_BQ=replicates_BQ,
        rmse=float(s["rmse"]),
        left_out=tuple(LeftOut(**left) for left in s["leave_one_out"]),
        upper=np.inf if s["upper"] is None else float(s["upper"]),
    )
