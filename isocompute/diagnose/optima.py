"""Claims about the best number of rollouts per problem, n*: how it moves with compute, and one n* against another."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from isocompute.core.arrays import Array
from isocompute.core.curve import Curve, Setting, scale_of, upper_bound
from isocompute.core.errors import InputError
from isocompute.core.run import RunWarning
from isocompute.diagnose.setups import REPLICATES, Setup, Study
from isocompute.diagnose.verdicts import ONE_SEED, Claim, Interval, Statement, Verdict, above, inside
from isocompute.law.curves import usable_points
from isocompute.law.fits import CurveFit, fits_of
from isocompute.law.frontier import Optimum, compared, frontier, what_to_run
from isocompute.law.law import Law, Tradeoff
from isocompute.law.posterior import fit_posterior, percentiles

_SWEEP = "runs at three or more n with one Bp and recipe, evaluated over one range of compute"
_FIGURE_7 = "IsoCompute section 4.1, figure 7"
RISES = Statement(
    "optimum_rises", "The best number of rollouts per problem, n*, rises with compute.", _FIGURE_7, _SWEEP
)
LEVELS_OFF = Statement("optimum_saturates", "n* levels off.", _FIGURE_7, _SWEEP)
FIXED_BATCH = Statement(
    "fixed_batch_moves_to_n",
    "At a fixed batch size the best allocation moves from problems to rollouts per problem as updates grow.",
    "IsoCompute section 4.2, figure 9",
    "runs at three or more (Bp, n) with one product Bp · n",
)
SMALL_SETS = Statement(
    "small_sets_cap_n",
    "With fewer training problems n* levels off at a smaller n.",
    "IsoCompute section 5.2, figure 13",
    "sweeps over n on two sizes of one problem set, with one recipe",
)
TOKENS_AGREE = Statement(
    "tokens_agree",
    "n* is the same in tokens as in rollouts, within a factor of two.",
    "IsoCompute appendix E, figure 24",
    "a sweep over n whose points count tokens",
)


# n* along compute -----------------------------------------------------------------------------------------------------


def about_optimum(study: Study) -> Iterator[Claim]:
    """n* rises with compute, and levels off."""
    for setup in study.sweeps():
        law = study.law(setup)
        if law is not None and law.joint.rollouts is not None:
            rise = _rises(RISES, study, setup, law, law.joint, law.joint.rollouts)
            yield rise
            yield _levels_off(study, setup, law.joint.rollouts, rise)


def about_batches(study: Study) -> Iterator[Claim]:
    """At a fixed batch size the optimum moves from problems to rollouts as updates grow."""
    for setup in study.sweeps():
        law = study.law(setup)
        batches = [(t, t.rollouts) for t in law.by_batch if t.rollouts is not None] if law else []
        if law is not None and batches:
            widest, best = max(batches, key=lambda item: len(item[0].fits))
            claim = _rises(FIXED_BATCH, study, setup, law, widest, best)
            yield replace(claim, statistic=claim.statistic | {"batch_size": widest.value})


def about_algorithms(study: Study) -> Iterator[Claim]:
    """The rise of n* under PPO and CISPO."""
    for code, name, key, wanted in (
        ("rises_ppo", "PPO", "advantage", "gae"),
        ("rises_cispo", "CISPO", "loss", "cispo"),
    ):
        text, needs = f"n* rises with compute under {name} too.", f"a sweep over n with recipe.{key} = '{wanted}'"
        statement = Statement(code, text, "IsoCompute appendix F, figure 25", needs)
        setup = next((s for s in study.sweeps() if s.recipe.get(key) == wanted), None)
        law = None if setup is None else study.law(setup)
        if setup is None or law is None or law.joint.rollouts is None:
            yield statement.lacks()
        else:
            yield replace(_rises(statement, study, setup, law, law.joint, law.joint.rollouts), code=code)


def _rises(statement: Statement, study: Study, setup: Setup, law: Law, tradeoff: Tradeoff, best: Optimum) -> Claim:
    """Judge a rise by the doublings of n* over the range; over half a doubling is a rise, as in the law's optimum."""
    interval, moved = best.L_interval, 0.5
    lead, seeds = _final_lead(tradeoff.fits, best), min(len(fit.curves) for fit in tradeoff.fits)
    error = ONE_SEED * scale_of(np.concatenate([run.curve.values_C for run in law.runs]))
    verdict: Verdict = "undecided"
    needs: str | None = "seeds, or all n over one range of compute: the intervals allow a constant n*"
    if best.rises and interval[0] > moved:
        verdict = "holds" if seeds > 1 or lead >= error else "undecided"
        needs = f"seeds: with one, a lead under {error:.3g} is not significant (here {lead:.3f})"
    elif interval[1] <= moved:
        needs = _at_edge(best)
        verdict = "undecided" if needs else "fails"
    statistic = {
        "value": best.L,
        "unit": "doublings of n* over the range",
        "from": best.floor,
        "to": best.ceiling,
        "probability": best.probability_rises,
        "final_lead": lead,
        "seeds": seeds,
    }
    runs = [curve.name for fit in tradeoff.fits for curve in fit.curves]
    return statement.judged(verdict, interval, statistic, needs=needs, runs=runs, where=study.where(setup))


def _levels_off(study: Study, setup: Setup, best: Optimum, rise: Claim) -> Claim:
    verdict: Verdict = "undecided"
    needs = "a rise of n* to level off from: seeds, or a wider range of compute"
    if best.ceiling_bound == ">=":
        needs = _past_the_end(best)
    elif best.rises and not best.saturates:
        needs = "more compute: n* still rises in the last tenth of the range"
    elif best.saturates and rise.verdict == "holds":
        verdict = "holds" if best.ceiling_interval[1] < best.largest else "undecided"
        needs = "seeds: the intervals allow n* to keep rising"
    statistic = {
        "value": best.ceiling,
        "unit": "n at the end",
        "largest_run": best.largest,
        "levels_off": best.saturates,
    }
    where = study.where(setup)
    return LEVELS_OFF.judged(verdict, best.ceiling_interval, statistic, needs=needs, runs=rise.runs, where=where)


def _final_lead(fits: Sequence[CurveFit], best: Optimum) -> float:
    """Lead of the last optimum over the first where both end; the crossing shows that the first led before."""
    first, last = (
        max((fit for fit in fits if fit.setting[1] == n), key=lambda fit: float(fit.at(np.array([fit.last]))[0]))
        for n in (best.floor, best.ceiling)
    )
    end = np.array([min(first.last, last.last)])
    return float(last.at(end)[0] - first.at(end)[0])


def _at_edge(best: Optimum) -> str | None:
    """What to run if n* may have risen outside the grid: from below the smallest n, or to above the largest."""
    if best.ceiling_bound == ">=":
        return _past_the_end(best)
    if best.floor_bound == "<=":
        led = "every" if best.ceiling_bound == "<=" else "small"
        return f"n below {best.smallest:.0f}: the smallest n led at {led} compute"
    return None


def _past_the_end(best: Optimum) -> str:
    """What to run if n* at the end is only a lower bound, and why."""
    leads = ": the largest n leads at the end" if best.estimate_C[-1] == best.largest else ""
    return f"{what_to_run(best)}{leads}"


# n* on two problem sets -----------------------------------------------------------------------------------------------


def about_difficulty(study: Study) -> Iterator[Claim]:
    """Hard problems level off at a smaller n."""
    sides = {d: _optima(study, [s for s in study.sweeps() if study.difficulty(s) == d]) for d in ("easy", "hard")}
    lacking = " and ".join(d for d in ("easy", "hard") if not sides[d])
    statement = Statement(
        "hard_saturates_lower",
        "On hard problems n* levels off at a smaller n than on easy ones.",
        _FIGURE_7,
        f"a sweep over n on a set that is {lacking} for the model (named so, or by its pass rate)",
    )
    if lacking:
        yield statement.lacks()
        return
    (easy, n_easy), (hard, n_hard) = sides["easy"][0], sides["hard"][0]
    statistic = {"unit": "doublings, easy over hard", "easy": n_easy.ceiling, "hard": n_hard.ceiling}
    yield _higher(statement, n_easy, n_hard, ("easy", "hard"), statistic, _names(easy, hard))


def about_sizes(study: Study) -> Iterator[Claim]:
    """Fewer problems cap n."""
    alike: dict[str, list[Setup]] = {}
    for setup in study.sweeps():
        if setup.size is not None:
            alike.setdefault(setup.apart_from_size, []).append(setup)
    for setups in alike.values():
        ordered = sorted(_optima(study, setups), key=lambda pair: pair[0].size or 0)
        if len({setup.size for setup, _ in ordered}) > 1:
            (small, n_small), (large, n_large) = ordered[0], ordered[-1]
            statistic = {
                "unit": "doublings, large set over small",
                "sizes": [small.size, large.size],
                "optima": [n_small.ceiling, n_large.ceiling],
            }
            yield _higher(SMALL_SETS, n_large, n_small, ("large", "small"), statistic, _names(small, large))
            return


def _optima(study: Study, setups: Sequence[Setup]) -> list[tuple[Setup, Optimum]]:
    laws = [(setup, study.law(setup)) for setup in setups]
    return [(setup, law.joint.rollouts) for setup, law in laws if law is not None and law.joint.rollouts is not None]


def _higher(
    statement: Statement,
    higher: Optimum,
    lower: Optimum,
    names: tuple[str, str],
    statistic: Mapping[str, Any],
    runs: Sequence[str],
) -> Claim:
    """Judge whether one n* lies above the other, by the interval of log2 of their ratio, from the far ends of both.

    An n* at the edge of the grid is only a bound, so the claim is undecided if the true n* could reverse it.
    """
    value = float(np.log2(higher.ceiling / lower.ceiling))
    low = float(np.log2(higher.ceiling_interval[0] / lower.ceiling_interval[1]))
    high = float(np.log2(higher.ceiling_interval[1] / lower.ceiling_interval[0]))
    interval = (min(low, value), max(high, value))
    verdict = above(interval)
    needs = "seeds, or a longer range of compute on both sets: the intervals of the two n* overlap"
    open_ends = [(lower, ">=", names[1]), (higher, "<=", names[0])]
    if verdict == "fails":
        open_ends = [(higher, ">=", names[0]), (lower, "<=", names[1])]
    bounded = next(((best, bound, name) for best, bound, name in open_ends if best.ceiling_bound == bound), None)
    if bounded is not None:
        best, bound, name = bounded
        wanted = what_to_run(best) if bound == ">=" else f"n below {best.smallest:.0f}"
        verdict, needs = "undecided", f"{wanted}, on the {name} set"
    return statement.judged(verdict, interval, {"value": value, **statistic}, needs=needs, runs=runs)


# n* in two metrics, or in two units of compute ------------------------------------------------------------------------


def about_metrics(study: Study) -> Iterator[Claim]:
    """worst@k wants a larger n on easy sets, best@k on hard ones."""
    for difficulty, wants, other in (("easy", "worst", "best"), ("hard", "best", "worst")):
        statement = Statement(
            f"{wants}_wants_larger_n_{difficulty}",
            f"On {difficulty} problems {wants}@k wants a larger n than {other}@k.",
            "IsoCompute section 4.1, figure 8",
            f"a sweep over n on {difficulty} problems that logs best@k and worst@k",
        )
        setup = next((s for s in study.sweeps() if study.difficulty(s) == difficulty), None)
        prefix, _, k = study.metric.rpartition("avg@")
        larger, smaller = (f"{prefix}{kind}@{k}" for kind in (wants, other))
        if setup is None or not all(name in run.metrics for run in setup.runs for name in (larger, smaller)):
            yield statement.lacks()
            continue
        a, b = (_final_optimum(study, setup, metric=metric) for metric in (larger, smaller))
        if a is None or b is None:
            yield replace(statement, needs=_SWEEP).lacks()
            continue
        value, interval = _log_ratio(a, b)
        statistic = {"value": value, "unit": f"doublings, {larger} over {smaller}", larger: a.n, smaller: b.n}
        needs = _edge(a, b) or "seeds, or finer n: the two optima do not differ significantly"
        yield statement.judged(above(interval), interval, statistic, needs=needs, runs=_names(setup))


def about_units(study: Study) -> Iterator[Claim]:
    """Counting compute in tokens gives the n* that rollouts give, within one doubling."""
    for setup in study.sweeps():
        if any("tokens" not in run.points.columns for run in setup.runs):
            continue
        rollouts, tokens = (_final_optimum(study, setup, unit=unit) for unit in ("rollouts", "tokens"))
        if rollouts is not None and tokens is not None:
            value, interval = _log_ratio(tokens, rollouts)
            edge = _edge(tokens, rollouts)
            verdict: Verdict = "undecided" if edge else inside(interval, 1.0 + 1e-9)
            unit = "doublings, tokens over rollouts"
            statistic = {"value": value, "unit": unit, "rollouts": rollouts.n, "tokens": tokens.n}
            needs, where = edge or "seeds: n* is uncertain in either unit", study.where(setup)
            yield TOKENS_AGREE.judged(verdict, interval, statistic, needs=needs, runs=_names(setup), where=where)
            return


@dataclass(frozen=True)
class _FinalN:
    """n* on the frontier at the largest compute."""

    n: float
    n_B: Array
    """n* in every replicate."""
    smallest: float
    largest: float
    """Largest n that was run."""


def _final_optimum(study: Study, setup: Setup, *, metric: str | None = None, unit: str | None = None) -> _FinalN | None:
    """n* at the largest compute that the settings share; None if there is none.

    A metric or unit that cannot be read gives a warning.
    """
    try:
        made = study.fittable(setup, metric=metric, unit=unit)
    except InputError as error:
        warnings.warn(f"{error} A claim that needs it stays undecided.", RunWarning, stacklevel=2)
        return None
    groups: dict[Setting, list[Curve]] = {}
    in_rollouts = made is not None and made[1] == "rollouts"
    for curve in made[0] if made else ():
        if curve.rollouts_per_problem is None:
            return None
        groups.setdefault(curve.setting, []).append(usable_points(curve))
    if len({n for _, n in groups}) < 2:
        return None
    values = np.concatenate([curve.values_C for group in groups.values() for curve in group])
    # Samples are independent between setups and metrics, but the same in two units of compute.
    rng = np.random.default_rng(zlib.crc32(f"{setup.name} {metric or study.metric}".encode()))
    of = list(groups.values())
    posterior = fit_posterior(of, upper=upper_bound(values), replicates=REPLICATES, rng=rng, in_rollouts=in_rollouts)
    fits = fits_of(of, posterior)
    front = frontier(fits)
    part = compared(fits, front.compute_C)
    if part.stop == part.start:
        return None
    n_S = np.array([float(fit.setting[1] or 0) for fit in fits])
    at = part.stop - 1
    return _FinalN(float(n_S[front.best_C[at]]), n_S[front.best_BC[:, at]], float(n_S.min()), float(n_S.max()))


def _edge(a: _FinalN, b: _FinalN) -> str | None:
    """What to run if both optima lie at the same edge of the grid, where neither is known."""
    if a.n == b.n == a.smallest:
        return f"n below {a.smallest:.0f}: both optima are the smallest n that was run"
    if a.n == b.n == a.largest:
        return f"n above {a.largest:.0f}: both optima are the largest n that was run"
    return None


def _log_ratio(a: _FinalN, b: _FinalN) -> tuple[float, Interval]:
    """log2 of one n* over another; their bootstraps are paired at random, as if the two were independent."""
    value = float(np.log2(a.n / b.n))
    low, high = percentiles(np.log2(a.n_B) - np.log2(b.n_B))
    return value, (min(low, value), max(high, value))


def _names(*setups: Setup) -> tuple[str, ...]:
    return tuple(run.name for setup in setups for run in setup.runs)
