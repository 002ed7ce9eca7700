"""Health checks of one run: the papers' warning signs, detected in the run's own log.

A finding depends only on the points up to the one where it shows, so later points do not remove it. The exception is
`no_progress`, which is withdrawn if the run learns late or collapses.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple

from isocompute.core.curve import choose_metric
from isocompute.core.errors import InputError
from isocompute.core.metric_names import REWARDS, TRAIN_REWARD, is_validation, reward_rank
from isocompute.core.run import POINT_COLUMNS, Run, RunSet, mark_non_finite
from isocompute.data.pass_rates import PassRates, read_pass_rates
from isocompute.diagnose import checks
from isocompute.diagnose.checks import MISMATCHES, CheckFunction, Severity, Signals, number_at
from isocompute.diagnose.series import VALIDATION_NOISE, Reward, batch_noise, reference_rows, reward_of, series_of

Verdict = Literal["healthy", "unknown", "warning", "problem"]
"""From best to worst; `unknown` is a run on which no check could run."""


@dataclass(frozen=True)
class Finding:
    """Something wrong with a run, and the point at which it was detected."""

    code: str
    severity: Severity
    since_step: int | None
    """The step at which it was detected, from the points up to there."""
    since_rollouts: float | None
    evidence: str
    advice: str
    source: str
    """Where the advice comes from."""

    def to_json(self) -> dict[str, Any]:
        """The fields as plain data."""
        return asdict(self)


@dataclass(frozen=True)
class Check:
    """One check: which finding it looks for, on which metrics, and why it could not run."""

    code: str
    metrics: tuple[str, ...]
    ran: bool
    needs: str | None = None
    """What to log, and at how many points, for the check to run; None if it ran."""


@dataclass(frozen=True)
class Health:
    """A run's verdict, the findings behind it, and which checks could run."""

    run: str
    verdict: Verdict
    findings: tuple[Finding, ...]
    """In the order in which they were detected."""
    checks: tuple[Check, ...]

    def to_json(self) -> dict[str, Any]:
        """The fields as plain data."""
        checks = [asdict(check) | {"metrics": list(check.metrics)} for check in self.checks]
        return asdict(self) | {"findings": [asdict(finding) for finding in self.findings], "checks": checks}


class _Spec(NamedTuple):
    """A check: the metrics it reads, what to log for it to run, the function, and what the papers advise."""

    metrics: tuple[str, ...]
    needs: str
    run: CheckFunction
    advice: str
    source: str


_ISOCOMPUTE, _SCALERL = "IsoCompute (2603.12151)", "ScaleRL (2510.13786)"
_EVERY_SET = ("avg@k", TRAIN_REWARD)
_FINITE = ("loss", "grad_norm", "entropy")
"""Metrics, besides the rewards, that must be finite at every point."""
_KL_FLOOR = 0.1
"""Nats per token; growth of a KL below this does not matter."""
_ENTROPY, _LENGTH = ("entropy",), ("response_length",)

_CHECKS: dict[str, _Spec] = {
    "non_finite": _Spec(
        _FINITE,
        "a reward, loss, grad_norm or entropy",
        checks.check_finite,
        "nothing is learned from here on: go back to the last checkpoint before it; lower the learning rate, clip the "
        "gradient, look for an overflow in half precision or a division by a standard deviation of 0",
        f"{_ISOCOMPUTE} section 3, factor 3 (an unstable learning rate); {_SCALERL} section 3.2 (logits in FP32); the "
        "rest is our reading",
    ),
    "reward_fall": _Spec(
        _EVERY_SET,
        "a reward: avg@k or train/avg, 2 points",
        checks.check_reward_fall,
        "go back to the checkpoint of the best reward; lower the learning rate (√B scaling from a base that is stable) "
        "and make fewer updates on a batch",
        f"{_ISOCOMPUTE} section 3, factor 3 and figure 4; {_SCALERL} section 3.1",
    ),
    "no_progress": _Spec(
        (TRAIN_REWARD,),
        "a reward: avg@k or train/avg, 8 points",
        checks.check_progress,
        "raise the learning rate (√B scaling from a base that learns), raise n, and choose problems that are neither "
        "solved nor too hard; read some responses with their scores",
        f"{_ISOCOMPUTE} section 3, factor 3 (the learning rate); {_SCALERL} section 3.2 (problems that are solved); "
        "the rest is our interpretation",
    ),
    "entropy_collapse": _Spec(
        _ENTROPY,
        "entropy, 2 points",
        checks.drift_check("entropy", "entropy", up=False, warning=3, problem=3),
        "on easy sets add an entropy bonus together with a KL anchor; lower the learning rate; raise n",
        f"{_ISOCOMPUTE} section 3, factor 2 and figure 3",
    ),
    "entropy_explosion": _Spec(
        _ENTROPY,
        "entropy, 2 points",
        checks.drift_check("entropy", "entropy", up=True, warning=3, problem=3),
        "on hard sets remove the entropy bonus, or anchor it with a KL term; lower the learning rate",
        f"{_ISOCOMPUTE} section 3, factor 2 and figure 3",
    ),
    "length_explosion": _Spec(
        _LENGTH,
        "response_length, 2 points",
        checks.drift_check("response_length", "response length", up=True, warning=2, problem=3),
        "on hard sets remove the entropy bonus; cap lengths by forced interruption; a larger response budget if "
        "long answers are right",
        f"{_ISOCOMPUTE} section 3, factor 2; {_SCALERL} appendix A.10 and A.15",
    ),
    "length_collapse": _Spec(
        _LENGTH,
        "response_length, 2 points",
        checks.drift_check("response_length", "response length", up=False, warning=2, problem=3),
        "read some responses: the policy has stopped answering or found a short cut; go back to the best checkpoint "
        "and lower the learning rate",
        f"{_ISOCOMPUTE} section 3, factor 3 (an unstable learning rate); the rest is our interpretation",
    ),
    "truncation": _Spec(
        ("truncated",),
        "truncated (the share of truncated responses), 5 points",
        checks.check_truncation,
        "a larger response budget or forced interruption; stable runs stay under 5% for over 90% of their steps, 10 to "
        "15% went with instability",
        f"{_SCALERL} appendix A.15",
    ),
    "kl_drift": _Spec(
        ("kl",),
        "kl (to the base model), 2 points",
        checks.drift_check("kl", "KL", up=True, warning=3, problem=None, floor=_KL_FLOOR, smooth=5),
        "the policy moves away from the base model without improving: a KL term on easy sets, a lower learning rate",
        f"{_ISOCOMPUTE} section 3, factor 2",
    ),
    "zero_variance": _Spec(
        ("zero_variance",),
        "zero_variance (the share of zero-variance groups), 10 points, or 5 with pass rates",
        checks.check_zero_variance,
        "these groups give no gradient: drop them from the average, stop sampling problems at a pass rate of .9, or "
        "raise n on hard sets",
        f"{_SCALERL} section 3.2 and figure 6",
    ),
    "logprob_gap": _Spec(
        tuple(MISMATCHES),
        "a mismatch between sampler and trainer, such as logprob_gap, 5 points",
        checks.check_logprob_gap,
        "compute the logits in FP32 on both sampler and trainer, and use truncated importance sampling",
        f"{_SCALERL} section 3.2 and figure 5b; {_ISOCOMPUTE} appendix A",
    ),
    "grad_norm_spikes": _Spec(
        ("grad_norm",),
        "grad_norm, 13 points",
        checks.check_spikes,
        "lower the learning rate (√B scaling), a longer warm-up, a tighter gradient clip",
        f"{_ISOCOMPUTE} section 3, factor 3",
    ),
    "polarisation": _Spec(
        ("train/pass_rates",),
        "pass rates of problems (pass_rates.jsonl or train/pass_rates), 2 points",
        checks.check_polarisation,
        "some problems improve at the cost of others: raise n, which spreads progress; a KL term; similar problems",
        f"{_ISOCOMPUTE} section 5.1 and figure 11",
    ),
    "train_validation_gap": _Spec(
        (TRAIN_REWARD,),
        "train/avg and 4 points of a reward on held-out problems",
        checks.check_train_validation_gap,
        "the training set is being memorised: more problems, a smaller n or an earlier stop; keep the best checkpoint",
        f"{_ISOCOMPUTE} section 5.2 and figure 13",
    ),
}
_NO_SUCCESS = (
    "take easier problems, or a larger n so that some rollout succeeds; check the verifier on answers known to be "
    "right",
    f"{_SCALERL} section 3.2 (zero-variance groups give no gradient); the rest is our interpretation",
)
"""Advice and source of `no_progress` as a problem: training has no success at all."""


def check(run: Run, *, paths: Sequence[str] = ()) -> Health:
    """Check one run. `paths` are the files it was read from, to find its `pass_rates.jsonl`.

    >>> import isocompute
    >>> check(isocompute.load("runs/easy-32x8")[0]).verdict
    'healthy'
    """
    run = replace(run, points=mark_non_finite(run.points, but=POINT_COLUMNS))
    signals = _signals(run, paths)
    findings: list[tuple[int, Finding]] = []
    ran = []
    for code, spec in _CHECKS.items():
        found = spec.run(signals)
        missing = found if isinstance(found, str) else spec.needs if found is None else None
        ran.append(Check(code, _metrics_read(signals, spec.metrics), ran=missing is None, needs=missing))
        for row, severity, evidence in found if isinstance(found, list) else ():
            step, rollouts = number_at(run, "step", row), number_at(run, "rollouts", row)
            batch = (run.settings.problems_per_batch or 0) * (run.settings.rollouts_per_problem or 0)
            if rollouts is None and step is not None and batch:
                rollouts = step * batch
            no_success = code == "no_progress" and severity == "problem"
            advice, source = _NO_SUCCESS if no_success else (spec.advice, spec.source)
            since = None if step is None else int(step)
            findings.append((row, Finding(code, severity, since, rollouts, evidence, advice, source)))
    ordered = tuple(finding for _, finding in sorted(findings, key=lambda pair: pair[0]))
    severities = {finding.severity for finding in ordered}
    known = any(each.ran for each in ran if each.code != "non_finite")  # finite values alone are no sign of health
    without_findings: Verdict = "healthy" if known else "unknown"
    verdict: Verdict = "problem" if "problem" in severities else "warning" if severities else without_findings
    return Health(run.name, verdict, ordered, tuple(ran))


def _metrics_read(signals: Signals, names: tuple[str, ...]) -> tuple[str, ...]:
    """The metrics that a check reads and the run logs."""
    if names == _FINITE:
        return signals.must_be_finite
    if names == _EVERY_SET:
        return tuple(r.series.name for r in (*signals.held_out, signals.train) if r is not None)
    if names == (TRAIN_REWARD,):
        return tuple(reward.series.name for reward in signals.rewards)
    return tuple(name for name in names if series_of(signals.run, name) is not None)


# What the checks read -------------------------------------------------------------------------------------------------

_NO_REWARDS = ("entropy", "kl", "response_length", "truncated", "zero_variance", "grad_norm", "learning_rate", "loss")
_NAMED_REWARD = re.compile(
    r"(?:.*[^a-z])?(?:reward|accuracy|acc|score|pass|success|solved?|correct|return)s?(?:[^a-z].*)?", re.IGNORECASE
)
"""Names of rewards besides those in `metric_names`: `choose_metric` takes any name if it is the only metric."""
_SETS = re.compile(r"(?:(?!exact/|train/)[^/]+/)?avg@(\d{1,6})(?:/(?!error$).+)?")
"""Mean rewards of held-out sets: `avg@k`, `avg@k/NAME` and `NAME/avg@k`, without other columns of one evaluation."""
_LEAST_NOISE = 0.8
"""Lower bound on the noise of a further set, as a share of its prior: of many small sets some look quiet by chance."""


def _signals(run: Run, paths: Sequence[str]) -> Signals:
    no_rewards = [name for name in (*_NO_REWARDS, *MISMATCHES) if name in run.points.columns]
    try:
        metric = choose_metric(RunSet((replace(run, points=run.points.drop(no_rewards)),)), any_number=False)
    except InputError:  # no metric is clearly a reward: the checks that need none still run
        metric = TRAIN_REWARD
    metric = metric if _is_reward(metric) else TRAIN_REWARD
    is_held_out = reward_rank(metric) < reward_rank(TRAIN_REWARD) or not metric.lower().startswith("train")
    held_out, trained = (metric, TRAIN_REWARD) if is_held_out else (None, metric)
    train = _reward(run, trained, batch_noise(run.settings.problems_per_batch))
    validation = None if held_out is None else _reward(run, held_out, VALIDATION_NOISE)
    names = (*([held_out] if held_out else []), trained, *_FINITE)
    rewards = [r for r in (validation, train) if r is not None]
    rows = run.points.height
    return Signals(
        run,
        tuple(name for name in names if name in run.metrics),
        validation,
        _other_sets(run, held_out) if held_out else (),
        train,
        reference_rows(rows, rewards, lambda reward: reward.best_at_T),
        reference_rows(rows, rewards, lambda reward: reward.near_best_at_T),
        _rates(run, paths),
    )


def _is_reward(metric: str) -> bool:
    """Whether the name of a metric is that of a reward."""
    if reward_rank(metric) < len(REWARDS):
        return True
    named = is_validation(metric) or _NAMED_REWARD.fullmatch(metric) is not None
    return named and not any(other in metric.lower() for other in _NO_REWARDS)


def _reward(run: Run, name: str, prior: float) -> Reward | None:
    series = series_of(run, name)
    return None if series is None else reward_of(series, prior=prior)


def _other_sets(run: Run, judged: str) -> tuple[Reward, ...]:
    """Rewards of the held-out sets besides the one that the run is judged by.

    The prior noise is binomial, for k samples of each of thirty problems, the size of AIME.
    """
    out = []
    for name in run.metrics:
        match = _SETS.fullmatch(name)
        series = series_of(run, name) if match and name != judged else None
        if match and series is not None:
            noise = max(VALIDATION_NOISE, 0.5 / math.sqrt(30 * max(1, int(match[1]))))
            out.append(reward_of(series, prior=noise, floor=_LEAST_NOISE * noise))
    return tuple(out)


def _rates(run: Run, paths: Sequence[str]) -> dict[int, PassRates]:
    logged = [rates for rates in read_pass_rates(run, paths) if rates.set == "train"]
    step = run.points.get_column("step", default=None)
    rows = {} if step is None else {value: row for row, value in enumerate(step)}
    return {rows[rates.step]: rates for rates in logged if rates.step in rows}
