"""What a health check says: a verdict, the findings behind it, and which checks could run at all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from isocompute.core.errors import InputError
from isocompute.core.metric_names import REWARDS, TRAINED, is_validation, rank
from isocompute.core.not_numbers import mark_non_finite
from isocompute.core.run import POINT_COLUMNS, Run, RunSet
from isocompute.data.pass_rates import PassRates, read_pass_rates
from isocompute.diagnose.checks import (
    Look,
    Watched,
    drifts,
    look_at_fall,
    look_at_gap,
    look_at_logprob_gap,
    look_at_numbers,
    look_at_pass_rates,
    look_at_progress,
    look_at_spikes,
    look_at_truncation,
    look_at_zero_variance,
    number_at,
)
from isocompute.diagnose.series import (
    MISMATCHES,
    VALIDATION_NOISE,
    Reward,
    batch_noise,
    reference_rows,
    reward_of,
    series_of,
    set_noise,
)
from isocompute.law.curves import choose_metric

__all__ = ["Check", "Finding", "Health", "Severity", "Verdict", "advice_on", "check"]


Severity = Literal["warning", "problem"]
Verdict = Literal["healthy", "unknown", "warning", "problem"]
"""From best to worst; `unknown` is a run that no check could say anything of."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a run, from a point of its training on."""

    code: str
    severity: Severity
    since_step: int | None
    """The point at which it showed: what came later was not needed to see it."""
    since_rollouts: float | None
    evidence: str
    advice: str
    source: str
    """Where the advice comes from."""

    def to_json(self) -> dict[str, Any]:
        """As plain data, the keys as here."""
        return asdict(self)


@dataclass(frozen=True)
class Check:
    """One check: which finding it looks for, on which metrics, and why it could not run where it could not."""

    code: str
    metrics: tuple[str, ...]
    ran: bool
    needs: str | None = None
    """What to log for it to run, and how many points of it; None where it ran."""


@dataclass(frozen=True)
class Health:
    """A run's health."""

    run: str
    verdict: Verdict
    findings: tuple[Finding, ...]
    """In the order in which they showed."""
    checks: tuple[Check, ...]

    def to_json(self) -> dict[str, Any]:
        """As plain data: `run`, `verdict`, `findings`, `checks[{code, metrics, ran, needs}]`."""
        return {
            "run": self.run,
            "verdict": self.verdict,
            "findings": [finding.to_json() for finding in self.findings],
            "checks": [asdict(check) | {"metrics": list(check.metrics)} for check in self.checks],
        }


# What the papers say to each finding.

_ISOCOMPUTE = "IsoCompute (2603.12151)"
_SCALERL = "ScaleRL (2510.13786)"

_ADVICE: dict[str, tuple[str, str]] = {
    "non_finite": (
        "nothing is learned from here on: go back to the last checkpoint before it; lower the learning rate, clip the "
        "gradient, look for an overflow in half precision or a division by a spread of 0",
        f"{_ISOCOMPUTE} section 3, factor 3 (an unstable learning rate); {_SCALERL} section 3.2 (logits in FP32); the "
        "rest is our reading",
    ),
    "reward_fall": (
        "go back to the checkpoint of the best reward; lower the learning rate (√B scaling from a base that is stable) "
        "and make fewer updates on a batch",
        f"{_ISOCOMPUTE} section 3, factor 3 and figure 4; {_SCALERL} section 3.1",
    ),
    "no_progress": (
        "raise the learning rate (√B scaling from a base that learns), raise n, and choose problems that are neither "
        "solved nor out of reach; read some responses beside their scores",
        f"{_ISOCOMPUTE} section 3, factor 3 (the learning rate); {_SCALERL} section 3.2 (problems that are solved); "
        "the rest is our reading",
    ),
    "entropy_collapse": (
        "on easy sets add an entropy bonus together with a KL anchor; lower the learning rate; raise n",
        f"{_ISOCOMPUTE} section 3, factor 2 and figure 3",
    ),
    "entropy_explosion": (
        "on hard sets take the entropy bonus away, or anchor it with a KL term; lower the learning rate",
        f"{_ISOCOMPUTE} section 3, factor 2 and figure 3",
    ),
    "length_explosion": (
        "on hard sets take the entropy bonus away; cap lengths by forced interruption; a larger response budget where "
        "long answers are right",
        f"{_ISOCOMPUTE} section 3, factor 2; {_SCALERL} appendix A.10 and A.15",
    ),
    "length_collapse": (
        "read some responses: the policy has stopped answering or found a short cut; go back to the best checkpoint "
        "and lower the learning rate",
        f"{_ISOCOMPUTE} section 3, factor 3 (an unstable learning rate); that short answers show it is our reading",
    ),
    "truncation": (
        "a larger response budget or forced interruption; stable runs stay under 5% for over 90% of their steps, 10 to "
        "15% went with instability",
        f"{_SCALERL} appendix A.15",
    ),
    "kl_drift": (
        "the policy leaves the base model without getting better: a KL term on easy sets, a lower learning rate",
        f"{_ISOCOMPUTE} section 3, factor 2",
    ),
    "zero_variance": (
        "these groups give no gradient: drop them from the average, stop sampling problems at a pass rate of .9, or "
        "raise n on hard sets",
        f"{_SCALERL} section 3.2 and figure 6",
    ),
    "logprob_gap": (
        "compute the logits in FP32 on sampler and trainer alike, and weigh by truncated importance sampling",
        f"{_SCALERL} section 3.2 and figure 5b; {_ISOCOMPUTE} appendix A",
    ),
    "grad_norm_spikes": (
        "lower the learning rate (√B scaling), a longer warm-up, a tighter gradient clip",
        f"{_ISOCOMPUTE} section 3, factor 3",
    ),
    "polarisation": (
        "some problems are given up for others: raise n, which spreads progress; a KL term; fewer unlike problems",
        f"{_ISOCOMPUTE} section 5.1 and figure 11",
    ),
    "train_validation_gap": (
        "the set is being learned by heart: more problems, a smaller n or an earlier stop; keep the best checkpoint",
        f"{_ISOCOMPUTE} section 5.2 and figure 13",
    ),
}
"""Code → advice and source."""

_AS_A_PROBLEM: dict[str, tuple[str, str]] = {
    "no_progress": (
        "take easier problems, or a larger n so that some rollout succeeds; check the verifier on answers that are "
        "known to be right",
        f"{_SCALERL} section 3.2 (groups that score all the same give no gradient); the rest is our reading",
    ),
}
"""The same of findings that need other advice where they are a problem."""


def advice_on(code: str, severity: Severity) -> tuple[str, str]:
    """Advice and source for a finding."""
    return (_AS_A_PROBLEM if severity == "problem" else _ADVICE).get(code, _ADVICE[code])


# All checks of a run.

_NO_REWARDS = ("entropy", "kl", "response_length", "truncated", "zero_variance", "grad_norm", "learning_rate", "loss")
_NAMED_REWARD = re.compile(
    r"(?:.*[^a-z])?(?:reward|accuracy|acc|score|pass|success|solved?|correct|return)s?(?:[^a-z].*)?", re.IGNORECASE
)
"""Names of rewards beside those of `runs.rewards`: `fit` takes a run's only metric whatever it is called."""
_SETS = re.compile(r"(?:(?!exact/|train/)[^/]+/)?avg@(\d{1,6})(?:/(?!error$).+)?")
"""Averages of the held-out sets, `avg@k`, `avg@k/NAME` and `NAME/avg@k`, but for other readings of one evaluation."""
_EVERY_SET = ("avg@k", TRAINED)
_QUIETEST = 0.8
"""Share of its prior noise below which a further set's own is not believed."""
_NUMBERS = ("loss", "grad_norm", "entropy")
"""Beside the rewards, what must be a number at every point."""
_KL_FLOOR = 0.1
"""Nats a token; drift below it is small whatever its factor."""


def check(run: Run, *, paths: Sequence[str] = ()) -> Health:
    """Look a run over. `paths` are where it was read from, to find its `pass_rates.jsonl`.

    >>> import isocompute
    >>> check(isocompute.load("runs/easy-32x8")[0]).verdict
    'healthy'
    """
    run = replace(run, points=mark_non_finite(run.points, but=POINT_COLUMNS))
    watched = _watch(run, paths)
    findings: list[tuple[int, Finding]] = []
    checks = []
    for code, (names, needs, look) in _CHECKS.items():
        found = look(watched)
        missing = found if isinstance(found, str) else needs if found is None else None
        checks.append(Check(code, _metrics(watched, names), ran=missing is None, needs=missing))
        rows = found if isinstance(found, list) else []
        findings += [(row, _finding(run, code, row, severity, text)) for row, severity, text in rows]
    ordered = tuple(finding for _, finding in sorted(findings, key=lambda pair: pair[0]))
    severities = {finding.severity for finding in ordered}
    known = any(each.ran for each in checks if each.code != "non_finite")  # that they are numbers is no sign of health
    quiet: Verdict = "healthy" if known else "unknown"
    verdict: Verdict = "problem" if "problem" in severities else "warning" if severities else quiet
    return Health(run.name, verdict, ordered, tuple(checks))


def _metrics(watched: Watched, names: tuple[str, ...]) -> tuple[str, ...]:
    """Those that the run logs, of what a check reads."""
    if names == _NUMBERS:
        return watched.numbers
    if names == _EVERY_SET:
        return tuple(r.series.name for r in (*watched.held_out, watched.train) if r is not None)
    if names == (TRAINED,):
        return tuple(reward.series.name for reward in watched.rewards)
    return tuple(name for name in names if series_of(watched.run, name) is not None)


def _watch(run: Run, paths: Sequence[str]) -> Watched:
    watched_too = [name for name in (*_NO_REWARDS, *MISMATCHES) if name in run.points.columns]
    try:
        metric = choose_metric(RunSet((replace(run, points=run.points.drop(watched_too)),)), any_number=False)
    except InputError:  # nothing that is surely a reward: the checks without one still run
        metric = TRAINED
    metric = metric if _is_reward(metric) else TRAINED
    held_out, trained = (metric, TRAINED) if _is_held_out(metric) else (None, metric)
    train = _reward(run, trained, batch_noise(run.settings.problems_per_batch))
    validation = None if held_out is None else _reward(run, held_out, VALIDATION_NOISE)
    beside = _beside(run, held_out) if held_out else ()
    must_be = (*([held_out] if held_out else []), trained, *_NUMBERS)
    numbers = tuple(name for name in must_be if name in run.metrics)
    rewards = [r for r in (validation, train) if r is not None]
    rows = run.points.height
    record_R = reference_rows(rows, rewards, lambda reward: reward.best_at_T)
    held_R = reference_rows(rows, rewards, lambda reward: reward.held_at_T)
    return Watched(run, numbers, validation, beside, train, record_R, held_R, _rates(run, paths))


def _is_reward(metric: str) -> bool:
    """Whether a metric is a reward by its name: not whatever happens to be the only column."""
    if rank(metric) < len(REWARDS):
        return True
    named = is_validation(metric) or _NAMED_REWARD.fullmatch(metric) is not None
    return named and not any(other in metric.lower() for other in _NO_REWARDS)


def _is_held_out(reward: str) -> bool:
    """All that is not said to be training's."""
    return rank(reward) < rank(TRAINED) or not reward.lower().startswith("train")


def _rates(run: Run, paths: Sequence[str]) -> dict[int, PassRates]:
    spread = [rates for rates in read_pass_rates(run, paths) if rates.set == "train"]
    step = run.points.get_column("step", default=None)
    rows = {} if step is None else {value: row for row, value in enumerate(step)}
    return {rows[rates.step]: rates for rates in spread if rates.step in rows}


def _reward(run: Run, name: str, prior: float) -> Reward | None:
    series = series_of(run, name)
    return None if series is None else reward_of(series, prior=prior)


def _beside(run: Run, judged: str) -> tuple[Reward, ...]:
    """Rewards of the held-out sets beside the one that the run is judged by."""
    found = [(name, match) for name in run.metrics if name != judged and (match := _SETS.fullmatch(name))]
    known = [(series, set_noise(max(1, int(match[1])))) for name, match in found if (series := series_of(run, name))]
    # Sets of thirty problems look quieter than they are by chance, and there may be many of them.
    return tuple(reward_of(series, prior=noise, floor=_QUIETEST * noise) for series, noise in known)


def _finding(run: Run, code: str, row: int, severity: Severity, evidence: str) -> Finding:
    step, rollouts = number_at(run, "step", row), number_at(run, "rollouts", row)
    batch = (run.settings.problems_per_batch or 0) * (run.settings.rollouts_per_problem or 0)
    if rollouts is None and step is not None and batch:
        rollouts = step * batch
    advice, source = advice_on(code, severity)
    return Finding(code, severity, None if step is None else int(step), rollouts, evidence, advice, source)


_CHECKS: dict[str, tuple[tuple[str, ...], str, Look]] = {
    "non_finite": (_NUMBERS, "a reward, loss, grad_norm or entropy", look_at_numbers),
    "reward_fall": (_EVERY_SET, "a reward: avg@k or train/avg, 2 points", look_at_fall),
    "no_progress": ((TRAINED,), "a reward: avg@k or train/avg, 8 points", look_at_progress),
    "entropy_collapse": (
        ("entropy",),
        "entropy, 2 points",
        drifts("entropy", "entropy", up=False, warning=3, problem=3),
    ),
    "entropy_explosion": (
        ("entropy",),
        "entropy, 2 points",
        drifts("entropy", "entropy", up=True, warning=3, problem=3),
    ),
    "length_explosion": (
        ("response_length",),
        "response_length, 2 points",
        drifts("response_length", "response length", up=True, warning=2, problem=3),
    ),
    "length_collapse": (
        ("response_length",),
        "response_length, 2 points",
        drifts("response_length", "response length", up=False, warning=2, problem=3),
    ),
    "truncation": (("truncated",), "truncated (the share of cut responses), 5 points", look_at_truncation),
    "kl_drift": (
        ("kl",),
        "kl (to the base model), 2 points",
        drifts("kl", "KL", up=True, warning=3, problem=None, floor=_KL_FLOOR, smooth=5),
    ),
    "zero_variance": (
        ("zero_variance",),
        "zero_variance (the share of groups that score all the same), 10 points, or 5 with pass rates",
        look_at_zero_variance,
    ),
    "logprob_gap": (
        tuple(MISMATCHES),
        "a distance of sampler and trainer, such as logprob_gap, 5 points",
        look_at_logprob_gap,
    ),
    "grad_norm_spikes": (("grad_norm",), "grad_norm, 13 points", look_at_spikes),
    "polarisation": (
        ("train/pass_rates",),
        "pass rates of problems (pass_rates.jsonl or train/pass_rates), 2 points",
        look_at_pass_rates,
    ),
    "train_validation_gap": ((TRAINED,), "train/avg and 4 points of a reward on held-out problems", look_at_gap),
}
"""Code → the metrics it reads, what to log for it to run, and the check: rows found, or why it cannot run."""
