"""A recipe in words: each setting with its value, its reason and its source."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from isocompute.core.allocation import Allocation
from isocompute.core.recipe import RECIPES, Recipe
from isocompute.planner.runs_recipe import RunsRecipe

__all__ = ["FEW_UPDATES", "Line", "paper_lines", "scalerl_lines"]

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
