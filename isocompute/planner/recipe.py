"""Advises the recipe for an allocation, each setting with its reason and its source.

IsoCompute section 3 and table 1: learning rate ∝ √B, KL and entropy terms on easy sets and neither on hard ones, no
zero-variance filter, temperature .6, truncated importance sampling. A law that was published with another recipe
(ScaleRL) keeps that one. Fields on which the user's runs agree take precedence over the paper's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from isocompute.core.allocation import Allocation
from isocompute.core.curve import Curve
from isocompute.core.errors import InputError
from isocompute.core.recipe import RECIPES, Recipe, current_names, learning_rate, make_recipe
from isocompute.planner.request import PAPER_ANCHOR, Anchor

RATE_FIELDS = ("learning_rate", "lr_reference_batch", "lr_scaling")
"""Fields that together define a learning rate."""
ISOCOMPUTE, SCALERL = "IsoCompute, arXiv 2603.12151", "ScaleRL, arXiv 2510.13786"
FEW_UPDATES = 40
"""Under this many updates, at most a quarter of them is warm-up."""
_POWERS = {"sqrt": 0.5, "linear": 1.0, "constant": 0.0}
_SAME_RATE = 1.02
"""Learning rates are logged with two or three digits."""
_YOURS = "your runs"


@dataclass(frozen=True)
class RunsRecipe:
    """Fields of `Recipe` on which all runs of a law agree; `learning_rate` and `lr_reference_batch` come together."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    differs: frozenset[str] = frozenset()
    missing: str = "your runs do not say theirs"

    def why_not(self, name: str) -> str:
        """Why a field is not known, for a message."""
        return "your runs differ in theirs" if name in self.differs else self.missing


def runs_recipe(curves: Sequence[Curve]) -> RunsRecipe:
    """The recipe fields on which the runs of a law agree.

    Studies log every field of a recipe, with the batch size of its learning rate. Imported logs have a few fields, and
    the learning rate at the run's own batch size. If one scaling rule explains all runs, both give one learning rate.

    >>> logged = [Curve("a", None, None, 32, n, recipe=json.dumps({"recipe": {"learning_rate": rate}}))
    ...           for n, rate in ((8, 1e-6), (32, 2e-6))]
    >>> runs_recipe(logged).fields
    {'learning_rate': 1e-06, 'lr_reference_batch': 256, 'lr_scaling': 'sqrt'}
    """
    logged = [_valid_fields(curve.recipe_fields) for curve in curves]
    names = [name for name in Recipe.model_fields if name not in RATE_FIELDS]
    everywhere = [name for name in names if logged and all(name in each for each in logged)]
    agreed = {name: logged[0][name] for name in everywhere if all(each[name] == logged[0][name] for each in logged)}
    differs = set(everywhere) - set(agreed)
    if all("learning_rate" in each for each in logged):
        rate = _common_rate(logged, [curve.batch_size for curve in curves])
        agreed |= rate or {}
        if rate is None and len({each["learning_rate"] for each in logged}) > 1:
            differs.add("learning_rate")
    return RunsRecipe(agreed, frozenset(differs))


def _valid_fields(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The valid fields of a run's recipe, including those of a named recipe."""
    logged = settings.get("recipe")
    if not isinstance(logged, dict):
        return {}
    name = logged.get("name")
    fields = {**(RECIPES.get(name, {}) if isinstance(name, str) else {}), **current_names(logged)}
    fields = {key: value for key, value in fields.items() if key in Recipe.model_fields}
    try:
        Recipe(**fields)
    except ValidationError as error:
        wrong = {str(e["loc"][0]) if e["loc"] else "" for e in error.errors()}
        return {} if "" in wrong else {key: value for key, value in fields.items() if key not in wrong}
    return fields


def _common_rate(logged: Sequence[Mapping[str, Any]], batches: Sequence[int | None]) -> dict[str, Any] | None:
    """A learning rate, its batch size and its scaling with the batch size; None if no rule explains all runs."""
    if not logged:
        return None
    with_batch = ["lr_reference_batch" in each for each in logged]
    if all(with_batch) and all(each.get(name) == logged[0].get(name) for each in logged for name in RATE_FIELDS):
        return {name: logged[0][name] for name in RATE_FIELDS if name in logged[0]}
    known = [b for b in batches if b is not None]
    if len(set(with_batch)) > 1 or len(known) < len(logged):
        return None
    used = []
    for each, b in zip(logged, known, strict=True):
        scaled = (
            (b / each["lr_reference_batch"]) ** _POWERS[each.get("lr_scaling", "sqrt")]
            if "lr_reference_batch" in each
            else 1.0
        )
        used.append(float(each["learning_rate"]) * scaled)
    smallest = min(known)
    for scaling, power in _POWERS.items():
        rates = [rate * (smallest / b) ** power for rate, b in zip(used, known, strict=True)]
        if max(rates) <= _SAME_RATE * min(rates):
            return {"learning_rate": used[known.index(smallest)], "lr_reference_batch": smallest, "lr_scaling": scaling}
    return None


@dataclass(frozen=True)
class Line:
    """One setting of the recipe, in words."""

    setting: str
    value: str
    reason: str
    source: str


@dataclass(frozen=True)
class AdvisedRecipe:
    """The recipe as data and in words; `learning_rate` is the rate at this allocation's batch size."""

    recipe: Recipe
    learning_rate: float
    lines: tuple[Line, ...]


def anchored(anchor: Anchor) -> dict[str, Any]:
    """Recipe fields for a learning rate that the user gave with its batch size."""
    return {"learning_rate": anchor.learning_rate, "lr_reference_batch": anchor.batch_size, "lr_scaling": "sqrt"}


def advise_recipe(
    *,
    allocation: Allocation,
    difficulty: str | None,
    anchor: Anchor = PAPER_ANCHOR,
    own: Mapping[str, Any] | None = None,
    runs: RunsRecipe | None = None,
) -> AdvisedRecipe:
    """The recipe for an allocation.

    `own` is the recipe of a published law with another one than IsoCompute's, so far ScaleRL's. `runs` are the fields
    on which the user's runs agree.

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
        table |= {"learning_rate": anchor.learning_rate, "lr_reference_batch": anchor.batch_size}
    recipe = make_recipe(table)
    if updates < FEW_UPDATES:
        recipe = recipe.model_copy(update={"warmup_steps": min(recipe.warmup_steps, updates // 4)})
    rate = learning_rate(recipe, batch_size=allocation.batch_size, step=recipe.warmup_steps)
    if not math.isfinite(rate):
        raise InputError(
            f"--lr-reference {recipe.learning_rate:g}@{recipe.lr_reference_batch}: the learning rate at a batch of "
            f"{allocation.batch_size:,} is not finite; give one that works, such as 1e-6@1024."
        )
    lines = _Lines(allocation, recipe, rate, anchor.given, runs)
    return AdvisedRecipe(recipe, rate, tuple(lines.scalerl() if own is not None else lines.isocompute(difficulty)))


@dataclass(frozen=True)
class _Lines:
    """A recipe in words."""

    allocation: Allocation
    recipe: Recipe
    rate: float
    anchor_given: bool
    runs: RunsRecipe | None

    def scalerl(self) -> list[Line]:
        """Lines of ScaleRL's recipe, with the section of the paper for each part."""
        recipe, training = self.recipe, f"{SCALERL}, section 2 and appendix A.3"
        scaling = f"{recipe.lr_scaling}, whatever the batch: the paper's at 48 × 16 with an 8B model"
        rate = Line("learning_rate", f"{self.rate:.2g}", scaling, training)
        return [
            self._rate() if self.anchor_given else rate,
            Line("warmup_steps", f"{recipe.warmup_steps}", self._warmup(), training),
            Line(
                "kl_coef, entropy_coef",
                self._values("kl_coef", "entropy_coef"),
                "the recipe's loss has neither term, whatever the difficulty",
                f"{SCALERL}, section 4",
            ),
            Line(
                "loss, advantage",
                self._values("loss", "advantage"),
                "CISPO reached higher than DAPO's clip; over which standard deviation advantages are hardly matters",
                f"{SCALERL}, sections 3.2 and 4",
            ),
            Line(
                "tis_cap",
                self._values("tis_cap"),
                f"CISPO's ratio to the sampler's probabilities, cut off at {_text(recipe.ratio_cap)}, does it; 4, 5 "
                "and 8 are equal",
                f"{SCALERL}, equation 4 and appendix A.17.2",
            ),
            Line(
                "temperature, top_p",
                self._values("temperature", "top_p"),
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
                self._values("no_positive_resampling", "length_control", "pipeline_steps"),
                "solved problems retire, long thinking is interrupted, sampling goes on beside training",
                f"{SCALERL}, sections 3.1 and 4",
            ),
        ]

    def isocompute(self, difficulty: str | None) -> list[Line]:
        """Lines of the IsoCompute paper's recipe, or of the user's runs for the fields that these log."""
        runs = self.runs
        out = [
            self._rate(),
            self._line("warmup_steps", why=self._warmup(), where="appendix A", note=self._shortened()),
            self._regularizers(difficulty),
            self._line(
                "zero_variance_filter",
                why="filtering the KL and entropy terms was more stable but reached less",
                where="table 1 and appendix A",
            ),
            self._line(
                "temperature", "top_p", why="of the runs behind the law", where="appendix A", holds_for_any_law=False
            ),
            self._line(
                "tis_cap",
                why="truncated importance sampling against the sampler's other numerics; the cap is our choice, the "
                "paper prints none",
                where="appendix A",
            ),
        ]
        if runs is None:
            return out
        if "loss" in runs.fields and "advantage" in runs.fields:
            out.append(self._line("loss", "advantage", why="", where=""))
        shown = {name for line in out for name in line.setting.split(", ")} | set(RATE_FIELDS)
        return out + [
            Line(name, _text(value), "of your runs", _YOURS)
            for name, value in runs.fields.items()
            if name not in shown and value != Recipe.model_fields[name].default
        ]

    def _regularizers(self, difficulty: str | None) -> Line:
        recipe = self.recipe
        if difficulty == "hard":
            why = "on hard sets these terms destabilise training: entropy and length explode"
        elif self.runs is not None and recipe.kl_coef == recipe.entropy_coef == 0.0:
            why = "an entropy bonus goes with KL or not at all"
        else:
            why = "easy sets collapse in entropy without both; the coefficients are our choice, the paper prints none"
        if difficulty is None:
            why += "; the difficulty is unknown, easy is assumed: say --difficulty or --pass-rates"
        line = self._line("kl_coef", "entropy_coef", why=why, where="table 1")
        if line.source != _YOURS or difficulty is None:
            return line
        paper_on = "kl_coef" in RECIPES[f"isocompute-{difficulty}"]
        if paper_on == (recipe.kl_coef > 0) == (recipe.entropy_coef > 0):
            return line
        reason = f"{line.reason}; the paper has {'both on' if paper_on else 'neither'} on {difficulty} sets"
        return Line(line.setting, line.value, reason, _YOURS)

    def _rate(self) -> Line:
        recipe, runs = self.recipe, None if self.anchor_given else self.runs
        scaled, rule = str(recipe.lr_scaling), ""
        if recipe.lr_scaling == "sqrt":
            scaled = f"{recipe.learning_rate:g} × √({self.allocation.batch_size}/{recipe.lr_reference_batch})"
            rule = "; √B beat linear and constant scaling at B = 8,192"
        if runs is not None and "learning_rate" in runs.fields:
            reason = f"{scaled}: {recipe.learning_rate:g} at a batch of {recipe.lr_reference_batch:,}, of your runs"
            return Line("learning_rate", f"{self.rate:.2g}", reason, _YOURS)
        whose = "your anchor" if self.anchor_given else "the paper's anchor"
        whose += "" if runs is None else f"; {runs.why_not('learning_rate')}"
        source = f"{ISOCOMPUTE}, section 3 and figure 4"
        return Line("learning_rate", f"{self.rate:.2g}", f"{scaled}, {whose}{rule}", source)

    def _line(self, *names: str, why: str, where: str, holds_for_any_law: bool = True, note: str = "") -> Line:
        """One setting, by the user's runs if all of them log it, else by the paper."""
        setting, value, runs = ", ".join(names), self._values(*names), self.runs
        if runs is None:
            return Line(setting, value, why, f"{ISOCOMPUTE}, {where}")
        unknown = [name for name in names if name not in runs.fields]
        if not unknown:
            return Line(setting, value, f"of your runs{note}", _YOURS)
        stand_in = f"the paper's; {runs.why_not(unknown[0])}"
        if len(unknown) < len(names):
            stand_in = f"{' and '.join(unknown)}: {stand_in}; the rest of your runs"
        reason = f"{why} ({stand_in})" if holds_for_any_law else stand_in
        return Line(setting, value, reason, f"{ISOCOMPUTE}, {where}")

    def _values(self, *names: str) -> str:
        return ", ".join(_text(getattr(self.recipe, name)) for name in names)

    def _warmup(self) -> str:
        return "linear warm-up, then constant" + self._shortened()

    def _shortened(self) -> str:
        return " (shortened: few updates)" if self.allocation.update_steps < FEW_UPDATES else ""


def _text(value: object) -> str:
    if value is None:
        return "off"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float | int) else str(value)
