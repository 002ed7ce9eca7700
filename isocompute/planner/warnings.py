"""Warnings about a plan: the difficulty of the problem set, overfitting, zero-variance groups, too few updates.

Bands of difficulty are the IsoCompute paper's (section 3, figure 14): easy .3-.6, hard up to .0625, very easy from .6.
"""

from __future__ import annotations

from dataclasses import dataclass

from isocompute.core.allocation import Allocation
from isocompute.core.arrays import Array
from isocompute.core.formatting import number, plural, thousands
from isocompute.core.metrics import zero_variance_share

HARD, EASY, VERY_EASY = 0.0625, 0.3, 0.6
SMALL_SET = 1000
"""Between the paper's D = 500, where n = 512 overfits, and D = 6,000, where it does not."""
SMALL_SET_ROLLOUTS = 256
_MANY_EPOCHS = 100.0
"""The paper's longest easy run at n = 8, 4M rollouts over 6,000 problems, is 83 epochs."""
_OFTEN_SMALL = 250.0
"""Rollouts per problem, C/D, beyond which a small set overfits.

With 400 problems, a small decoder's validation reward fell after 1e5 rollouts at every n. With 200 problems it fell
after 1,500 to 2,500 rollouts per problem (docs/studies/lm-law.md)."""
_OFTEN_LARGE = 700.0
"""Rollouts per problem, C/D, beyond which a larger set may overfit: more than in any data.

The paper's validation reward rose up to 4M rollouts on 6,000 problems, 667 of each. A small decoder had a gap of .1 at
333 rollouts of each of 6,000 problems, and none at 160 of each of 100,000."""
_WARMUPS = 10
"""A run should be this many times as long as its warm-up."""
_FEW_UPDATES = 20
"""A run should have this many updates, whatever its warm-up."""
_WASTED = 0.5
"""Share of zero-variance groups above which a larger n is suggested."""
_UNSTABLE_TRUNCATION, _HEALTHY_TRUNCATION = 0.10, 0.05
"""Shares of truncated responses in unstable and in healthy runs."""
_HARD_ONLY, _MANY_VERY_EASY, _MOSTLY_UNSOLVED = 0.9, 0.25, 0.5
"""Shares of a problem set above which its mix gets a warning."""


@dataclass(frozen=True)
class PlanWarning:
    """A warning: `code` for programs, `message` for people."""

    code: str
    message: str


@dataclass(frozen=True)
class Mix:
    """The mix of a problem set: its share in each of the paper's bands of difficulty."""

    problems: int
    mean: float
    shares: dict[str, float]
    """Shares of `unsolved` (exactly 0), `hard` (up to .0625, unsolved ones included), `between` (.0625–.3), `easy`
    (.3–.6) and `very_easy` (from .6)."""
    difficulty: str
    """`hard` if more than half of the problems are, else `easy`; it decides about KL and entropy terms."""


def classify(rates_P: Array) -> Mix:
    """The mix of a set of pass rates.

    >>> classify(np.array([0.0, 0.05, 0.02, 0.5])).difficulty
    'hard'
    """
    hard_P = rates_P <= HARD
    shares = {
        "unsolved": float((rates_P <= 0).mean()),
        "hard": float(hard_P.mean()),
        "between": float((~hard_P & (rates_P < EASY)).mean()),
        "easy": float(((rates_P >= EASY) & (rates_P <= VERY_EASY)).mean()),
        "very_easy": float((rates_P > VERY_EASY).mean()),
    }
    return Mix(len(rates_P), float(rates_P.mean()), shares, "hard" if shares["hard"] > 0.5 else "easy")


@dataclass(frozen=True)
class BaseRates:
    """Pass rates of the base model on the training problems."""

    measured_P: Array
    latent_P: Array
    """The true rates, estimated from measured ones, which have too many zeros and ones if samples are few."""
    samples: int | None = None
    """Samples per problem; None if the rates are exact."""

    def zero_variance(self, n: int) -> tuple[float, float]:
        """Expected share of zero-variance groups at the start, by the measured and by the latent rates."""
        return zero_variance_share(self.measured_P, n), zero_variance_share(self.latent_P, n)


def epochs_of(allocation: Allocation, problems: int) -> float:
    """Passes over a set of this many problems, or how often each problem is drawn.

    >>> epochs_of(Allocation(32, 256, 250), 400)
    20.0
    """
    return allocation.problems_per_batch * allocation.update_steps / problems


def enough_updates(warmup_steps: int) -> int:
    """Least number of updates in which a run can learn much."""
    return max(_WARMUPS * warmup_steps, _FEW_UPDATES)


def run_warnings(allocation: Allocation, *, problems: int | None, warmup_steps: int) -> list[PlanWarning]:
    """Warn of too many or too few epochs, of a set too small for this n, and of too few updates."""
    out = []
    n, m = allocation.rollouts_per_problem, allocation.update_steps
    if problems is not None:
        if problems <= SMALL_SET and n > SMALL_SET_ROLLOUTS:
            out.append(
                PlanWarning(
                    "small_set",
                    f"{thousands(problems, 'problem')}: on 500 the paper's frontier ends at n = {SMALL_SET_ROLLOUTS} "
                    "and n = 512 overfits (figure 13); cap it with --n or add problems",
                )
            )
        out += _overfitting(allocation, problems)
    if m < enough_updates(warmup_steps):
        out.append(
            PlanWarning(
                "few_updates",
                f"{plural(m, 'update')}, {warmup_steps} of them warm-up: too few to learn much; a smaller "
                "batch gives more (--max-batch, --min-updates)",
            )
        )
    return out


def _overfitting(allocation: Allocation, problems: int) -> list[PlanWarning]:
    """Warn if problems are seen too often, or some of them never.

    Overfitting depends on the number of rollouts per problem, C/D. With 200 problems, validation reward turned after
    375 passes at n = 4, and after 20 to 40 passes at n = 64 and 128. All of these are 1,500 to 2,500 rollouts per
    problem.
    """
    epochs, each = epochs_of(allocation, problems), allocation.compute / problems
    few = problems <= SMALL_SET
    if epochs < 1:
        message = f"{epochs:.0%} of the {thousands(problems, 'problem')} are seen; the rest plays no part"
        return [PlanWarning("under_one_epoch", message)]
    if epochs <= _MANY_EPOCHS and (epochs <= 1 or each <= (_OFTEN_SMALL if few else _OFTEN_LARGE)):
        return []
    seen = (
        "a small model's validation reward fell from 250 of each of 400 on"
        if few and each > _OFTEN_SMALL
        else "the paper's 6,000 problems had at most 83 passes and 667 rollouts of each; there are no data beyond"
    )
    return [
        PlanWarning(
            "many_epochs" if epochs > _MANY_EPOCHS else "overfitting",
            f"{number(epochs)} passes over {thousands(problems, 'problem')}, {number(each)} rollouts of each: expect "
            f"overfitting ({seen}); watch the gap between training and validation reward, keep the best checkpoint, or "
            "add problems",
        )
    ]


def data_warnings(
    *,
    allocation: Allocation,
    mix: Mix | None,
    difficulty: str | None,
    rates: BaseRates | None,
    truncated: float | None,
    filtered: bool,
) -> list[PlanWarning]:
    """Warn of zero-variance groups, hard-only or very easy sets, a contradicting difficulty, and truncation."""
    out = [] if rates is None else _zero_variance(rates, allocation.rollouts_per_problem, filtered=filtered)
    if mix is not None:
        hard, very_easy, unsolved = (mix.shares[band] for band in ("hard", "very_easy", "unsolved"))
        found = [
            (
                difficulty != mix.difficulty,
                "difficulty_contradicts",
                f"--difficulty {difficulty}, but with {hard:.0%} of the pass rates up to {HARD} the set is "
                f"{mix.difficulty}: KL and entropy follow --difficulty; without it, the pass rates",
            ),
            (
                hard > _HARD_ONLY,
                "hard_only",
                f"{hard:.0%} of the problems are hard: training on hard ones alone forgets easy ones; mixing easy ones "
                "in costs little on the hard (IsoCompute figure 14)",
            ),
            (
                very_easy > _MANY_VERY_EASY,
                "very_easy",
                f"{very_easy:.0%} of the problems are above a pass rate of .6: such data does not help and can hurt "
                "(IsoCompute figure 14); leave them out",
            ),
            (
                unsolved > _MOSTLY_UNSOLVED,
                "no_coverage",
                f"{unsolved:.0%} of the problems were never solved by the base model: they teach nothing until a "
                "rollout succeeds; larger n, or easier problems first",
            ),
        ]
        out += [PlanWarning(code, message) for holds, code, message in found if holds]
    if truncated is not None and truncated > _HEALTHY_TRUNCATION:
        state = "10–15% is what unstable runs show" if truncated >= _UNSTABLE_TRUNCATION else "healthy runs show less"
        out.append(
            PlanWarning(
                "truncation",
                f"{truncated:.0%} of responses are cut off: {state}, ScaleRL stays under 5% (arXiv 2510.13786); raise "
                "the response length or shorten the responses",
            )
        )
    return out


def _zero_variance(rates: BaseRates, n: int, *, filtered: bool) -> list[PlanWarning]:
    """Warn if more than half of the groups will have zero variance, by the measured and by the latent rates."""
    share, latent = rates.zero_variance(n)
    if share <= _WASTED:
        return []
    message = f"{share:.0%} of groups are expected to have zero variance at n = {n}, at the start"
    if rates.samples is not None and latent < share:
        message += (
            f", by the rates as measured; {latent:.0%} by those behind them: {plural(rates.samples, 'sample')} a "
            "problem show too many zeros and ones"
        )
    message += (
        "; the filter drops such groups"
        if filtered
        else "; their rollouts have no advantage: only KL and entropy terms, where there are any, move them"
    )
    if latent > _WASTED:
        larger = (2**i for i in range(1, 12) if 2**i > n and rates.zero_variance(2**i)[1] <= _WASTED)
        useful = next(larger, None)
        message += "; no n brings it under a half" if useful is None else f"; n = {useful} would bring it under a half"
    return [PlanWarning("zero_variance", message)]


def metric_warnings(metric: str, difficulty: str | None, *, law_metric: str) -> list[PlanWarning]:
    """Warn if the law is of another metric than best@k or worst@k, whose best n differ (figure 8 of the paper)."""
    kind = metric.rpartition("/")[2].partition("@")[0]
    if kind not in ("best", "worst") or metric == law_metric:
        return []
    larger = (kind == "best") == (difficulty == "hard")
    what = "coverage (best@k)" if kind == "best" else "sharpening (worst@k)"
    return [
        PlanWarning(
            "metric_differs",
            f"the law is of {law_metric}; {what} wants a {'larger' if larger else 'smaller'} n than "
            f"{'worst' if kind == 'best' else 'best'}@k does on {'hard' if difficulty == 'hard' else 'easy'} sets "
            f"(IsoCompute figure 8): fit runs on {metric} instead",
        )
    ]
