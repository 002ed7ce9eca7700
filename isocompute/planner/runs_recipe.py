"""The recipe that the runs behind a law share, so that a plan goes on with what was measured.

Engines log every field of a recipe with the batch at which its learning rate holds; imported logs have a few fields and
the learning rate of that very run. Both become one anchor where one rule of scaling explains all runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from isocompute.core.curve import Curve
from isocompute.core.recipe import RECIPES, Recipe

__all__ = ["ANCHOR", "RunsRecipe", "runs_recipe"]

ANCHOR = ("learning_rate", "lr_batch", "lr_scaling")
"""Fields that say a learning rate together."""
_POWERS = {"sqrt": 0.5, "linear": 1.0, "constant": 0.0}
_SAME = 1.02
"""Learning rates are logged with two or three digits."""


@dataclass(frozen=True)
class RunsRecipe:
    """Fields of `Recipe` on which all runs agree; `learning_rate` and `lr_batch` are both there or neither is."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    differs: frozenset[str] = frozenset()
    unsaid: str = "your runs do not say theirs"

    def why_not(self, name: str) -> str:
        """Why a field is not known."""
        return "your runs differ in theirs" if name in self.differs else self.unsaid


def runs_recipe(curves: Sequence[Curve]) -> RunsRecipe:
    """What the runs of a law agree on.

    >>> logged = [Curve("a", None, None, 32, n, recipe=json.dumps({"recipe": {"learning_rate": rate}}))
    ...           for n, rate in ((8, 1e-6), (32, 2e-6))]
    >>> runs_recipe(logged).fields
    {'learning_rate': 1e-06, 'lr_batch': 256, 'lr_scaling': 'sqrt'}
    """
    each = [_said(curve.made_of) for curve in curves]
    names = [name for name in Recipe.model_fields if name not in ANCHOR]
    everywhere = [name for name in names if each and all(name in said for said in each)]
    agreed = {name: each[0][name] for name in everywhere if all(said[name] == each[0][name] for said in each)}
    differs = set(everywhere) - set(agreed)
    if all("learning_rate" in said for said in each):
        anchor = _anchor(each, [curve.batch_size for curve in curves])
        agreed |= anchor or {}
        if anchor is None and len({said["learning_rate"] for said in each}) > 1:
            differs.add("learning_rate")
    return RunsRecipe(agreed, frozenset(differs))


def _said(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The valid fields of a run's recipe; a recipe's name stands for its fields, not for a learning rate."""
    logged = settings.get("recipe")
    if not isinstance(logged, dict):
        return {}
    name = logged.get("name")
    fields = {**(RECIPES.get(name, {}) if isinstance(name, str) else {}), **logged}
    fields = {key: value for key, value in fields.items() if key in Recipe.model_fields}
    try:
        Recipe(**fields)
    except ValidationError as error:
        wrong = {str(e["loc"][0]) if e["loc"] else "" for e in error.errors()}
        return {} if "" in wrong else {key: value for key, value in fields.items() if key not in wrong}
    return fields


def _anchor(each: Sequence[Mapping[str, Any]], batches: Sequence[int | None]) -> dict[str, Any] | None:
    """A learning rate, its batch and the rule between batches; None where no rule explains all runs."""
    if not each:
        return None
    with_batch = ["lr_batch" in said for said in each]
    if all(with_batch) and all(said.get(name) == each[0].get(name) for said in each for name in ANCHOR):
        return {name: each[0][name] for name in ANCHOR if name in each[0]}
    known = [b for b in batches if b is not None]
    if len(set(with_batch)) > 1 or len(known) < len(each):
        return None
    smallest, used = min(known), [_used(said, b) for said, b in zip(each, known, strict=True)]
    for scaling, power in _POWERS.items():
        rates = [rate * (smallest / b) ** power for rate, b in zip(used, known, strict=True)]
        if max(rates) <= _SAME * min(rates):
            return {"learning_rate": used[known.index(smallest)], "lr_batch": smallest, "lr_scaling": scaling}
    return None


def _used(said: Mapping[str, Any], batch: int) -> float:
    """The learning rate that a run of this batch had."""
    rate = float(said["learning_rate"])
    if "lr_batch" not in said:
        return rate
    return float(rate * (batch / said["lr_batch"]) ** _POWERS[said.get("lr_scaling", "sqrt")])
