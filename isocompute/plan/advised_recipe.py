"""The recipe that goes with an allocation, each line with its reason and its source.

IsoCompute section 3 and table 1: learning rate ∝ √B, KL and entropy terms on easy sets and neither on hard ones, no
zero-variance filter, temperature .6, truncated importance sampling. A law that was measured with another recipe
(ScaleRL) brings its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from isocompute.allocation import Allocation
from isocompute.errors import InputError
from isocompute.recipes import Recipe, learning_rate, make_recipe

__all__ = ["PAPER_ANCHOR", "AdvisedRecipe", "Anchor", "Line", "advise_recipe", "parse_anchor"]

ISOCOMPUTE = "IsoCompute, arXiv 2603.12151"
_FEW_UPDATES = 40


@dataclass(frozen=True)
class Anchor:
    """A learning rate that is known to work at a batch size."""

    learning_rate: float
    batch_size: int
    given: bool = True


PAPER_ANCHOR = Anchor(1e-6, 1024, given=False)
"""IsoCompute's own, found by a grid search for Qwen2.5-7B-Instruct; another model may want another."""


@dataclass(frozen=True)
class Line:
    """One setting of the recipe."""

    setting: str
    value: str
    reason: str
    source: str


@dataclass(frozen=True)
class AdvisedRecipe:
    """The recipe as data and in words; `learning_rate` is the one at this allocation's batch."""

    recipe: Recipe
    learning_rate: float
    lines: tuple[Line, ...]


def parse_anchor(text: str | None) -> Anchor:
    """`1e-6@1024`: a learning rate and the batch size, in rollouts, at which it works.

    >>> parse_anchor("3e-6@512")
    Anchor(learning_rate=3e-06, batch_size=512, given=True)
    """
    if text is None:
        return PAPER_ANCHOR
    rate_text, _, batch_text = text.partition("@")
    try:
        rate, batch = float(rate_text), float(batch_text)
    except ValueError:
        rate, batch = math.nan, math.nan
    if not (math.isfinite(rate) and rate > 0 and math.isfinite(batch) and batch >= 1 and batch == int(batch)):
        raise InputError(
            f"--lr-anchor {text}: give a learning rate and the batch, in rollouts, where it works, such as 1e-6@1024."
        )
    return Anchor(rate, int(batch))


def advise_recipe(
    *,
    allocation: Allocation,
    difficulty: str | None,
    anchor: Anchor = PAPER_ANCHOR,
    own: Mapping[str, Any] | None = None,
    own_source: str = "",
) -> AdvisedRecipe:
    """The recipe for an allocation; `own` is that of the law, where it was measured with another than the paper's.

    >>> advice = advise_recipe(allocation=Allocation(32, 256, 244), difficulty="easy")
    >>> f"{advice.learning_rate:.2g}", advice.recipe.kl_coef
    ('2.8e-06', 0.001)
    """
    updates = allocation.update_steps
    if own is not None:
        table: dict[str, Any] = dict(own)
        if anchor.given:
            table |= {"learning_rate": anchor.learning_rate, "lr_batch": anchor.batch_size}
        source = own_source
    else:
        table = {
            "name": f"isocompute-{difficulty or 'easy'}",
            "learning_rate": anchor.learning_rate,
            "lr_batch": anchor.batch_size,
        }
        source = ISOCOMPUTE
    recipe = make_recipe(table)
    if updates < _FEW_UPDATES:
        recipe = recipe.model_copy(update={"warmup_steps": min(recipe.warmup_steps, updates // 4)})
    rate = learning_rate(recipe, batch_size=allocation.batch_size, step=recipe.warmup_steps)
    return AdvisedRecipe(recipe, rate, tuple(_lines(allocation, recipe, rate, difficulty, anchor, source)))


def _lines(
    allocation: Allocation, recipe: Recipe, rate: float, difficulty: str | None, anchor: Anchor, source: str
) -> list[Line]:
    b = allocation.batch_size
    paper = source == ISOCOMPUTE
    whose = "your anchor" if anchor.given else "the paper's anchor" if paper else "the law's own"
    scaled = (
        f"{recipe.learning_rate:g} × √({b}/{recipe.lr_batch})" if recipe.lr_scaling == "sqrt" else recipe.lr_scaling
    )
    section = f"{source}, section 3 and figure 4" if paper else source
    out = [
        Line(
            "learning_rate",
            f"{rate:.2g}",
            f"{scaled}, {whose}; √B beat linear and constant scaling at B = 8,192" if paper else f"{scaled}, {whose}",
            section,
        ),
        Line(
            "warmup_steps",
            f"{recipe.warmup_steps}",
            "linear warm-up, then constant"
            + (" (shortened: few updates)" if allocation.update_steps < _FEW_UPDATES else ""),
            f"{source}, appendix A" if paper else source,
        ),
    ]
    if paper:
        regularised = recipe.kl_coef > 0
        why = (
            "easy sets collapse in entropy without both; the coefficients are our choice, the paper prints none"
            if regularised
            else "hard sets destabilise with either: entropy and length explode"
        )
        if difficulty is None:
            why += "; the difficulty is unknown, easy is assumed: say --difficulty or --pass-rates"
        out.append(
            Line("kl_coef, entropy_coef", f"{recipe.kl_coef:g}, {recipe.entropy_coef:g}", why, f"{source}, table 1")
        )
        out.append(
            Line(
                "zero_variance_filter",
                recipe.zero_variance_filter,
                "filtering the KL and entropy terms was more stable but reached less",
                f"{source}, table 1 and appendix A",
            )
        )
        out.append(
            Line(
                "temperature, top_p",
                f"{recipe.temperature:g}, {recipe.top_p:g}",
                "of the runs behind the law",
                f"{source}, appendix A",
            )
        )
        out.append(
            Line(
                "tis_cap",
                f"{recipe.tis_cap:g}" if recipe.tis_cap else "off",
                "truncated importance sampling against the sampler's other numerics; the cap is our choice, the paper "
                "prints none",
                f"{source}, appendix A",
            )
        )
    else:
        out.append(
            Line(
                "loss, advantage", f"{recipe.loss}, {recipe.advantage}", "the recipe the law was measured with", source
            )
        )
        out.append(
            Line(
                "zero_variance_filter",
                recipe.zero_variance_filter,
                "groups without variance have no gradient; they are dropped, not refilled",
                source,
            )
        )
    return out
