"""The recipe that goes with an allocation, each line with its reason and its source.

IsoCompute section 3 and table 1: learning rate ∝ √B, KL and entropy terms on easy sets and neither on hard ones, no
zero-variance filter, temperature .6, truncated importance sampling. A law that was measured with another recipe
(ScaleRL) brings its own, and so do the user's runs, where they say theirs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from isocompute.core.allocation import Allocation
from isocompute.core.errors import InputError
from isocompute.core.recipe import Recipe, learning_rate, make_recipe
from isocompute.planner.recipe_lines import FEW_UPDATES, Line, paper_lines, scalerl_lines
from isocompute.planner.runs_recipe import RunsRecipe

__all__ = ["PAPER_ANCHOR", "AdvisedRecipe", "Anchor", "Line", "advise_recipe", "anchored", "parse_anchor"]


@dataclass(frozen=True)
class Anchor:
    """A learning rate that is known to work at a batch size."""

    learning_rate: float
    batch_size: int
    given: bool = True


PAPER_ANCHOR = Anchor(1e-6, 1024, given=False)
"""IsoCompute's own, found by a grid search for Qwen2.5-7B-Instruct; another model may want another."""


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


def anchored(anchor: Anchor) -> dict[str, Any]:
    """A recipe's fields with a learning rate that the user anchored."""
    return {"learning_rate": anchor.learning_rate, "lr_batch": anchor.batch_size, "lr_scaling": "sqrt"}


def advise_recipe(
    *,
    allocation: Allocation,
    difficulty: str | None,
    anchor: Anchor = PAPER_ANCHOR,
    own: Mapping[str, Any] | None = None,
    runs: RunsRecipe | None = None,
) -> AdvisedRecipe:
    """The recipe for an allocation.

    `own` is that of a published law that was measured with another than the paper's, which is ScaleRL's; `runs` is
    what the user's runs agree on, which stands before the paper's.

    >>> advice = advise_recipe(allocation=Allocation(32, 256, 244), difficulty="easy")
    >>> f"{advice.learning_rate:.2g}", advice.recipe.kl_coef
    ('2.8e-06', 0.001)
    """
    updates = allocation.update_steps
    table: dict[str, Any] = dict(own) if own is not None else {"name": f"isocompute-{difficulty or 'easy'}"}
    if runs is not None:
        table |= runs.fields
        if runs.fields.get("kl_coef") == 0.0 and "entropy_coef" not in runs.fields:
            table["entropy_coef"] = 0.0  # the paper never has an entropy bonus without KL
    if anchor.given:
        table |= anchored(anchor)
    elif own is None and "learning_rate" not in table:
        table |= {"learning_rate": anchor.learning_rate, "lr_batch": anchor.batch_size}
    recipe = make_recipe(table)
    if updates < FEW_UPDATES:
        recipe = recipe.model_copy(update={"warmup_steps": min(recipe.warmup_steps, updates // 4)})
    rate = learning_rate(recipe, batch_size=allocation.batch_size, step=recipe.warmup_steps)
    if not math.isfinite(rate):
        raise InputError(
            f"--lr-anchor {recipe.learning_rate:g}@{recipe.lr_batch}: the learning rate at a batch of "
            f"{allocation.batch_size:,} is not finite; give one that works, such as 1e-6@1024."
        )
    if own is not None:
        lines = scalerl_lines(allocation, recipe, rate, given=anchor.given)
    else:
        lines = paper_lines(allocation, recipe, rate, difficulty, given=anchor.given, runs=runs)
    return AdvisedRecipe(recipe, rate, tuple(lines))
