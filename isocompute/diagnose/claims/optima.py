"""Claims that the best number of rollouts per problem, n*, moves with compute."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from isocompute.diagnose.claims.model import Claim, Statement, Verdict
from isocompute.diagnose.claims.setups import Setup, Study
from isocompute.diagnose.claims.statistics import ONE_SEED
from isocompute.law import Law
from isocompute.law.curve import scale_of
from isocompute.law.fits import CurveFit
from isocompute.law.law import Tradeoff
from isocompute.law.optimum import Optimum, beyond

__all__ = ["SWEEP", "about_algorithms", "about_batches", "about_optimum"]

_MOVED = 0.5
"""Doublings by which n* must move to count as moving, as in `law.optimum`."""
SWEEP = "runs at three or more n with one Bp and recipe, evaluated over one range of compute"


def about_optimum(study: Study) -> Iterator[Claim]:
    """n* rises with compute, and levels off."""
    rises = Statement(
        "optimum_rises",
        "The best number of rollouts per problem, n*, rises with compute.",
        "IsoCompute section 4.1, figure 7",
    )
    levels = Statement("optimum_saturates", "n* levels off.", "IsoCompute section 4.1, figure 7")
    found = False
    for setup in study.sweeps():
        law = study.law(setup)
        if law is not None and law.joint.rollouts is not None:
            found = True
            rise = _rises(rises, study, setup, law, law.joint)
            yield rise
            yield _levels_off(levels, study, setup, law.joint.rollouts, rise)
    if not found:
        yield rises.lacks(SWEEP)
        yield levels.lacks(SWEEP)


def about_batches(study: Study) -> Iterator[Claim]:
    """At a fixed batch size the optimum moves from problems to rollouts as updates grow."""
    what = Statement(
        "fixed_batch_moves_to_n",
        "At a fixed batch size the best allocation moves from problems to rollouts per problem as updates grow.",
        "IsoCompute section 4.2, figure 9",
    )
    found = False
    for setup in study.sweeps():
        law = study.law(setup)
        batches = [t for t in law.by_batch if t.rollouts is not None] if law else []
        if law is not None and batches:
            found = True
            widest = max(batches, key=lambda t: len(t.fits))
            claim = _rises(what, study, setup, law, widest)
            yield replace(claim, statistic=claim.statistic | {"batch_size": widest.value})
    if not found:
        yield what.lacks("runs at three or more (Bp, n) with one product Bp · n")


def about_algorithms(study: Study) -> Iterator[Claim]:
    """The rise of n* under PPO and CISPO."""
    for code, name, key, wanted in (
        ("rises_ppo", "PPO", "advantage", "gae"),
        ("rises_cispo", "CISPO", "loss", "cispo"),
    ):
        what = Statement(code, f"n* rises with compute under {name} too.", "IsoCompute appendix F, figure 25")
        setup = next((s for s in study.sweeps() if s.recipe.get(key) == wanted), None)
        law = None if setup is None else study.law(setup)
        if setup is None or law is None or law.joint.rollouts is None:
            yield what.lacks(f"a sweep over n with recipe.{key} = '{wanted}'")
        else:
            yield replace(_rises(what, study, setup, law, law.joint), code=code)


def _rises(what: Statement, study: Study, setup: Setup, law: Law, tradeoff: Tradeoff) -> Claim:
    best = tradeoff.rollouts
    assert best is not None, "the caller looks"
    interval = best.L_interval
    lead, seeds = _final_lead(tradeoff.fits, best), min(len(fit.curves) for fit in tradeoff.fits)
    error = ONE_SEED * scale_of(np.concatenate([run.curve.values_C for run in law.runs]))
    verdict: Verdict = "undecided"
    needs: str | None = "seeds, or all n over one range of compute: the intervals allow n* to stand still"
    if best.rises and interval[0] > _MOVED:
        sure = seeds > 1 or lead >= error
        verdict = "holds" if sure else "undecided"
        needs = None if sure else f"seeds: with one, a lead under {error:.3g} is not told from chance (here {lead:.3f})"
    elif interval[1] <= _MOVED:
        needs = _at_edge(best)
        verdict = "undecided" if needs else "fails"
    return what.judged(
        verdict,
        statistic={
            "value": best.L,
            "unit": "doublings of n* over the range",
            "from": best.floor,
            "to": best.ceiling,
            "probability": best.probability_rises,
            "final_lead": lead,
            "seeds": seeds,
        },
        interval=interval,
        needs=needs,
        runs=tuple(curve.name for fit in tradeoff.fits for curve in fit.curves),
        where=study.where(setup),
    )


def _final_lead(fits: Sequence[CurveFit], best: Optimum) -> float:
    """Lead of the last optimum over the first one where both end: that the first led before, the crossing shows."""
    first, last = (
        max((fit for fit in fits if fit.setting[1] == n), key=lambda fit: float(fit.at(np.array([fit.last]))[0]))
        for n in (best.estimate_C[0], best.estimate_C[-1])
    )
    end = np.array([min(first.last, last.last)])
    return float(last.at(end)[0] - first.at(end)[0])


def _at_edge(best: Optimum) -> str | None:
    """What to run where n* may have risen unseen: from below the smallest n, or to one above what was run that far."""
    if best.ceiling_bound == ">=":
        return _past_the_end(best)
    if best.floor_bound == "<=":
        led = "every" if best.ceiling_bound == "<=" else "small"
        return f"n below {best.smallest:.0f}: the smallest n led at {led} compute"
    return None


def _past_the_end(best: Optimum) -> str:
    """What to run where n* at the end is a lower bound, and why."""
    leads = ": the largest n leads at the end" if best.estimate_C[-1] == best.largest else ""
    return f"{beyond(best)}{leads}"


def _levels_off(what: Statement, study: Study, setup: Setup, best: Optimum, rise: Claim) -> Claim:
    interval = best.ceiling_interval
    verdict: Verdict = "undecided"
    needs: str | None = "a rise of n* to level off from: seeds, or a wider range of compute"
    if best.ceiling_bound == ">=":
        needs = _past_the_end(best)
    elif best.rises and not best.saturates:
        needs = "more compute: n* still rises in the last tenth of the range"
    elif best.saturates and rise.verdict == "holds":
        sure = interval[1] < best.largest
        verdict, needs = ("holds", None) if sure else ("undecided", "seeds: the intervals allow n* to go on rising")
    return what.judged(
        verdict,
        statistic={
            "value": best.ceiling,
            "unit": "n at the end",
            "largest_run": best.largest,
            "levels_off": best.saturates,
        },
        interval=interval,
        needs=needs,
        runs=rise.runs,
        where=study.where(setup),
    )
