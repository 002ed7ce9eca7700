"""Leave-one-out studies: a recipe compared with itself without each of its parts (`isocompute ablate`)."""

from __future__ import annotations

import tomlkit

from isocompute.core.allocation import MeasuringEngine, evaluation_steps
from isocompute.core.curve import MINIMUM_POINTS
from isocompute.core.errors import InputError
from isocompute.core.recipe import LEAVE_ONE_OUT
from isocompute.sweep.execute import load_engine
from isocompute.sweep.spec import StudySpec, cells, parse_spec


def with_variants(data: bytes, *, name: str) -> bytes:
    """The spec's text; if it names no variants, with the leave-one-out variants of its recipe."""
    spec = parse_spec(data, name=name)
    if spec.variants:
        return data
    document = tomlkit.parse(data.decode())
    if "variants" in document:
        raise InputError(f"{name}: variants: the table is empty; name some, or leave the table out.")
    recipe = spec.recipe.get("name", "")
    if not isinstance(recipe, str) or recipe not in LEAVE_ONE_OUT:
        raise InputError(
            f"{name}: nothing to leave out: recipe '{recipe or 'grpo'}' has no list of parts "
            f"({', '.join(LEAVE_ONE_OUT)} has); name them: [variants.NAME] with recipe = {{…}}."
        )
    document["variants"] = {part: {"recipe": fields} for part, fields in LEAVE_ONE_OUT[recipe].items()}
    return tomlkit.dumps(document).encode()


def check_ablation(spec: StudySpec, *, name: str, metric: str | None, unit: str | None, share: float) -> None:
    """Refuse a study whose results could not be analysed, before anything runs."""
    if not 0 < share < 1:
        raise InputError(f"--fit-share {share:g}: give a share of the compute between 0 and 1, such as .5.")
    if len(spec.problems) > 1:
        raise InputError(
            f"{name}: a leave-one-out study has one [problems] table; to train on several sets together name them "
            "there: sources = {math = …, code = …}."
        )
    allocations: dict[str, set[str]] = {}
    for cell in cells(spec):
        variant, _, run = cell.name.partition("/")
        allocations.setdefault(variant, set()).add(run.rpartition("-s")[0])
        if set(cell.problems.get("sources", {})) != set(sources(spec)):
            raise InputError(f"{name}: variants.{variant}: its sources are not those of [problems].")
        early = int((evaluation_steps(cell.update_steps, spec.evaluation.points) <= share * cell.update_steps).sum())
        if early < MINIMUM_POINTS:
            raise InputError(
                f"{name}: cell {cell.name} is evaluated {early} times in the first {share:.0%} of its updates; a fit "
                f"needs {MINIMUM_POINTS}: raise evaluation.points or the budget."
            )
    for variant, several in allocations.items():
        if len(several) > 1:
            raise InputError(
                f"{name}: grid: '{variant}' has {len(several)} allocations; recipes are compared at one Bp and n."
            )
    engine = load_engine(spec.engine)
    if not isinstance(engine, MeasuringEngine):
        return  # the metrics of a command are only known from its log
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


def sources(spec: StudySpec) -> list[str]:
    """The names of the problem sets that are trained on together."""
    return list(spec.problems[0].get("sources", {}))
