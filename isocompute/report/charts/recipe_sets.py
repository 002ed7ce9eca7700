"""Which runs make a comparison of recipes: same model, problems and allocation, another recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isocompute.data.conditions import Condition, ingredients
from isocompute.law.law import Law
from isocompute.report.charts.entries import Entry
from isocompute.report.evidence import Evidence

__all__ = ["RecipeSet", "recipe_sets"]


_ONE_PART = 3
"""Fields that may change together and still be one part of a recipe."""


@dataclass(frozen=True)
class RecipeSet:
    """Recipes that can be compared, each as one fitted curve."""

    title: str
    entries: tuple[Entry, ...]
    fields: tuple[Mapping[str, Any], ...]
    """The recipe fields of each entry; empty where nobody logged them."""

    def single_changes(self) -> tuple[Entry, list[Entry]] | None:
        """The recipe from which the most others differ in one field, and those near it; None where there are none.

        A part may be several fields, such as a loss and its clips: up to three count as one change.
        """
        apart_EE = [[len(self._differences(i, j)) for j in range(len(self.entries))] for i in range(len(self.entries))]
        centre = max(range(len(self.entries)), key=lambda i: apart_EE[i].count(1), default=0)
        if not self.entries or not apart_EE[centre].count(1):
            return None
        near = [
            Entry(self._change(centre, j), entry.fit)
            for j, entry in enumerate(self.entries)
            if 1 <= apart_EE[centre][j] <= _ONE_PART
        ]
        reference = self.entries[centre]
        return Entry(f"{reference.name} (reference)", reference.fit), near

    def _differences(self, i: int, j: int) -> list[str]:
        a, b = self.fields[i], self.fields[j]
        return [key for key in sorted({*a, *b}) if a.get(key) != b.get(key)]

    def _change(self, i: int, j: int) -> str:
        return ", ".join(
            f"{key.removeprefix('recipe.')} = {self.fields[j].get(key, 'off')}" for key in self._differences(i, j)
        )


def recipe_sets(evidence: Evidence) -> list[RecipeSet]:
    """All sets of at least two recipes, the largest first.

    Runs whose allocation nobody logged are recipes by their names, as long as they are all there is. Runs that say
    neither model nor problem set and lie on different scales are no recipes of one task.
    """
    groups: dict[str, list[tuple[Condition, Law]]] = {}
    for condition, law in evidence.laws():
        groups.setdefault(condition.rest("recipe."), []).append((condition, law))
    alike = [group for group in groups.values() if evidence.comparable(*(condition for condition, _ in group))]
    out = [found for group in alike if (found := _set(group)) is not None]
    return sorted(out, key=lambda group: -len(group.entries))


def _set(group: Sequence[tuple[Condition, Law]]) -> RecipeSet | None:
    if len(group) == 1:
        condition, law = group[0]
        named = tuple(Entry(fit.curves[0].name, fit) for fit in law.settings if fit.setting[1] is None)
        return RecipeSet(condition.name or "runs", named, ({},) * len(named)) if len(named) > 1 else None
    shared = set.intersection(*({fit.setting for fit in law.settings} for _, law in group))
    if not shared:
        return None
    setting = max(shared, key=lambda s: min(f.last for _, law in group for f in law.settings if f.setting == s))
    entries = tuple(
        Entry(condition.recipe_name, next(fit for fit in law.settings if fit.setting == setting))
        for condition, law in group
    )
    fields = tuple(
        {key: v for key, v in ingredients(condition.runs[0]).items() if key.startswith("recipe.")}
        for condition, _ in group
    )
    bp, n = setting
    problems = group[0][0].ingredient("problems")
    title = " · ".join(filter(None, (str(problems) if problems else "", f"{bp} × {n}" if n else "")))
    return RecipeSet(title or "recipes", entries, fields)
