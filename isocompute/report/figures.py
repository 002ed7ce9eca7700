"""The two papers' figures by name, drawn from a user's runs: `draw("optimum", Evidence.of("runs/"))`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import altair as alt

from isocompute.core.errors import InputError
from isocompute.report.charts import optimum, pass_rates, recipes, reward, sensitivity
from isocompute.report.charts.style import Drawing, Needs, save
from isocompute.report.evidence import Evidence


@dataclass(frozen=True)
class FigureSpec:
    """A figure that can be drawn: its name, title, source in a paper, and the function that draws it."""

    name: str
    title: str
    source: str
    make: Callable[[Evidence], Drawing | Needs]

    @property
    def description(self) -> str:
        """The docstring of its function, without the number of the figure."""
        return (self.make.__doc__ or "").partition(": ")[2].removesuffix(".")

    def to_json(self) -> dict[str, Any]:
        """One row of `report --figures --json`."""
        return {"name": self.name, "title": self.title, "source": self.source, "description": self.description}


@dataclass(frozen=True)
class Figure:
    """A figure that the data support."""

    name: str
    title: str
    source: str
    sentences: tuple[str, ...]
    panels: tuple[Any, ...]
    data: dict[str, Any]
    columns: int = 2

    @property
    def caption(self) -> str:
        """What these data show, with numbers and intervals."""
        return " ".join(f"{sentence}." for sentence in self.sentences)

    @cached_property
    def chart(self) -> Any:
        """All panels as one Altair chart with a title."""
        title = alt.TitleParams(self.title, subtitle=self.source, anchor="start", fontSize=15, offset=14)
        if len(self.panels) == 1:
            return alt.hconcat(self.panels[0]).properties(title=title)
        joined = alt.concat(*self.panels, columns=min(self.columns, len(self.panels)), spacing=28)
        return joined.resolve_scale(color="independent", shape="independent").properties(title=title)

    def save(self, path: str | Path) -> Path:
        """Write HTML, PNG, SVG or PDF, by the suffix of the path; HTML needs no network."""
        return save(self.chart, path)

    def to_json(self) -> dict[str, Any]:
        """Name, title, source, caption and `data`: what `report --figure NAME --json` prints."""
        head = {"name": self.name, "title": self.title, "source": self.source}
        return {**head, "caption": self.caption, "data": self.data}


@dataclass(frozen=True)
class Missing:
    """A figure that the data do not support, and what it needs."""

    name: str
    title: str
    source: str
    needs: str

    def to_json(self) -> dict[str, Any]:
        """The fields as plain data."""
        return asdict(self)


_ALL = (
    FigureSpec("reward", "Reward against compute", "IsoCompute fig. 6", reward.reward_against_compute),
    FigureSpec("optimum", "The best n at a budget", "IsoCompute fig. 7", optimum.best_n),
    FigureSpec("joint-optimum", "The best n with Bp free", "IsoCompute fig. 21", optimum.joint_best_n),
    FigureSpec("joint-frontier", "The joint frontier", "IsoCompute fig. 22", reward.joint_frontier),
    FigureSpec("sensitivity", "What matters more, n or Bp", "IsoCompute fig. 10", sensitivity.sensitivity),
    FigureSpec("metrics", "The best n for coverage and for sharpening", "IsoCompute fig. 8", optimum.other_metrics),
    FigureSpec("batch-tradeoff", "Problems against rollouts at one batch size", "IsoCompute fig. 9", optimum.one_batch),
    FigureSpec("fixed-problems", "Frontiers at each Bp", "IsoCompute fig. 16 and 17", reward.at_fixed_problems),
    FigureSpec("fixed-batch", "Frontiers at each batch size", "IsoCompute fig. 18 and 19", reward.at_fixed_batch),
    FigureSpec("records", "Record-breaking points", "IsoCompute fig. 5 and 15", optimum.records),
    FigureSpec("pass-rates", "How pass rates are spread", "IsoCompute fig. 11", pass_rates.at_one_compute),
    FigureSpec("pass-rate-dynamics", "Pass rates over training", "IsoCompute fig. 27", pass_rates.over_training),
    FigureSpec("out-of-distribution", "On other problems", "IsoCompute fig. 23", reward.out_of_distribution),
    FigureSpec("tokens", "Counting tokens instead of rollouts", "IsoCompute fig. 24", optimum.in_tokens),
    FigureSpec("models", "Other base models", "IsoCompute fig. 12", reward.models),
    FigureSpec("set-size", "The size of the training set", "IsoCompute fig. 13", reward.set_sizes),
    FigureSpec("mixtures", "Training mixtures by difficulty", "IsoCompute fig. 14", reward.mixtures),
    FigureSpec("extremely-hard", "Problems the base model never solves", "IsoCompute fig. 20", reward.extremely_hard),
    FigureSpec("algorithms", "Other algorithms", "IsoCompute fig. 25", reward.algorithms),
    FigureSpec("baseline", "The variance of the baseline", "IsoCompute fig. 26", recipes.baselines),
    FigureSpec("extrapolation", "Half a run predicts the rest", "ScaleRL fig. 1", recipes.extrapolation),
    FigureSpec("recipes", "Recipes by their ceiling", "ScaleRL fig. 2 and 5", recipes.recipes),
    FigureSpec("leave-one-out", "One change at a time", "ScaleRL fig. 7", recipes.leave_one_out),
)
_CURVES = "learning curves (runs with four or more evaluations and the compute behind each)"
_MOST = 12
"""Most panels and sentences of a figure; its data contain all of them."""
FIGURES: dict[str, FigureSpec] = {spec.name: spec for spec in _ALL}


def draw(name: str, evidence: Evidence) -> Figure | Missing:
    """Draw one figure, or say what the data lack for it."""
    spec = FIGURES.get(name)
    if spec is None:
        raise InputError(f"there is no figure '{name}'; figures are {', '.join(FIGURES)}.")
    try:
        made = spec.make(evidence)
    except InputError as error:
        return Missing(spec.name, spec.title, spec.source, str(error))
    if isinstance(made, Needs):
        needs = made.text if evidence.curves else f"{_CURVES}; {made.text}"
        return Missing(spec.name, spec.title, spec.source, needs)
    sentences = list(made.sentences[:_MOST])
    if len(made.panels) > _MOST:
        sentences.append(f"{len(made.panels) - _MOST} more panels are in the data")
    return Figure(
        name=spec.name,
        title=spec.title,
        source=spec.source,
        sentences=tuple(sentences),
        panels=tuple(made.panels[:_MOST]),
        data=made.data,
        columns=made.columns or (3 if len(made.panels) > 4 else 2),
    )
