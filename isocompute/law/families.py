"""Curve families: the shapes a reward-against-compute curve may have.

Every family is `R(C) = R0 + (A - R0) · g(C; θ)` with a shape `g` that rises from 0 at C = 0 to 1 at C = ∞, so
`R0` (the base) and `A` (the ceiling) enter linearly and are solved in closed form, and only θ, one or two numbers,
is left to search (variable projection; see `solver`).

| family | g(C) | θ | source |
| --- | --- | --- | --- |
| hill | 1 / (1 + (Cmid/C)^B) | log Cmid, log B | ScaleRL eq. 1 |
| exponential | 1 - exp(-C/τ) | log τ | what the IsoCompute paper's figure 6 follows to pixel error |
| power | 1 - (1 + C/s)^-β, s the first compute | log β | Kaplan-style power law, finite at C = 0 |

The IsoCompute paper writes n*(C) as a logistic in log10 C. That is the Hill shape too (B = k / ln 10), so the same
code fits it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from isocompute.core.arrays import Array

__all__ = ["EXPONENTIAL", "FAMILIES", "HILL", "POWER", "Family", "Shape", "Slopes"]

Shape = Callable[[Array, Array], Array]
"""`(x, theta_K) -> g`: each of `theta_K` broadcasts against `x`, which is what `Family.coordinate` makes of compute in
units of the curve's first positive compute."""
Slopes = Callable[[Array, Array, Array], tuple[Array, ...]]
"""`(x, theta_K, g) -> (dg for each θ)`: the shape's derivatives by θ, from what the shape gave."""


@dataclass(frozen=True)
class Family:
    """One shape with the box its θ lives in and the starting grid that covers the box."""

    name: str
    coordinate: Callable[[Array], Array]
    """What the shape sees of compute: it is taken once a curve, not once a step of the search."""
    shape: Shape
    slopes: Slopes
    parameters: tuple[str, ...]
    """Names of exp(θ), as reported to the user."""
    compute_like: tuple[bool, ...]
    """Which of exp(θ) is a compute and is reported in the unit of the data."""
    bounds: Callable[[float], Array]
    """`(last compute / first compute) -> [[low, high] per θ]`."""
    grid_sizes: tuple[int, ...]

    @property
    def free(self) -> int:
        """Parameters in all: θ, R0 and A."""
        return len(self.parameters) + 2

    def grid(self, span: float) -> Array:
        """Starting values that cover the box, one row each."""
        return _grid(self, span)


@functools.lru_cache(maxsize=1024)  # runs over the same range share it, and are fitted again and again
def _grid(family: Family, span: float) -> Array:
    axes = [
        np.linspace(low, high, size) for (low, high), size in zip(family.bounds(span), family.grid_sizes, strict=True)
    ]
    grid_SK = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))
    grid_SK.setflags(write=False)
    return grid_SK


def _log(compute: Array) -> Array:
    return np.log(np.maximum(compute, 1e-12))  # compute 0 is the base model: far enough down to be g = 0


def _hill(x: Array, theta_K: Array) -> Array:
    z: Array = theta_K[0] - x
    z *= np.exp(theta_K[1])
    np.minimum(z, 500.0, out=z)
    np.exp(z, out=z)
    z += 1.0
    np.reciprocal(z, out=z)
    return z


def _hill_slopes(x: Array, theta_K: Array, g: Array) -> tuple[Array, ...]:
    b = np.exp(theta_K[1])
    by_midpoint = g - 1.0
    by_midpoint *= g
    by_midpoint *= b
    by_efficiency = theta_K[0] - x
    by_efficiency *= by_midpoint
    return by_midpoint, by_efficiency


def _exponential(x: Array, theta_K: Array) -> Array:
    return np.asarray(1.0 - np.exp(-np.minimum(x * np.exp(-theta_K[0]), 700.0)))


def _exponential_slopes(x: Array, theta_K: Array, g: Array) -> tuple[Array, ...]:
    return ((g - 1.0) * np.minimum(x * np.exp(-theta_K[0]), 700.0),)


def _power(x: Array, theta_K: Array) -> Array:
    return np.asarray(1.0 - np.exp(-np.exp(theta_K[0]) * x))


def _power_slopes(x: Array, theta_K: Array, g: Array) -> tuple[Array, ...]:
    return ((1.0 - g) * (np.exp(theta_K[0]) * x),)


def _log_box(*pairs: tuple[float, float]) -> Array:
    return np.asarray(np.log(np.array(pairs)))


HILL = Family(
    name="hill",
    coordinate=_log,
    shape=_hill,
    slopes=_hill_slopes,
    parameters=("midpoint", "efficiency"),
    compute_like=(True, False),
    bounds=lambda span: _log_box((0.1, 10.0 * span), (0.25, 12.0)),
    grid_sizes=(24, 8),
)
EXPONENTIAL = Family(
    name="exponential",
    coordinate=lambda compute: compute,
    shape=_exponential,
    slopes=_exponential_slopes,
    parameters=("scale",),
    compute_like=(True,),
    bounds=lambda span: _log_box((0.1, 10.0 * span)),
    grid_sizes=(24,),
)
POWER = Family(
    name="power",
    coordinate=np.log1p,
    shape=_power,
    slopes=_power_slopes,
    parameters=("exponent",),
    compute_like=(False,),
    bounds=lambda _: _log_box((0.02, 8.0)),
    grid_sizes=(16,),
)
FAMILIES: tuple[Family, ...] = (HILL, EXPONENTIAL, POWER)
