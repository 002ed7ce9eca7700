"""`isocompute.sweep.ablate.ablate(...)`: run a recipe and its variants as a study, then say what each part is for."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isocompute.core import files
from isocompute.core.cell import MeasuringEngine
from isocompute.core.curve import MINIMUM_POINTS
from isocompute.core.errors import InputError
from isocompute.core.recipe import LEAVE_ONE_OUT
from isocompute.data import RunSet, load
from isocompute.law.ablation import Ablation, leave_one_out
from isocompute.law.from_runs import UNITS, choose_metric, choose_unit, curves_of
from isocompute.core.cell import evaluation_steps
from isocompute.sweep.engines import load_engine
from isocompute.sweep.progress import Progress, Report, Result
from isocompute.sweep.spec import WHOLE, StudySpec, cells, parse_spec

__all__ = ["Ablated", "ablate", "analyse", "with_variants"]


@dataclass(frozen=True)
class Ablated:
    """What a leave-one-out study found, for each metric that was asked of it."""

    folder: str
    metric: str
    unit: str
    ablation: Ablation
    tasks: dict[str, Ablation]
    """With several problem sets trained on together, the same for each of them."""
    study: Result | None = None


def _silent(_: Progress) -> None:
    pass


def ablate(
    *,
    spec: str | Path,
    out: str | Path | None = None,
    workers: int | None = None,
    metric: str | None = None,
    unit: str | None = None,
    share: float = 0.5,
    replicates: int = 1000,
    seed: int = 0,
    report: Report = _silent,
) -> Ablated:
    """Run what is left of the study and analyse it; a spec without variants leaves out each part of its recipe."""
    from isocompute import sweep as study

    name = str(spec)
    data = with_variants(files.read_bytes(name), name=name)
    check_spec(parse_spec(data, name=name), name=name, metric=metric, unit=unit, share=share)
    result = study.run_spec(data, name=name, out=out, workers=workers, report=report)
    if result.failed or result.stopped or result.unwritable:
        raise IncompleteError(result)
    found = analyse(result.folder, metric=metric, unit=unit, share=share, replicates=replicates, seed=seed)
    return Ablated(found.folder, found.metric, found.unit, found.ablation, found.tasks, result)


class IncompleteError(Exception):
    """The study did not finish; its result says why."""

    def __init__(self, result: Result) -> None:
        super().__init__("the study did not finish")
        self.result = result


def with_variants(data: bytes, *, name: str) -> bytes:
    """The spec's text, with the recipe's own leave-one-out list where it names no variants."""
    parsed = parse_spec(data, name=name)
    if parsed.variants:
        return data
    if "variants" in tomllib.loads(data.decode()):
        raise InputError(f"{name}: variants: there are none; name some, or leave the table out.")
    recipe = parsed.recipe.get("name", "")
    if not isinstance(recipe, str) or recipe not in LEAVE_ONE_OUT:
        raise InputError(
            f"{name}: nothing to leave out: recipe '{recipe or 'grpo'}' has no list of parts "
            f"({', '.join(LEAVE_ONE_OUT)} has); name them: [variants.NAME] with recipe = {{…}}."
        )
    lines = [f"[variants.{part}]\nrecipe = {_toml(fields)}" for part, fields in LEAVE_ONE_OUT[recipe].items()]
    return data.rstrip() + ("\n\n" + "\n".join(lines) + "\n").encode()


def check_spec(spec: StudySpec, *, name: str, metric: str | None, unit: str | None, share: float) -> None:
    """Refuse what could not be analysed in the end, before anything is run."""
    if not 0 < share < 1:
        raise InputError(f"--fit-share {share:g}: give a share of the compute between 0 and 1, such as .5.")
    if unit is not None and unit not in UNITS:
        raise InputError(f"--unit {unit}: it is one of {', '.join(UNITS)}.")
    if len(spec.problems) > 1:
        raise InputError(
            f"{name}: a leave-one-out study has one [problems] table; to train on several sets together name them "
            "there: sources = {math = …, code = …}."
        )
    sides: dict[str, set[str]] = {}
    for cell in cells(spec):
        variant, _, run = cell.name.partition("/")
        sides.setdefault(variant, set()).add(run.rpartition("-s")[0])
        if set(cell.problems.get("sources", {})) != set(_sources(spec)):
            raise InputError(f"{name}: variants.{variant}: its sources are not those of [problems].")
        steps = evaluation_steps(cell.update_steps, spec.evaluation.points)
        early = int((steps <= share * cell.update_steps).sum())
        if early < MINIMUM_POINTS:
            raise InputError(
                f"{name}: cell {cell.name} is evaluated {early} times in the first {share:.0%} of its updates; a fit "
                f"needs {MINIMUM_POINTS}: raise evaluation.points or the budget."
            )
    many = next((variant for variant, settings in sides.items() if len(settings) > 1), None)
    if many is not None:
        raise InputError(
            f"{name}: grid: '{many}' has {len(sides[many])} allocations; recipes are compared at one Bp and n."
        )
    _refuse_unmeasured(spec, name=name, metric=metric, unit=unit)


def _refuse_unmeasured(spec: StudySpec, *, name: str, metric: str | None, unit: str | None) -> None:
    """A metric or unit that no run of the study will have; a command's are known from its log alone."""
    engine = load_engine(spec.engine)
    if not isinstance(engine, MeasuringEngine):
        return
    for cell in cells(spec):
        try:
            known = engine.measures(cell)
        except InputError as error:
            raise InputError(f"{name}: {error} (cell {cell.name})") from error
        for option, asked, there in (("--metric", metric, known.metrics), ("--unit", unit, known.units)):
            if asked is not None and asked not in there:
                raise InputError(
                    f"{option} {asked}: cell {cell.name} of {name} will have none; it is one of "
                    f"{', '.join(sorted(there))}."
                )


def _toml(fields: dict[str, Any]) -> str:
    def text(value: Any) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        return f'"{value}"' if isinstance(value, str) else repr(value)

    made = "{" + ", ".join(f"{key} = {text(value)}" for key, value in fields.items()) + "}"
    assert tomllib.loads(f"x = {made}")["x"] == fields
    return made


def analyse(
    folder: str | Path,
    *,
    metric: str | None = None,
    unit: str | None = None,
    share: float = 0.5,
    replicates: int = 1000,
    seed: int = 0,
) -> Ablated:
    """A study with variants that has been run."""
    spec = parse_spec(
        files.read_bytes(files.join(str(folder), "study.toml")), name=files.join(str(folder), "study.toml")
    )
    runs = load(folder)
    metric, unit = choose_metric(runs, metric), choose_unit(runs, unit)

    def found(metric: str) -> Ablation:
        sides = {name: _side(runs, name, metric, unit) for name in (WHOLE, *spec.variants)}
        whole = sides.pop(WHOLE)
        return leave_one_out(whole, sides, share=share, replicates=replicates, seed=seed)

    known = set.intersection(*(set(run.metrics) for run in runs))
    tasks = {name: found(f"{name}/{metric}") for name in _sources(spec) if f"{name}/{metric}" in known}
    return Ablated(str(folder), metric, unit, found(metric), tasks)


def _sources(spec: StudySpec) -> list[str]:
    return list(spec.problems[0].get("sources", {}))


def _side(runs: RunSet, variant: str, metric: str, unit: str) -> Any:
    own = tuple(run for run in runs if run.name.startswith(f"{variant}/"))
    if not own:
        raise InputError(f"{runs.source}: variant '{variant}' has no runs yet; run the study to its end.")
    curves, _, _ = curves_of(RunSet(own, runs.source), metric=metric, unit=unit)
    return curves
