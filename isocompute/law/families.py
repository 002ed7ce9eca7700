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

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from isocompute.arrays import Array

__all__ = ["EXPONENTIAL", "FAMILIES", "HILL", "POWER", "Family", "Shape"]

Shape = Callable[[Array, Array], tuple[Array, ...]]
"""`(x_RC, theta_RK) -> (g_RC, dg_RC for each θ)`: the shape and its derivatives by θ. `x` is what `Family.coordinate`
makes of compute in units of the curve's first positive compute."""


@dataclass(frozen=True)
class Family:
    """One shape with the box its θ lives in and the starting grid that covers the box."""

    name: str
    coordinate: Callable[[Array], Array]
    """What the shape sees of compute: it is taken once a curve, not once a step of the search."""
    shape: Shape
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
        axes = [
            np.linspace(low, high, size) for (low, high), size in zip(self.bounds(span), self.grid_sizes, strict=True)
        ]
        return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))


def _log(compute: Array) -> Array:
    return np.log(np.maximum(compute, 1e-12))  # compute 0 is the base model: far enough down to be g = 0


def _hill(x_RC: Array, theta_RK: Array) -> tuple[Array, ...]:
    b_R1 = np.exp(theta_RK[:, 1:2])
    z_RC = b_R1 * (x_RC - theta_RK[:, 0:1])
    np.clip(z_RC, -500.0, 500.0, out=z_RC)
    g_RC = 1.0 / (1.0 + np.exp(-z_RC))
    slope_RC = g_RC * (1.0 - g_RC)
    return g_RC, -b_R1 * slope_RC, z_RC * slope_RC


def _same(compute: Array) -> Array:
    return compute


def _exponential(x_RC: Array, theta_RK: Array) -> tuple[Array, ...]:
    ratio_RC = np.minimum(x_RC * np.exp(-theta_RK[:, 0:1]), 700.0)
    decay_RC = np.exp(-ratio_RC)
    return 1.0 - decay_RC, -ratio_RC * decay_RC


def _log1p(compute: Array) -> Array:
    return np.asarray(np.log1p(compute))


def _power(x_RC: Array, theta_RK: Array) -> tuple[Array, ...]:
    exponent_RC = np.exp(theta_RK[:, 0:1]) * x_RC
    decay_RC = np.exp(-exponent_RC)
    return 1.0 - decay_RC, exponent_RC * decay_RC


def _log_box(*pairs: tuple[float, float]) -> Array:
    return np.asarray(np.log(np.array(pairs)))


HILL = Family(
    name="hill",
    coordinate=_log,
    shape=_hill,
    parameters=("midpoint", "efficiency"),
    compute_like=(True, False),
    bounds=lambda span: _log_box((0.1, 10.0 * span), (0.25, 12.0)),
    grid_sizes=(24, 8),
)
EXPONENTIAL = Family(
    name="exponential",
    coordinate=_same,
    shape=_exponential,
    parameters=("scale",),
    compute_like=(True,),
    bounds=lambda span: _log_box((0.1, 10.0 * span)),
    grid_sizes=(24,),
)
POWER = Family(
    name="power",
    coordinate=_log1p,
    shape=_power,
    parameters=("exponent",),
    compute_like=(False,),
    bounds=lambda _: _log_box((0.02, 8.0)),
    grid_sizes=(16,),
)
FAMILIES: tuple[Family, ...] = (HILL, EXPONENTIAL, POWER)
