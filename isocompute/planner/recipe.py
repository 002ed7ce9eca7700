"""The recipe that the runs behind a law share, so that a plan goes on with what was measured.

Engines log every field of a recipe with the batch at which its learning rate holds; imported logs have a few fields and
the learning rate of that very run. Both become one anchor where one rule of scaling explains all runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from isocompute.core.allocation import Allocation
from isocompute.core.curve import Curve
from isocompute.core.errors import InputError
from isocompute.core.recipe import RECIPES, Recipe, learning_rate, make_recipe

__all__ = [
    "ANCHOR",
    "AdvisedRecipe",
    "Anchor",
    "FEW_UPDATES",
    "Line",
    "PAPER_ANCHOR",
    "RunsRecipe",
    "advise_recipe",
    "anchored",
    "paper_lines",
    "parse_anchor",
    "runs_recipe",
    "scalerl_lines",
]


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
    each = [_said(curve.recipe_fields) for curve in curves]
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


# A recipe in words: each setting with its value, its reason and its source.

ISOCOMPUTE = "IsoCompute, arXiv 2603.12151"
SCALERL = "ScaleRL, arXiv 2510.13786"
_TRAINING = "section 2 and appendix A.3"
"""Where ScaleRL says how it trains."""
FEW_UPDATES = 40
"""Under this many updates, a quarter of them at most is warm-up."""
_YOURS = "your runs"
_SQRT = "√B beat linear and constant scaling at B = 8,192"


@dataclass(frozen=True)
class Line:
    """One setting of the recipe."""

    setting: str
    value: str
    reason: str
    source: str


def scalerl_lines(allocation: Allocation, recipe: Recipe, rate: float, *, given: bool) -> list[Line]:
    """ScaleRL's recipe, that of the published laws which bring one: where the paper has each part of it."""
    whatever = f"{recipe.lr_scaling}, whatever the batch: the paper's at 48 × 16 with an 8B model"
    own_rate = Line("learning_rate", f"{rate:.2g}", whatever, f"{SCALERL}, {_TRAINING}")
    return [
        _rate_line(allocation, recipe, rate, given=True, runs=None) if given else own_rate,
        Line("warmup_steps", f"{recipe.warmup_steps}", _warmup(allocation), f"{SCALERL}, {_TRAINING}"),
        Line(
            "kl_coef, entropy_coef",
            f"{_text(recipe.kl_coef)}, {_text(recipe.entropy_coef)}",
            "the recipe's loss has neither term, whatever the difficulty",
            f"{SCALERL}, section 4",
        ),
        Line(
            "loss, advantage",
            f"{recipe.loss}, {recipe.advantage}",
            "CISPO reached higher than DAPO's clip; over which standard deviation advantages are hardly matters",
            f"{SCALERL}, sections 3.2 and 4",
        ),
        Line(
            "tis_cap",
            _text(recipe.tis_cap),
            f"CISPO's ratio to the sampler's probabilities, cut off at {_text(recipe.ratio_cap)}, does it; 4, 5 and 8 "
            "are equal",
            f"{SCALERL}, equation 4 and appendix A.17.2",
        ),
        Line(
            "temperature, top_p",
            f"{_text(recipe.temperature)}, {_text(recipe.top_p)}",
            "plain sampling, our choice: we have no temperature of the paper's",
            "isocompute",
        ),
        Line(
            "zero_variance_filter",
            recipe.zero_variance_filter,
            "groups without variance have no gradient; they are dropped, not refilled",
            f"{SCALERL}, section 3.2 and figure 6",
        ),
        Line(
            "no_positive_resampling, length_control, pipeline_steps",
            f"{_text(recipe.no_positive_resampling)}, {recipe.length_control}, {recipe.pipeline_steps}",
            "solved problems retire, long thinking is interrupted, sampling goes on beside training",
            f"{SCALERL}, sections 3.1 and 4",
        ),
    ]


def paper_lines(
    allocation: Allocation,
    recipe: Recipe,
    rate: float,
    difficulty: str | None,
    *,
    given: bool,
    runs: RunsRecipe | None,
) -> list[Line]:
    """The IsoCompute paper's recipe, and that of the user's runs (`runs`) wherever they say it."""
    out = [
        _rate_line(allocation, recipe, rate, given=given, runs=runs),
        _line(runs, ("warmup_steps",), recipe, _warmup(allocation), "appendix A", note=_shortened(allocation)),
    ]
    why = (
        "on hard sets these terms destabilise training: entropy and length explode"
        if difficulty == "hard"
        else "easy sets collapse in entropy without both; the coefficients are our choice, the paper prints none"
    )
    if runs is not None and recipe.kl_coef == recipe.entropy_coef == 0.0 and difficulty != "hard":
        why = "an entropy bonus goes with KL or not at all"
    if difficulty is None:
        why += "; the difficulty is unknown, easy is assumed: say --difficulty or --pass-rates"
    terms = _line(runs, ("kl_coef", "entropy_coef"), recipe, why, "table 1")
    if terms.source == _YOURS and difficulty is not None:
        paper_on = "kl_coef" in RECIPES[f"isocompute-{difficulty}"]
        if paper_on != (recipe.kl_coef > 0) or paper_on != (recipe.entropy_coef > 0):
            advice = "both on" if paper_on else "neither"
            terms = Line(
                terms.setting, terms.value, f"{terms.reason}; the paper has {advice} on {difficulty} sets", _YOURS
            )
    out.append(terms)
    out.append(
        _line(
            runs,
            ("zero_variance_filter",),
            recipe,
            "filtering the KL and entropy terms was more stable but reached less",
            "table 1 and appendix A",
        )
    )
    out.append(_line(runs, ("temperature", "top_p"), recipe, "of the runs behind the law", "appendix A", ours=False))
    out.append(
        _line(
            runs,
            ("tis_cap",),
            recipe,
            "truncated importance sampling against the sampler's other numerics; the cap is our choice, the paper "
            "prints none",
            "appendix A",
        )
    )
    if runs is not None and "loss" in runs.fields and "advantage" in runs.fields:
        out.append(_line(runs, ("loss", "advantage"), recipe, "", ""))
    return out + (
        [] if runs is None else _unusual(runs, told={name for line in out for name in line.setting.split(", ")})
    )


def _unusual(runs: RunsRecipe, *, told: Set[str]) -> list[Line]:
    """What the runs were trained with that no line tells and that is not what it is without asking."""
    of_rate = {"learning_rate", "lr_batch", "lr_scaling"}  # the first line tells them together
    return [
        Line(name, _text(value), "of your runs", _YOURS)
        for name, value in runs.fields.items()
        if name not in told | of_rate and value != Recipe.model_fields[name].default
    ]


def _line(
    runs: RunsRecipe | None,
    names: tuple[str, ...],
    recipe: Recipe,
    why: str,
    where: str,
    *,
    ours: bool = True,
    note: str = "",
) -> Line:
    """A setting: of the user's runs where they say it, else the paper's; `ours` where the reason holds for any law."""
    value = ", ".join(_text(getattr(recipe, name)) for name in names)
    if runs is None:
        return Line(", ".join(names), value, why, f"{ISOCOMPUTE}, {where}")
    unknown = [name for name in names if name not in runs.fields]
    if not unknown:
        return Line(", ".join(names), value, f"of your runs{note}", _YOURS)
    stand_in = f"the paper's; {runs.why_not(unknown[0])}"
    if len(unknown) < len(names):
        stand_in = f"{' and '.join(unknown)}: {stand_in}; the rest of your runs"
    reason = f"{why} ({stand_in})" if ours else stand_in
    return Line(", ".join(names), value, reason, f"{ISOCOMPUTE}, {where}")


def _rate_line(allocation: Allocation, recipe: Recipe, rate: float, *, given: bool, runs: RunsRecipe | None) -> Line:
    scaled, source = _scaled(allocation, recipe), f"{ISOCOMPUTE}, section 3 and figure 4"
    rule = f"; {_SQRT}" if recipe.lr_scaling == "sqrt" else ""
    if given:
        return Line("learning_rate", f"{rate:.2g}", f"{scaled}, your anchor{rule}", source)
    if runs is not None and "learning_rate" in runs.fields:
        at = f"{recipe.learning_rate:g} at a batch of {recipe.lr_batch:,}"
        return Line("learning_rate", f"{rate:.2g}", f"{scaled}: {at}, of your runs", _YOURS)
    whose = "the paper's anchor" if runs is None else f"the paper's anchor; {runs.why_not('learning_rate')}"
    return Line("learning_rate", f"{rate:.2g}", f"{scaled}, {whose}{rule}", source)


def _scaled(allocation: Allocation, recipe: Recipe) -> str:
    if recipe.lr_scaling == "sqrt":
        return f"{recipe.learning_rate:g} × √({allocation.batch_size}/{recipe.lr_batch})"
    return recipe.lr_scaling


def _warmup(allocation: Allocation) -> str:
    return "linear warm-up, then constant" + _shortened(allocation)


def _shortened(allocation: Allocation) -> str:
    return " (shortened: few updates)" if allocation.update_steps < FEW_UPDATES else ""


def _text(value: object) -> str:
    if value is None:
        return "off"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float | int) else str(value)


# The recipe that goes with an allocation, each line with its reason and its source.


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
