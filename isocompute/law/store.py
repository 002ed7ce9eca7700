"""Reads and writes `law.json`, the fitted law that a plan is made with.

It contains the object that `fit --json` prints and the posterior's samples, rounded to six digits. Files of version 1
have bootstrap draws of every configuration's own curve instead; they are read as a posterior of independent curves.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from isocompute.core import files
from isocompute.core.arrays import Array
from isocompute.core.curve import Curve, Setting, scale_of, upper_bound
from isocompute.core.errors import InputError
from isocompute.law.fits import CurveFit
from isocompute.law.law import Law
from isocompute.law.model import Noise
from isocompute.law.posterior import Posterior
from isocompute.law.shape import LARGEST_TAIL, LN2, STAGES

SEED_MARGIN = 0.02
"""ScaleRL's 95% half-width of a difference between two runs, as a share of the values' scale."""
_NO_DELAY = -30.0
_FORMAT, _VERSION = "isocompute-law", 2
_BEGINS = b'{"format": "isocompute-law"'
_PRINTED = {"metric", "unit", "curves", "frontier"}
"""Keys of what `fit --json` prints, which has no `format`."""


@dataclass(frozen=True)
class StoredLaw:
    """A law read from a file: the printed object, and the configurations with their samples."""

    summary: dict[str, Any]
    settings: tuple[CurveFit, ...]


def write_law(law: Law, path: str | Path) -> None:
    """Write `law.json` atomically; it may replace another law, but no other file."""
    check_out(path)
    posteriors = list({id(fit.posterior): fit.posterior for fit in law.settings}.values())
    place = {id(posterior): i for i, posterior in enumerate(posteriors)}
    data = {"format": _FORMAT, "version": _VERSION, **law.to_json()}
    data["settings"] = [
        {
            "problems_per_batch": fit.setting[0],
            "rollouts_per_problem": fit.setting[1],
            "runs": [curve.name for curve in fit.curves],
            "recipes": [curve.recipe for curve in fit.curves],
            "first": fit.first,
            "starts": fit.starts,
            "posterior": place[id(fit.posterior)],
            "index": fit.index,
        }
        for fit in law.settings
    ]
    data["posteriors"] = [_posterior_to_json(posterior) for posterior in posteriors]
    files.write_atomically(Path(path), json.dumps(data, allow_nan=False).encode() + b"\n")


def read_law(path: str | Path) -> StoredLaw:
    """Read `law.json`; its samples have the values they had when it was written."""
    content = files.read_bytes(str(path))
    try:
        data = json.loads(content)
    except ValueError as error:
        raise InputError(f"{path}: not JSON ({error}); write it with isocompute fit --out.") from error
    if not isinstance(data, dict) or data.get("format") != _FORMAT:
        raise InputError(f"{path}: not a law; isocompute fit RUNS --out law.json writes one.")
    if data.get("version") not in (1, _VERSION):
        raise InputError(
            f"{path}: version {data.get('version')} of a law; this isocompute reads 1 and {_VERSION}: fit again."
        )
    again = f"write it again with isocompute fit RUNS --out {path}."
    try:
        settings = (_LawFile1 if data["version"] == 1 else _LawFile).model_validate(data).fits()
    except ValidationError as error:
        first = error.errors()[0]
        where, text = ".".join(map(str, first["loc"])), str(first["msg"]).removeprefix("Value error, ")
        if first["type"] == "model_type":
            text = "it should be an object"
        raise InputError(f"{path}: {where}: {text[:1].lower() + text[1:]}; {again}") from error
    for name in ("settings", "posteriors"):
        data.pop(name, None)
    return StoredLaw(data, settings)


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
        digits = 5 - np.floor(np.log10(np.maximum(np.abs(array), 1e-12)))
    scale = 10.0 ** np.clip(digits, -20, 20)
    return (np.round(array * scale) / scale).tolist()


_Count = Annotated[int, Field(ge=1)]
_Row = list[float]


class _Part(BaseModel):
    """A part of `law.json` as it is read: numbers must be finite, and unknown keys are ignored."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, frozen=True)


class _SettingFile(_Part):
    problems_per_batch: _Count | None
    rollouts_per_problem: _Count | None
    runs: list[str] = Field(min_length=1)
    recipes: list[str] | None = None  # not in older files
    first: float = Field(gt=0)
    starts: float = Field(ge=0)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.recipes and len(self.recipes) != len(self.runs):
            raise ValueError(f"{len(self.recipes)} recipes of {len(self.runs)} runs")
        return self

    @property
    def setting(self) -> Setting:
        return self.problems_per_batch, self.rollouts_per_problem

    def fit(self, posterior: Posterior, index: int) -> CurveFit:
        """The configuration, with its samples and without its points."""
        recipes = self.recipes or [""] * len(self.runs)
        curves = [
            Curve(name, np.empty(0), np.empty(0), *self.setting, recipe=recipe)
            for name, recipe in zip(self.runs, recipes, strict=True)
        ]
        return CurveFit(tuple(curves), posterior, index, self.first, self.starts)


class _PlacedFile(_SettingFile):
    posterior: int = Field(ge=0)
    index: int = Field(ge=0)


_ARRAYS = {"base_RB": 2, "tail_RB": 2, "delay_B": 1, "ceiling_SB": 2, "midpoint_SB": 2, "exponent_SB": 2}
_NUMBERS = ("first", "rise", "model_error", "seed_effect", "autocorrelation", "seed", "centre")


def _posterior_to_json(p: Posterior) -> dict[str, Any]:
    return {
        "settings": [list(setting) for setting in p.settings],
        "batch": [None if np.isnan(b) else b for b in p.batch_S.tolist()],
        "last": p.last_S.tolist(),
        "ended": p.ended_S.tolist(),
        "upper": p.upper if np.isfinite(p.upper) else None,
        "lower": p.lower if np.isfinite(p.lower) else None,
        "stage": p.stage_B.tolist(),
        "knots": p.knots_SK.tolist(),
        "path": _rounded(p.path_SKB),
        "seen": p.seen_SK.tolist(),
        **{name.rpartition("_")[0]: _rounded(getattr(p, name)) for name in _ARRAYS},
        **{name: getattr(p, name) for name in _NUMBERS},
    }


class _PosteriorFile(_Part):
    settings: list[Annotated[list[_Count | None], Field(min_length=2, max_length=2)]] = Field(min_length=1)
    batch: list[float | None]
    last: _Row
    ended: list[bool]
    upper: float | None
    lower: float | None
    stage: list[Annotated[int, Field(ge=0, lt=len(STAGES))]]
    knots: list[_Row]
    path: list[list[_Row]]
    seen: list[_Row]
    base: list[_Row]
    tail: list[_Row]
    delay: _Row
    ceiling: list[_Row]
    midpoint: list[_Row]
    exponent: list[_Row]
    first: float = Field(gt=0)
    rise: float = Field(gt=0)
    model_error: float = Field(ge=0)
    seed_effect: float = Field(ge=0)
    autocorrelation: float
    seed: int
    centre: float

    @model_validator(mode="after")
    def _whole(self) -> Self:
        size, samples = len(self.settings), len(self.stage)
        for name in ("batch", "last", "ended", "ceiling", "midpoint", "exponent", "knots", "path", "seen"):
            if len(getattr(self, name)) != size:
                raise ValueError(f"{name}: {len(getattr(self, name))} entries for {size} configurations")
        rows = [*self.base, *self.tail, self.delay, *self.ceiling, *self.midpoint, *self.exponent]
        rows += [row for path in self.path for row in path]
        if any(len(row) != samples for row in rows):
            raise ValueError("its samples differ in number")
        if len({*map(len, self.knots), *map(len, self.path), *map(len, self.seen)}) > 1:
            raise ValueError("its knots, path and seen differ in length")
        if not {len(self.base), len(self.tail)} <= {1, size}:
            raise ValueError("its samples lack a part")
        return self

    def posterior(self) -> Posterior:
        """The samples as arrays."""
        arrays = {name: np.array(getattr(self, name.rpartition("_")[0]), dtype=np.float64) for name in _ARRAYS}
        return Posterior(
            settings=tuple((bp, n) for bp, n in self.settings),
            batch_S=np.array([np.nan if b is None else b for b in self.batch]),
            last_S=np.array(self.last),
            ended_S=np.array(self.ended),
            upper=np.inf if self.upper is None else self.upper,
            lower=-np.inf if self.lower is None else self.lower,
            stage_B=np.array(self.stage, dtype=np.int64),
            knots_SK=np.array(self.knots, dtype=np.float64),
            path_SKB=np.array(self.path, dtype=np.float64).reshape(len(self.settings), len(self.knots[0]), -1),
            seen_SK=np.array(self.seen, dtype=np.float64),
            **arrays,  # type: ignore[arg-type]
            **{name: getattr(self, name) for name in _NUMBERS},
        )


class _CurveFile(_Part):
    run: str
    last: float | None = None  # not in older files
    falls_after: float | None = None


class _EarlyFallFile(_Part):
    problems_per_batch: _Count | None
    rollouts_per_problem: _Count | None
    falls_after: float


class _Summary(_Part):
    metric: str = Field(min_length=1)
    unit: Literal["rollouts", "tokens", "gpu_hours", "steps"]
    curves: list[_CurveFile] = []
    early_falls: list[_EarlyFallFile] = []


class _LawFile(_Summary):
    settings: list[_PlacedFile] = Field(min_length=1)
    posteriors: list[_PosteriorFile] = Field(min_length=1)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        for each in self.settings:
            if each.posterior >= len(self.posteriors):
                raise ValueError(f"a configuration of posterior {each.posterior}, there are {len(self.posteriors)}")
            if each.index >= len(self.posteriors[each.posterior].settings):
                raise ValueError(f"configuration {each.index} of posterior {each.posterior} is not there")
        return self

    def fits(self) -> tuple[CurveFit, ...]:
        """The configurations, in the order of the file."""
        posteriors = [each.posterior() for each in self.posteriors]
        return tuple(each.fit(posteriors[each.posterior], each.index) for each in self.settings)


# Version 1: bootstrap draws of every configuration's own curve, each of one of three forms.


class _EnsembleFile(_Part):
    families: list[Literal["hill", "exponential", "power"]]
    family: list[Annotated[int, Field(ge=0)]]
    theta: list[_Row]
    base: _Row
    ceiling: _Row

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if len({len(self.family), len(self.theta), len(self.base), len(self.ceiling)}) > 1:
            raise ValueError("its replicates differ in length")
        if any(i >= len(self.families) for i in self.family):
            raise ValueError(f"a replicate's family is none of its {len(self.families)}")
        if any(len(row) < 2 for row in self.theta):
            raise ValueError("its replicates lack parameters of their forms")
        return self


class _SettingFile1(_SettingFile):
    unit: float = Field(gt=0)
    last: float
    rmse: float = Field(default=0.0, ge=0)
    seed_spread: float = Field(default=0.0, ge=0)  # not in older files
    ensemble: _EnsembleFile

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.first > self.last:
            raise ValueError(f"first = {self.first:g} is after last = {self.last:g}")
        return self

    def curve(self) -> tuple[Array, Array, Array]:
        """Log midpoint, log exponent and tail of every draw."""
        draws = self.ensemble
        theta_BK = np.array(draws.theta, dtype=np.float64)
        form_B = np.array([draws.families[i] for i in draws.family])
        return curve_of_form(form_B, theta_BK, self.unit)


class _LawFile1(_Summary):
    settings: list[_SettingFile1] = Field(min_length=1)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if len({len(each.ensemble.base) for each in self.settings}) > 1:
            raise ValueError("its settings differ in the number of replicates")
        return self

    def fits(self) -> tuple[CurveFit, ...]:
        """The configurations, with the seed effect that the file has for those with one seed."""
        curves = [each.curve() for each in self.settings]
        base_SB = np.array([each.ensemble.base for each in self.settings], dtype=np.float64)
        ceiling_SB = np.array([each.ensemble.ceiling for each in self.settings], dtype=np.float64)
        scale = scale_of(np.concatenate([base_SB.ravel(), ceiling_SB.ravel()])) if base_SB.size else 1.0
        spread_S = np.array([(e.seed_spread or SEED_MARGIN * scale / 2.8) * (len(e.runs) == 1) for e in self.settings])
        ceiling_SB += spread_S[:, None] * np.random.default_rng(0).standard_normal(ceiling_SB.shape)
        posterior = independent(
            [each.setting for each in self.settings],
            last_S=np.array([each.last for each in self.settings]),
            base_SB=base_SB,
            ceiling_SB=np.minimum(ceiling_SB, upper_bound(ceiling_SB) if ceiling_SB.size else np.inf),
            curves=curves,
            first=min(each.first for each in self.settings),
        )
        return tuple(each.fit(posterior, i) for i, each in enumerate(self.settings))


def curve_of_form(form_B: Array, theta_BK: Array, unit: float) -> tuple[Array, Array, Array]:
    """Log midpoint, log exponent and tail of curves of three forms, from their own parameters in logs.

    hill: midpoint and exponent. exponential: scale. power: exponent, with the unit as its scale.
    """
    first_B, second_B = theta_BK[:, 0], theta_BK[:, -1]
    half_B = np.log(np.expm1(LN2 / np.exp(np.where(form_B == "power", first_B, 0.0))))
    midpoint_B = np.select([form_B == "hill", form_B == "exponential"], [first_B, first_B + np.log(LN2)], half_B)
    exponent_B = np.where(form_B == "hill", second_B, 0.0)
    tail_B = np.select([form_B == "hill", form_B == "exponential"], [0.0, LARGEST_TAIL], first_B)
    return midpoint_B + np.log(unit), exponent_B, tail_B


def independent(
    settings: Sequence[Setting],
    *,
    last_S: Array,
    base_SB: Array,
    ceiling_SB: Array,
    curves: Sequence[tuple[Array, Array, Array]],
    first: float,
    seed: int = 0,
) -> Posterior:
    """A posterior of curves that were fitted one by one, or published."""
    midpoint_SB, exponent_SB, tail_SB = (np.stack(rows) for rows in zip(*curves, strict=True))
    size, count = base_SB.shape
    rise = max(float(np.median(ceiling_SB - base_SB)), 1e-9) if count else 1.0
    high = max(float(ceiling_SB.max(initial=0.0)), float(base_SB.max(initial=0.0)))
    return Posterior(
        settings=tuple(settings),
        batch_S=np.full(size, np.nan),
        last_S=last_S,
        first=first,
        upper=1.0 if high <= 1.0 else np.inf,
        lower=-np.inf,
        rise=rise,
        ended_S=np.zeros(size, dtype=np.bool_),
        stage_B=np.zeros(count, dtype=np.int64),
        base_RB=base_SB,
        tail_RB=tail_SB,
        delay_B=np.full(count, _NO_DELAY),
        ceiling_SB=ceiling_SB,
        midpoint_SB=midpoint_SB,
        exponent_SB=exponent_SB,
        knots_SK=np.empty((size, 0)),
        path_SKB=np.empty((size, 0, count)),
        seen_SK=np.empty((size, 0)),
        model_error=Noise().model * rise,
        seed=seed,
        centre=float(np.mean(midpoint_SB)) if count else 0.0,
    )
