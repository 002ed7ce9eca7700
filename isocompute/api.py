"""The Python API: each command is a function, so `isocompute fit` calls `isocompute.fit(...)`."""

from __future__ import annotations

import inspect
import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_type_hints

import numpy as np

from isocompute.core import files
from isocompute.core.allocation import ignore
from isocompute.core.curve import MINIMUM_POINTS, UNITS, Curve, choose_metric, choose_unit, curves_of, warn_of_scales
from isocompute.core.errors import InputError, quiet, recorded
from isocompute.core.formatting import plural
from isocompute.core.run import Run, RunSet, RunWarning, listing
from isocompute.data.compatible import runs_of_leading_recipe, warn_of_pooling, warn_of_several
from isocompute.data.loading import hint_for_data_in_memory, load
from isocompute.data.pass_rates import read_base_rates
from isocompute.law.comparison import Ablation, Comparison, leave_one_out
from isocompute.law.comparison import compare as _compare
from isocompute.law.curves import DEFAULT_BIN
from isocompute.law.forecasting import LEVEL, VERDICTS, Backtest, Forecast
from isocompute.law.forecasting import backtest as _backtest
from isocompute.law.forecasting import forecast as _forecast
from isocompute.law.law import Law, fit_law
from isocompute.law.store import StoredLaw, is_law_file, read_law
from isocompute.planner.backtest import PlanTest, backtest_sweep
from isocompute.planner.cost.prices import Hardware, prices
from isocompute.planner.decide import Plan, decide
from isocompute.planner.law import PlanningLaw, planning_law
from isocompute.planner.published import published
from isocompute.planner.regime import diagnose
from isocompute.planner.request import PlanRequest
from isocompute.planner.warnings import BaseRates

if TYPE_CHECKING:  # some commands need modules that take seconds to load
    from isocompute.diagnose.health import Health
    from isocompute.diagnose.verdicts import Claim
    from isocompute.problems.split import Split
    from isocompute.sweep import Progress, Result

Source = RunSet | Run | Sequence[Run] | str | Path | Sequence[str | Path]
"""Loaded runs, or the paths to load them from."""

_FEWEST_REPLICATES = 20
"""Least number of samples for an interval."""
BACKTEST_POINTS = 15
"""Runs with fewer evaluations are not tested: their first half is too short."""


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
    _check_replicates(replicates)
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
    """Predict one run: `to="2x"` is twice the compute of its last fitted point, a number is a compute.

    `fit_until` limits the fit: up to 1 it is a share of the run's compute, above 1 a compute.

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
    (curve,), metric, unit = curves_of(runs, metric=metric, unit=unit)
    seen = _until(curve, fit_until)
    made = _forecast(seen, target(to, float(seen.compute_C[-1])), level=level, unit=unit)
    from isocompute.diagnose.series import present_level

    return replace(made, now=present_level(seen), curve=curve, metric=metric, unit=unit)


def forecast_all(
    runs: Source,
    *,
    to: str | float = "2x",
    fit_until: float | None = None,
    metric: str | None = None,
    unit: str | None = None,
    level: float = LEVEL,
) -> tuple[dict[str, Forecast], dict[str, str]]:
    """The `forecast` of every run by name, the worst verdict first; also, by name, why others have none.

    >>> made, left_out = forecast_all("runs", to="2x")
    >>> made["easy-32x8"].verdict, left_out
    ('flat', {})
    """
    loaded = _loaded(runs)
    _check_level(level)
    made: dict[str, Forecast] = {}
    left_out: dict[str, str] = {}
    with recorded(RunWarning) as caught:
        for run in loaded:
            try:
                one = replace(loaded, runs=(run,))
                made[run.name] = forecast(one, to=to, fit_until=fit_until, metric=metric, unit=unit, level=level)
            except InputError as error:
                left_out[run.name] = str(error)
    for warning in {str(warning.message): warning for warning in caught}.values():  # each once, not for every run
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    if not made:
        raise InputError(next(iter(left_out.values())))
    return dict(sorted(made.items(), key=lambda item: VERDICTS.index(item[1].verdict))), left_out


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise InputError(f"level = {level:g}: give the share that the interval is to hold, such as 0.8.")


def target(to: str | float, last: float) -> float:
    """The compute that `to` asks for: `4x` is four times the last compute, a number is a compute."""
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
    """Number of values of a metric; 0 if all are the same, since a constant needs no forecast."""
    values = run.points[metric].drop_nulls() if metric in run.metrics else None
    return len(values) if values is not None and values.n_unique() > 1 else 0


def plan(**arguments: Any) -> Plan:
    """From a law and a budget to an allocation, a recipe, a cost and how certain that is.

    The arguments are the fields of `PlanRequest`, which are the options of `isocompute plan`:

    {fields}

    >>> chosen = plan(budget="2e6", law="isocompute/bp32-easy").allocation
    >>> chosen.problems_per_batch, chosen.rollouts_per_problem, chosen.update_steps
    (32, 256, 244)
    """
    request = PlanRequest.of(**arguments)
    _check_replicates(request.replicates)
    law, runs = _planning_law(request)
    diagnosis = None
    if runs is not None:
        with quiet(RunWarning):  # fitting the law has already warned
            diagnosis = diagnose(runs, metric=law.metric)
    timed = request.timed_runs
    costs = prices(
        Hardware.of(request),
        runs=load(timed) if isinstance(timed, str | Path) else timed,
        law_runs=runs,
        law_gpu_hours_per_rollout=law.gpu_hours_per_rollout,
        law_response_tokens=law.response_tokens,
        law_source=law.rate_source,
    )
    made = decide(law=law, request=request, prices=costs, rates=_base_rates(request), diagnosis=diagnosis)
    price = request.price_per_gpu_hour
    if price is not None and made.prices.cost(made.allocation)["money"] is None:
        own = "" if request.gpus else ", --gpus 8 alone where the law's runs log seconds"
        raise InputError(
            f"--price-per-gpu-hour {price:g}: a price needs a throughput, and none is known; say "
            f"--rollouts-per-second 12 --gpus 8, --throughput-from RUNS{own}, or --model and --gpu to model one."
        )
    return made


def _with_fields(function: Callable[..., Plan]) -> None:
    """Give `plan` the signature of `PlanRequest`, and list its fields in the docstring."""
    fields, hints = PlanRequest.model_fields, get_type_hints(PlanRequest)
    function.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if field.is_required() else field.default,
                annotation=hints[name],
            )
            for name, field in fields.items()
        ],
        return_annotation=Plan,
    )
    listed = "\n    ".join(f"- `{name}`: {field.description}" for name, field in fields.items())
    function.__doc__ = (function.__doc__ or "").replace("{fields}", listed)


_with_fields(plan)


def _planning_law(request: PlanRequest) -> tuple[PlanningLaw, RunSet | None]:
    """The law that a request names, and its runs if it is fitted here."""
    source, bp, seed = request.law, request.problems_per_batch, request.seed
    if isinstance(source, PlanningLaw):
        return source, None
    if isinstance(source, Law | StoredLaw):
        name = "law" if isinstance(source, Law) else "law.json"
        return planning_law(source, name=name, problems_per_batch=bp), None
    if isinstance(source, str | Path):
        name = str(source)
        if name.partition("/")[0] in ("isocompute", "scalerl") and "/" in name and not files.exists(name):
            return published(name, replicates=request.replicates, seed=seed), None
        if name == "simulate" and not files.exists(name):
            raise InputError(
                "--law simulate: it is gone: on a language model its n had a rank correlation of -.76 with the best n; "
                "start from a published law (`isocompute plan --laws`) and run a few n."
            )
        if not files.exists(name):
            raise InputError(
                f"--law {name}: neither a file or folder nor a published law; `isocompute plan --laws` lists those, "
                "`isocompute fit RUNS --out law.json` writes one."
            )
        if not files.is_folder(name) and is_law_file(name):
            _refuse_without_draws(name)
            return planning_law(read_law(name), name=name, problems_per_batch=bp), None
        try:
            source = load(name)
        except InputError as error:
            if not name.lower().endswith(".json"):
                raise
            raise InputError(
                f"--law {name}: neither a law, as isocompute fit RUNS --out law.json writes it, nor runs; {error}"
            ) from error
    if not isinstance(source, RunSet):
        remedy = hint_for_data_in_memory(source) or "isocompute.load reads runs"
        raise InputError(
            f"a law is given as a name, a path, a Law or a RunSet, not as {type(source).__name__}: {remedy}."
        )
    metric = choose_metric(source, request.metric)
    runs, chosen = runs_of_leading_recipe(source, metric=metric)
    curves, metric, unit = curves_of(runs, metric=metric)
    warn_of_scales(curves, metric=metric, source=runs.source)
    law = fit_law(curves, metric=metric, unit=unit, replicates=request.replicates, seed=seed)
    fitted = f"fitted to {plural(len(curves), 'run')}{chosen}"
    return planning_law(law, name=runs.source, source=fitted, problems_per_batch=bp), runs


def _refuse_without_draws(name: str) -> None:
    """Raise if a law has no bootstrap replicates: it was printed by `fit --json`, or stripped of them."""
    try:
        data = json.loads(files.read_bytes(name))
    except ValueError:
        return  # read_law says what is wrong with it
    if not isinstance(data, dict):
        return
    settings = data.get("settings")
    printed = "curves" in data and settings is None
    stripped = isinstance(settings, list) and any(
        isinstance(s, dict) and not {"ensemble", "posterior"} & s.keys() for s in settings
    )
    if printed or stripped:
        raise InputError(
            f"--law {name}: a law without uncertainty ({'what fit --json prints' if printed else 'no replicates'}); "
            f"write it with isocompute fit RUNS --out {name}."
        )


def _base_rates(request: PlanRequest) -> BaseRates | None:
    given = request.pass_rates
    if given is None:
        return None
    if isinstance(given, str | Path):
        rates_P = read_base_rates(str(given), column=request.pass_rate_column)
    else:
        rates_P = np.asarray(given, dtype=np.float64)
        if rates_P.ndim != 1 or not len(rates_P) or not ((rates_P >= 0) & (rates_P <= 1)).all():
            raise InputError("pass_rates: give a list of numbers in [0, 1].")
    from isocompute.problems.pass_rates import infer_samples, latent_pass_rates  # imports SciPy's solvers

    return BaseRates(rates_P, latent_pass_rates(rates_P), infer_samples(rates_P))


def backtest_plans(
    runs: RunSet | str | Path,
    *,
    metric: str | None = None,
    budget: float | None = None,
    replicates: int = 1000,
    seed: int = 0,
) -> tuple[list[PlanTest], str]:
    """Test plans made from an eighth of a finished sweep's compute; also returns the metric.

    Tests one budget, or by default several up to the largest that two settings reach.

    >>> tests, metric = backtest_plans("runs")
    >>> max(test.planned.regret for test in tests if test.planned)  # what following the plans would have lost
    0.0
    """
    _check_replicates(replicates)
    runs = load(runs) if isinstance(runs, str | Path) else runs
    metric = choose_metric(runs, metric)
    runs, chosen = runs_of_leading_recipe(runs, metric=metric)
    if chosen:
        warnings.warn(f"{runs.source}: plans are tested on {len(runs)} of its runs{chosen}.", RunWarning, stacklevel=2)
    curves, metric, _ = curves_of(runs, metric=metric, unit="rollouts")
    warn_of_scales(curves, metric=metric, source=runs.source)
    tests = backtest_sweep(curves, source=runs.source, metric=metric, budget=budget, replicates=replicates, seed=seed)
    return tests, metric


def compare(
    a: Source,
    b: Source,
    *,
    metric: str | None = None,
    unit: str | None = None,
    replicates: int = 1000,
    seed: int = 0,
) -> Comparison:
    """Compare two recipes by ceiling and efficiency. Several runs on a side are its seeds.

    >>> compare("runs/easy-32x8", "runs/easy-32x64", replicates=100).higher
    'b'
    """
    _check_replicates(replicates)
    sides = [_loaded(a), _loaded(b)]
    found = [curves_of(side, metric=metric, unit=unit) for side in sides]
    (curves_a, metric_a, unit_a), (curves_b, metric_b, unit_b) = found
    if unit_a != unit_b:
        raise InputError(f"{sides[0].source} counts compute in {unit_a}, {sides[1].source} in {unit_b}; say --unit.")
    if metric_a != metric_b:
        raise InputError(f"{sides[0].source} has '{metric_a}', {sides[1].source} '{metric_b}'; say --metric.")
    for side in sides:
        warn_of_pooling(side)
    warn_of_scales([*curves_a, *curves_b], metric=metric_a, source=" and ".join(side.source for side in sides))
    made = _compare(curves_a, curves_b, replicates=replicates, seed=seed)
    return replace(made, metric=metric_a, unit=unit_a)


def check_health(runs: Source, *, paths: Sequence[str] = ()) -> tuple[Health, ...]:
    """Check the health of every run. `paths` are the folders of loaded runs, in which pass rates are looked up.

    >>> [health.verdict for health in check_health("runs")]
    ['healthy', 'healthy', 'healthy']
    """
    from isocompute.diagnose.health import check

    loaded = _loaded(runs)
    given = [runs] if isinstance(runs, str | Path | Run) else runs
    where = [str(path) for path in paths or given if not isinstance(path, Run)]
    return tuple(check(run, paths=where) for run in loaded)


def judge_claims(runs: Source, *, metric: str | None = None) -> tuple[Claim, ...]:
    """Test each claim of the two papers on the runs.

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
    replicates: int = 200,
    on_progress: Callable[[str, int, int], None] = ignore,
) -> Split:
    """Estimate the difficulty of each problem, and choose the paper's subsets by the posterior.

    The counts come from sampling `model`, from the table `counts`, or from the column `pass_rates` of the problems. If
    both `counts` and `pass_rates` are given, the latter is a column of the table. `kept` is the range of measured pass
    rates to which the set was filtered by these counts. With `out`, the subsets are written there as JSONL files that
    `load_problems` reads, with a `difficulty.json`.
    """
    if samples < 1:
        raise InputError(f"samples = {samples}: take at least one sample per problem.")
    if (model is None) == (counts is None and pass_rates is None):
        raise InputError("split needs either --model to sample from, or --counts FILE and/or --pass-rates COLUMN.")
    columns: dict[str, Any] = {"question": question, "answer": answer, "verifier": verifier}
    own_rates = pass_rates if counts is None else None
    from isocompute.problems.load import load_problems
    from isocompute.problems.split import counts_from_rates, make_split, read_counts, write_split

    loaded = load_problems(problems, size=size, seed=seed, pass_rate=own_rates, **columns)
    if model is not None:
        from isocompute.rl.evaluation import measure_pass_rates  # loads torch

        ids, correct = measure_pass_rates(
            problems=problems,
            model=model,
            samples=samples,
            seed=seed,
            size=size,
            on_step=lambda done, total: on_progress("sampling", done, total),
            **columns,
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
    """The result of a leave-one-out study."""

    folder: str
    metric: str
    unit: str
    ablation: Ablation
    tasks: dict[str, Ablation]
    """The analysis for each problem set, if several are trained on together."""
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
    report: Callable[[Progress], None] = ignore,
) -> Ablated:
    """Run a leave-one-out study, or what is left of it, and analyse it.

    A spec without variants leaves out each part of its recipe in turn.
    """
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
    """Compare a recipe with its variants in a leave-one-out study that has been run."""
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


def _check_replicates(replicates: int) -> None:
    """Raise if there are too few samples for an interval."""
    if replicates < _FEWEST_REPLICATES:
        raise InputError(f"replicates = {replicates}: intervals need at least {_FEWEST_REPLICATES} of them.")
