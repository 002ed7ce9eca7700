"""The commands as functions: `isocompute.fit(...)` is what `isocompute fit` runs."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from isocompute.core import files
from isocompute.core.curve import MINIMUM_POINTS, Curve
from isocompute.core.errors import InputError, recorded
from isocompute.core.run import listing
from isocompute.data import Run, RunSet, RunWarning, load
from isocompute.data.compatible import conditions_of, warn_of_several
from isocompute.law.comparison import Comparison
from isocompute.law.comparison import compare as _compare
from isocompute.law.curves import DEFAULT_BIN, choose_metric, curves_of, warn_of_scales
from isocompute.law.forecasting import LEVEL, VERDICTS, Backtest, Forecast
from isocompute.law.forecasting import backtest as _backtest
from isocompute.law.forecasting import forecast as _forecast
from isocompute.law.law import Law, fit_law
from isocompute.law.uncertainty import check_replicates
from isocompute.planner.api import plan
from isocompute.problems.difficulty import REPLICATES
from isocompute.problems.load import load_problems
from isocompute.problems.split import Split, counts_from_rates, make_split, read_counts, write_split

if TYPE_CHECKING:  # what one command needs takes the others seconds to load
    from isocompute.diagnose.claims import Claim
    from isocompute.diagnose.health import Health
    from isocompute.law.comparison import Ablation
    from isocompute.sweep import Progress, Result

__all__ = [
    "BACKTEST_POINTS",
    "Ablated",
    "IncompleteError",
    "Source",
    "ablate",
    "analyse_ablation",
    "backtest",
    "check_health",
    "compare",
    "fit",
    "forecast",
    "forecast_all",
    "judge_claims",
    "plan",
    "split",
]

Source = RunSet | Run | Sequence[Run] | str | Path | Sequence[str | Path]
"""Runs that are loaded, or where they lie."""

BACKTEST_POINTS = 15
"""Runs with fewer evaluations have no first half to learn from."""


def fit(
    runs: Source,
    *,
    metric: str | None = None,
    unit: str | None = None,
    points: str = "all",
    bin_width: float = DEFAULT_BIN,
    replicates: int = 1000,
    seed: int = 0,
) -> Law:
    """Curves, frontier, n*(C), trade-offs and the joint law of a set of runs.

    `points="records"` fits the IsoCompute paper's record-breaking points instead of all points.

    >>> law = fit("runs", replicates=100)
    >>> law.metric, law.unit, len(law.runs)
    ('avg@4', 'rollouts', 3)
    """
    check_replicates(replicates)
    loaded = _loaded(runs)
    warn_of_several(loaded)
    curves, metric, unit = curves_of(loaded, metric=metric, unit=unit)
    warn_of_scales(curves, metric=metric, source=loaded.source)
    return fit_law(
        curves, metric=metric, unit=unit, points=points, bin_width=bin_width, replicates=replicates, seed=seed
    )


def forecast(
    run: Source,
    *,
    to: str | float = "2x",
    fit_until: float | None = None,
    metric: str | None = None,
    unit: str | None = None,
    level: float = LEVEL,
) -> Forecast:
    """Where one run will be: `to="2x"` is twice the compute of its last fitted point, a number is a compute.

    `fit_until` up to 1 is a share of the run's compute, above 1 a compute.

    >>> forecast("runs/easy-32x64", to="2x", fit_until=0.5).verdict
    'improving'
    >>> forecast("runs/easy-32x8", to="2x").verdict
    'flat'
    """
    runs = _loaded(run)
    if len(runs) != 1:
        names = listing([run.name for run in runs])
        raise InputError(
            f"forecast takes one run, these are {len(runs)}: name one as PATH::NAME, of {names}, or use forecast_all."
        )
    _check_level(level)
    (curve,), _, unit = curves_of(runs, metric=metric, unit=unit)
    seen = _until(curve, fit_until)
    made = _forecast(seen, target(to, float(seen.compute_C[-1])), level=level, unit=unit)
    from isocompute.diagnose.series import present_level

    return replace(made, now=present_level(seen))


def forecast_all(
    runs: Source,
    *,
    to: str | float = "2x",
    fit_until: float | None = None,
    metric: str | None = None,
    unit: str | None = None,
    level: float = LEVEL,
) -> tuple[dict[str, Forecast], dict[str, str]]:
    """Every run's `forecast` by its name, the worst verdict first; also, by name, why a run has none.

    >>> made, left_out = forecast_all("runs", to="2x")
    >>> made["easy-32x8"].verdict, left_out
    ('flat', {})
    """
    loaded = _loaded(runs)
    _check_level(level)
    made: dict[str, Forecast] = {}
    left_out: dict[str, str] = {}
    with _each_once():
        for run in loaded:
            try:
                one = replace(loaded, runs=(run,))
                made[run.name] = forecast(one, to=to, fit_until=fit_until, metric=metric, unit=unit, level=level)
            except InputError as error:
                left_out[run.name] = str(error)
    if not made:
        raise InputError(next(iter(left_out.values())))
    return dict(sorted(made.items(), key=lambda item: VERDICTS.index(item[1].verdict))), left_out


@contextmanager
def _each_once() -> Iterator[None]:
    """What is said of many runs in the same words is said once."""
    with recorded(RunWarning) as caught:
        yield
    for warning in {str(warning.message): warning for warning in caught}.values():
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise InputError(f"level = {level:g}: give the share that the interval is to hold, such as 0.8.")


def target(to: str | float, last: float) -> float:
    """`4x` times the last compute, or a compute."""
    text = str(to).strip().lower()
    try:
        at = float(text[:-1]) * last if text.endswith("x") else float(text)
    except ValueError:
        at = math.nan
    if not math.isfinite(at):
        raise InputError(f"--to {to}: give a factor such as 2x or a compute such as 4e6.")
    return at


def _until(curve: Curve, fit_until: float | None) -> Curve:
    if fit_until is None:
        return curve
    if not fit_until > 0:
        raise InputError(f"--fit-until {fit_until:g}: give a share of the run such as 0.5, or a compute.")
    end = fit_until * float(curve.compute_C[-1]) if fit_until <= 1 else fit_until
    count = curve.points_up_to(end)
    if count < MINIMUM_POINTS:
        raise InputError(
            f"run '{curve.name}': {count} points up to --fit-until {fit_until:g}; a forecast needs {MINIMUM_POINTS}: "
            "fit until later, or evaluate more often."
        )
    return curve.until(count)


def backtest(
    runs: Source, *, metric: str | None = None, unit: str | None = None, level: float = LEVEL
) -> tuple[list[Backtest], list[str]]:
    """Forecast every run's last tenth from its first half; also the names of runs with too few points for that.

    >>> tests, skipped = backtest("runs")
    >>> [test.run for test in tests], skipped
    (['easy-32x16', 'easy-32x64', 'easy-32x8'], [])
    """
    _check_level(level)
    loaded = _loaded(runs)
    metric = choose_metric(loaded, metric)
    long = tuple(run for run in loaded if _values(run, metric) >= BACKTEST_POINTS)
    curves, _, _ = curves_of(replace(loaded, runs=long), metric=metric, unit=unit) if long else ([], "", "")
    halves = [curve for curve in curves if (curve.compute_C <= 0.5 * curve.compute_C[-1]).sum() >= MINIMUM_POINTS]
    if not halves:
        raise InputError(
            f"{loaded.source}: no run has {BACKTEST_POINTS} values of '{metric}', {MINIMUM_POINTS} of them in its "
            "first half; a backtest needs that many."
        )
    names = {curve.name for curve in halves}
    return [_backtest(curve, level=level) for curve in halves], [run.name for run in loaded if run.name not in names]


def _values(run: Run, metric: str) -> int:
    """How many values a run has; none where all are the same, which leaves nothing to forecast."""
    values = run.points[metric].drop_nulls() if metric in run.metrics else None
    return len(values) if values is not None and values.n_unique() > 1 else 0


def compare(
    a: Source,
    b: Source,
    *,
    metric: str | None = None,
    unit: str | None = None,
    replicates: int = 1000,
    seed: int = 0,
) -> Comparison:
    """Ceiling against efficiency: which of two recipes scales. Several runs on a side are its seeds.

    >>> compare("runs/easy-32x8", "runs/easy-32x64", replicates=100).higher
    'b'
    """
    check_replicates(replicates)
    sides = [_loaded(a), _loaded(b)]
    found = [curves_of(side, metric=metric, unit=unit) for side in sides]
    (curves_a, metric_a, unit_a), (curves_b, metric_b, unit_b) = found
    if unit_a != unit_b:
        raise InputError(f"{sides[0].source} counts compute in {unit_a}, {sides[1].source} in {unit_b}; say --unit.")
    if metric_a != metric_b:
        raise InputError(f"{sides[0].source} has '{metric_a}', {sides[1].source} '{metric_b}'; say --metric.")
    for side in sides:
        conditions = conditions_of(side)
        if len(conditions) > 1:
            warnings.warn(
                f"{side.source}: its runs differ in more than their seed ({listing([c.name for c in conditions], 3)}): "
                "what follows pools them as seeds of one recipe; name those of one as PATH::NAME or with --where.",
                RunWarning,
                stacklevel=2,
            )
    warn_of_scales([*curves_a, *curves_b], metric=metric_a, source=" and ".join(side.source for side in sides))
    return _compare(curves_a, curves_b, replicates=replicates, seed=seed)


def check_health(runs: Source, *, paths: Sequence[str] = ()) -> tuple[Health, ...]:
    """Look every run over. `paths` are where loaded runs lie, to find their pass rates.

    >>> [health.verdict for health in check_health("runs")]
    ['healthy', 'healthy', 'healthy']
    """
    from isocompute.diagnose.health import check

    loaded = _loaded(runs)
    given = [runs] if isinstance(runs, str | Path | Run) else runs
    where = [str(path) for path in paths or given if not isinstance(path, Run)]
    return tuple(check(run, paths=where) for run in loaded)


def judge_claims(runs: Source, *, metric: str | None = None) -> tuple[Claim, ...]:
    """What the runs say of each of the two papers' claims.

    >>> {claim.code: claim.verdict for claim in judge_claims("runs")}["optimum_rises"]  # three runs, one seed each
    'undecided'
    """
    from isocompute.diagnose.claims import judge

    return judge(_loaded(runs), metric=metric)


def _loaded(runs: Source) -> RunSet:
    if isinstance(runs, RunSet):
        return runs
    if isinstance(runs, Run):
        return RunSet((runs,), runs.name)
    if isinstance(runs, list | tuple) and runs and all(isinstance(run, Run) for run in runs):
        return RunSet(cast("tuple[Run, ...]", tuple(runs)))
    return load(cast("str | Path | Sequence[str | Path]", runs))


def split(
    problems: str,
    *,
    model: str | None = None,
    counts: str | None = None,
    pass_rates: str | None = None,
    samples: int = 16,
    size: int | None = None,
    seed: int = 0,
    kept: tuple[float, float] | None = None,
    mix: Mapping[str, float] | None = None,
    mix_size: int | None = None,
    question: str | None = None,
    answer: str | None = None,
    verifier: str | None = None,
    out: str | Path | None = None,
    replicates: int = REPLICATES,
) -> Split:
    """Find how difficult each problem is and choose the paper's subsets by the posterior.

    The counts come from sampling `model`, from the table `counts`, or from the column `pass_rates` of the problems (of
    the table, where both are given). `kept` is the range of measured pass rates that the set was filtered to by these
    counts. With `out` the subsets are written there as JSONL files that `load_problems` reads, and `difficulty.json`.
    """
    if samples < 1:
        raise InputError(f"samples = {samples}: take at least one sample a problem.")
    if (model is None) == (counts is None and pass_rates is None):
        raise InputError("split needs either --model to sample from, or --counts FILE and/or --pass-rates COLUMN.")
    columns: dict[str, Any] = {"question": question, "answer": answer, "verifier": verifier}
    own_rates = pass_rates if counts is None else None
    loaded = load_problems(problems, size=size, seed=seed, pass_rate=own_rates, **columns)
    if model is not None:
        from isocompute.rl.evaluation import measure_pass_rates  # loads torch

        ids, correct = measure_pass_rates(
            problems=problems, model=model, samples=samples, seed=seed, size=size, **columns
        )
        of = dict(zip(ids, correct, strict=True))
        correct_P = np.array([of[problem.id] for problem in loaded.problems], dtype=np.int64)
        samples_P = np.full(len(loaded), samples, dtype=np.int64)
    elif counts is not None:
        rates, known = pass_rates, loaded.problems
        correct_P, samples_P = read_counts(counts, known, samples=samples, pass_rate=rates, question=question)
    else:
        correct_P, samples_P = counts_from_rates(loaded.problems, samples=samples, name=problems)
    found = make_split(
        loaded,
        correct_P,
        samples_P,
        model=model,
        seed=seed,
        kept=kept,
        mix=mix,
        mix_size=mix_size,
        replicates=replicates,
    )
    if out is not None:
        write_split(found, Path(out))
    return found


@dataclass(frozen=True)
class Ablated:
    """What a leave-one-out study found."""

    folder: str
    metric: str
    unit: str
    ablation: Ablation
    tasks: dict[str, Ablation]
    """With several problem sets trained on together, the same for each of them."""
    study: Result | None = None


class IncompleteError(Exception):
    """The study did not finish; its result says why."""

    def __init__(self, result: Result) -> None:
        super().__init__("the study did not finish")
        self.result = result


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
    report: Callable[[Progress], None] = lambda _: None,
) -> Ablated:
    """Run what is left of a leave-one-out study and analyse it.

    A spec without variants leaves out each part of its recipe.
    """
    from isocompute.law.curves import UNITS
    from isocompute.sweep import parse_spec, run_spec
    from isocompute.sweep.ablate import check_ablation, with_variants

    name = str(spec)
    if unit is not None and unit not in UNITS:
        raise InputError(f"--unit {unit}: it is one of {', '.join(UNITS)}.")
    data = with_variants(files.read_bytes(name), name=name)
    check_ablation(parse_spec(data, name=name), name=name, metric=metric, unit=unit, share=share)
    result = run_spec(data, name=name, out=out, workers=workers, report=report)
    if result.failed or result.stopped or result.unwritable:
        raise IncompleteError(result)
    found = analyse_ablation(result.folder, metric=metric, unit=unit, share=share, replicates=replicates, seed=seed)
    return replace(found, study=result)


def analyse_ablation(
    folder: str | Path,
    *,
    metric: str | None = None,
    unit: str | None = None,
    share: float = 0.5,
    replicates: int = 1000,
    seed: int = 0,
) -> Ablated:
    """Compare a recipe with its variants, from a study of them that has been run."""
    from isocompute.law.comparison import leave_one_out
    from isocompute.law.curves import choose_unit
    from isocompute.sweep import StudyFolder
    from isocompute.sweep.ablate import sources
    from isocompute.sweep.spec import WHOLE

    spec, runs = StudyFolder(folder).spec(), load(folder)
    metric, unit = choose_metric(runs, metric), choose_unit(runs, unit)

    def curves(variant: str, metric: str) -> list[Curve]:
        own = tuple(run for run in runs if run.name.startswith(f"{variant}/"))
        if not own:
            raise InputError(f"{runs.source}: variant '{variant}' has no runs yet; run the study to its end.")
        return curves_of(RunSet(own, runs.source), metric=metric, unit=unit)[0]

    def found(metric: str) -> Ablation:
        variants = {name: curves(name, metric) for name in spec.variants}
        return leave_one_out(curves(WHOLE, metric), variants, share=share, replicates=replicates, seed=seed)

    known = set.intersection(*(set(run.metrics) for run in runs))
    tasks = {name: found(f"{name}/{metric}") for name in sources(spec) if f"{name}/{metric}" in known}
    return Ablated(str(folder), metric, unit, found(metric), tasks)
