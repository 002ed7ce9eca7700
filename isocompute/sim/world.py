"""The simulator's world: problems with shared features, and a base policy that is partly right.

A problem is a feature vector x. The teacher scores response k as (x·T)_k; the right response has the highest score
after adding noise that the features cannot express. The base policy's logits are

    z = sharpness · (alignment · x·T + sqrt(1 - alignment²) · x·N)

with an unrelated N, so the base policy knows part of what the teacher knows. Training moves the weights of the shared
features: a step on one problem changes all problems with similar features (transfer and interference). A share
`1 - interference` of the squared length of x instead uses weights of that problem alone.

Sets are chosen by the base policy's exact pass rate; the IsoCompute paper chooses them by sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from isocompute.core.arrays import Array, Bools, Ints
from isocompute.core.errors import InputError, first_wrong

Rate = Annotated[float, Field(ge=0, le=1)]
BANDS: dict[str, tuple[float, float]] = {
    "very_easy": (0.6, 0.9),
    "easy": (0.3, 0.6),
    "hard": (0.0, 0.0625),
    "all": (0.0, 1.0),
}
"""Base pass rates of the named sets (IsoCompute section 3 and figure 14); `extremely_hard` is no success in 128."""
_SETS = (*BANDS, "extremely_hard")
_POOL = 16384
_MOST_POOLS = 400
_ROUNDING = 1e-9


class WorldSpec(BaseModel):
    """The `[problems]` table of a study with the simulator."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    set: str = Field(
        default="easy", description="name of the set; one of the bands unless mixture or pass_rates is given"
    )
    mixture: dict[str, Rate] | None = Field(default=None, description="shares of the named sets, adding up to 1")
    pass_rates: list[Rate] | None = Field(default=None, description="a user's own pass rates; the set matches them")
    size: int = Field(default=2000, ge=1, description="D: training problems")
    validation: int = Field(default=512, ge=1, description="held-out problems from the same distribution")
    out_of_distribution: int = Field(default=512, ge=0, description="held-out problems with other features")
    features: int = Field(default=64, ge=1)
    responses: int = Field(default=32, ge=2)
    interference: float = Field(default=1.0, ge=0, le=1, description="share of the features that problems share")
    alignment: float = Field(default=0.5, ge=0, le=1, description="how much of the teacher the base policy knows")
    sharpness: float = Field(default=3.0, gt=0, description="scale of the base policy's logits")
    noise: float = Field(default=0.5, ge=0, le=1, description="what the features cannot express of the right answer")
    seed: int = Field(default=0, ge=0, description="seed of the world, the same for all cells of a study")

    @classmethod
    def of(cls, table: Any) -> WorldSpec:
        """From a table; errors name the field."""
        try:
            spec = cls(**table)
        except ValidationError as error:
            where, why = first_wrong(error, fields=cls.model_fields)
            raise InputError(f"problems.{where}: {why}.") from error
        if spec.mixture is not None:
            unknown = [name for name in spec.mixture if name not in _SETS]
            if unknown:
                raise InputError(f"problems.mixture: '{unknown[0]}' is not one of {', '.join(_SETS)}.")
            if abs(sum(spec.mixture.values()) - 1.0) > 1e-6:
                raise InputError(f"problems.mixture: the shares add up to {sum(spec.mixture.values()):g}, not to 1.")
        elif spec.pass_rates is None and spec.set not in _SETS:
            raise InputError(f"problems.set: '{spec.set}' is not one of {', '.join(_SETS)} and has no mixture.")
        elif spec.pass_rates is not None and not spec.pass_rates:
            raise InputError("problems.pass_rates: the list is empty.")
        return spec


@dataclass(frozen=True)
class Problems:
    """A set of problems: features, base logits and the index of the right response."""

    features_PF: Array
    base_PK: Array
    correct_P: Ints

    def __len__(self) -> int:
        return len(self.correct_P)

    def take(self, index: Ints | Bools | slice) -> Problems:
        """Some of the problems."""
        return Problems(self.features_PF[index], self.base_PK[index], self.correct_P[index])

    def base_pass_rates(self) -> Array:
        """Exact pass rates of the base policy."""
        return right_share(softmax(self.base_PK), self.correct_P)


@dataclass(frozen=True)
class World:
    """What a cell trains and evaluates on."""

    spec: WorldSpec
    train: Problems
    validation: Problems
    out_of_distribution: Problems


def softmax(logits_PK: Array) -> Array:
    """Rows of probabilities."""
    shifted_PK = logits_PK - logits_PK.max(axis=1, keepdims=True)
    np.exp(shifted_PK, out=shifted_PK)
    shifted_PK /= shifted_PK.sum(axis=1, keepdims=True)
    return np.asarray(shifted_PK)


def log_softmax(logits_PK: Array) -> Array:
    """The logarithm of `softmax`, finite even where the probability underflows."""
    shifted_PK = logits_PK - logits_PK.max(axis=1, keepdims=True)
    return np.asarray(shifted_PK - np.log(np.exp(shifted_PK).sum(axis=1, keepdims=True)))


def right_share(probabilities_PK: Array, correct_P: Ints) -> Array:
    """Probability of the right response."""
    return np.asarray(probabilities_PK[np.arange(len(correct_P)), correct_P])


def make_world(spec: WorldSpec) -> World:
    """Draw the teacher, the base policy and the three sets; the same spec gives the same world."""
    rng = np.random.default_rng(np.random.SeedSequence([spec.seed, 20260312]))
    shape = (spec.features, spec.responses)
    teacher_FK, other_FK = rng.standard_normal(shape), rng.standard_normal(shape)

    def draw(count: int, shift: float = 0.0) -> Problems:
        features_PF = rng.standard_normal((count, spec.features)) / np.sqrt(spec.features)
        if shift:
            # Out of distribution: half of the features are four times as strong, the others as much weaker.
            half = spec.features // 2
            features_PF[:, :half] *= shift
            features_PF[:, half:] /= shift
            features_PF /= np.linalg.norm(features_PF, axis=1, keepdims=True)
        right_PK = features_PF @ teacher_FK
        noise_PK = rng.standard_normal(right_PK.shape)
        correct_P = (np.sqrt(1 - spec.noise**2) * right_PK + spec.noise * noise_PK).argmax(axis=1)
        a = spec.alignment
        base_PK = spec.sharpness * (a * right_PK + np.sqrt(1 - a * a) * (features_PF @ other_FK))
        return Problems(features_PF, base_PK, correct_P)

    wanted = spec.size + spec.validation
    shuffled = _select(spec, wanted, draw, rng)
    outside = _select(spec, max(spec.out_of_distribution, 1), lambda count: draw(count, 2.0), rng)
    return World(
        spec,
        shuffled.take(slice(0, spec.size)),
        shuffled.take(slice(spec.size, wanted)),
        outside.take(slice(0, spec.out_of_distribution)),
    )


def _select(spec: WorldSpec, count: int, draw: Callable[[int], Problems], rng: np.random.Generator) -> Problems:
    """Problems with the user's pass rates, or those of the named sets in their shares."""
    if spec.pass_rates is not None:
        return _matched(np.asarray(spec.pass_rates, dtype=np.float64), count, draw, rng)
    shares = spec.mixture or {spec.set: 1.0}
    counts = _counts(list(shares.values()), count)
    parts = [_band(name, c, draw, rng) for name, c in zip(shares, counts, strict=True) if c]
    return _join(parts).take(rng.permutation(count))


def _counts(shares: Sequence[float], count: int) -> list[int]:
    """The number of problems of each set, which add up to `count`, by largest remainder; a share of 0 gets none.

    >>> _counts([0.0, 0.5, 0.5], 151), _counts([0.3, 0.7], 11)
    ([0, 76, 75], [3, 8])
    """
    exact = np.array(shares) / sum(shares) * count
    counts = np.floor(exact + _ROUNDING).astype(int)
    most_left = np.argsort(counts - exact, kind="stable")
    counts[most_left[: count - counts.sum()]] += 1
    return [int(c) for c in counts]


def _band(name: str, count: int, draw: Callable[[int], Problems], rng: np.random.Generator) -> Problems:
    """Problems whose base pass rate lies in the band, by rejection."""
    found: list[Problems] = []
    have = 0
    for _ in range(_MOST_POOLS):
        pool = draw(_POOL)
        rates_P = pool.base_pass_rates()
        if name == "extremely_hard":
            keep_P = rng.binomial(128, rates_P) == 0
        else:
            low, high = BANDS[name]
            keep_P = (rates_P >= low) & (rates_P <= high)
        found.append(pool.take(keep_P))
        have += int(keep_P.sum())
        if have >= count:
            return _join(found).take(slice(0, count))
    raise InputError(
        f"problems.set: this world has too few '{name}' problems ({have} of {_MOST_POOLS * _POOL:,} drawn); "
        "change alignment, sharpness or responses."
    )


def _matched(rates: Array, count: int, draw: Callable[[int], Problems], rng: np.random.Generator) -> Problems:
    """Problems with exactly the given pass rates: the nearest of a pool, with the right response's logit adjusted.

    A list shorter than the set is repeated. Rates are clipped to [1e-4, 1 - 1e-4], since 0 and 1 have no finite logit.
    """
    targets_P = np.clip(rng.permutation(np.resize(rng.permutation(rates), count)), 1e-4, 1 - 1e-4)
    pool = draw(max(4 * count, _POOL))
    rates_P = pool.base_pass_rates()
    order, ranks = np.argsort(rates_P), np.argsort(np.argsort(targets_P))
    # Take distinct ranks of the pool near each target, so that no problem is used twice.
    place = np.searchsorted(rates_P[order], np.sort(targets_P))
    place = np.clip(np.maximum.accumulate(np.minimum(place, len(order) - count + np.arange(count))), 0, None)
    for i in range(1, count):
        place[i] = max(place[i], place[i - 1] + 1)
    place = np.minimum(place, len(order) - count + np.arange(count))
    chosen = pool.take(order[place[ranks]])
    now_P = np.clip(chosen.base_pass_rates(), 1e-12, 1 - 1e-12)
    nudge_P = np.log(targets_P / (1 - targets_P)) - np.log(now_P / (1 - now_P))
    base_PK = chosen.base_PK.copy()
    base_PK[np.arange(count), chosen.correct_P] += nudge_P
    return Problems(chosen.features_PF, base_PK, chosen.correct_P)


def _join(parts: Sequence[Problems]) -> Problems:
    return Problems(
        np.concatenate([p.features_PF for p in parts]),
        np.concatenate([p.base_PK for p in parts]),
        np.concatenate([p.correct_P for p in parts]),
    )
