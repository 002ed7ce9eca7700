"""Maps the metric names of trainers to ours, for consoles, files and trackers alike.

If a run logs a metric under several names, the first match in `_PATTERNS` gets our name and the others keep theirs.
Sources: veRL 0.9 (and 2024), TRL 1.16 (and .1x), prime-rl 08/2026, OpenRLHF 0.11, SkyRL 08/2026, NeMo-RL 08/2026,
PipelineRL 06/2026, Tinker cookbook 08/2026.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

TRAIN_REWARD = "train/avg"
REWARDS = (
    r"avg@\d+",
    r"best@\d+",
    r"worst@\d+",
    r"(avg|best|worst)@\d+/.+",
    "value",
    r"(.*/)?((final|best|last)_)?(val|eval)\w*/?.*(reward|acc|score).*",
    "reward",
    TRAIN_REWARD,
)
"""Patterns of rewards, preferred first: held-out problems before training, averages before the rest."""


def reward_rank(name: str) -> int:
    """A metric's place among `REWARDS`; their number where it is not a reward."""
    return next((at for at, pattern in enumerate(REWARDS) if re.fullmatch(pattern, name)), len(REWARDS))


STEP_NAMES = (
    "training/global_step",
    "train/global_step",
    "trainer/global_step",
    "global_step",
    "eval/global_step",
    "step",
    "_step",
)
"""Keys that count updates, preferred first: a tracker's own `_step` counts calls of its log function."""

PER_STEP = {
    "seconds": (
        "timing_s/step",
        "perf/time_per_step",
        "timing/step_total",
        "timing/train/total_step_time",
        "timing/step",
        "time/total",
        "time/step",
    ),
    "tokens_with_prompts": ("perf/total_num_tokens",),
}
"""Seconds and tokens of one step; they are summed if every step is logged."""

CUMULATIVE = {
    "seconds": ("_runtime",),
    "tokens_with_prompts": ("num_tokens", "train/num_tokens", "progress/total_tokens", "stats/tokens"),
}
"""Running totals. Trainers count prompt tokens too; we count those of responses (data/counters.py)."""

_PATTERNS: dict[str, str] = {
    "train/avg": r"""
        train/avg critic/score/mean rollout/reward_mean train/rollout/reward_mean reward/avg_raw_reward
        env/all/reward/total train/(?:agg|all)/effective/[^/]+/reward/mean
        train/(?:agg|all)/all/[^/]+/reward/mean train/[^/]+/(?:effective/)?(?:[^/]+/)?reward/mean
        reward/(?:all/)?mean (?:train/)?reward train[_/]reward(?:/mean)? train/mean_reward rl/reward
        actor/reward_mean train/accuracy critic/rewards/mean
    """,
    "entropy": r"""
        entropy actor/entropy actor/entropy_loss train/entropy entropy/all/mean entropy/mean optim/entropy
        policy/policy_entropy policy/entropy rl/entropy train/approx_entropy (?:train/)?entropy_loss
    """,
    "kl": r"""
        kl critic/kl actor/reward_kl_penalty actor/kl_loss train/kl loss/avg_kl policy/policy_kl rl/kl
        mismatch_kl/all/mean mismatch_kl/mean optim/kl_sample_train_v2 optim/kl_sample_train_v1
        train/gen_kl_error
    """,
    "response_length": r"""
        response_length response_length/mean (?:train/)?completions/mean_length (?:train/)?completion_length
        (?:train/)?rollout/response_length_mean train/(?:agg|all)/effective/num_output_tokens/mean
        train/[^/]+/(?:effective/)?(?:[^/]+/)?num_output_tokens/mean (?:completion_len|decode_len)/(?:all/)?mean
        seq_len/(?:all/)?mean generate/avg_num_tokens env/all/ac_tokens_per_turn
        train/mean_gen_tokens_per_sample train/mean_response_length (?:train/)?response_length
        actor/output_tokens(?:_mean)?
    """,
    "truncated": r"""
        truncated response_length/clip_ratio (?:train/)?completions/clipped_ratio
        (?:train/)?rollout/truncated_rate train/(?:agg|all)/effective/[^/]+/is_truncated/mean
        train/[^/]+/(?:effective/)?(?:[^/]+/)?is_truncated/mean is_truncated/(?:all/)?mean train/truncation_rate
        actor/overflow_mean (?:train/)?truncated_rate
    """,
    "zero_variance": r"zero_variance (?:train/)?frac_reward_zero_std",
    "grad_norm": r"""
        grad_norm actor/grad_norm train/grad_norm optim/grad_norm policy/(?:raw_)?grad_norm stats/grad_norm
        (?:train/)?actor_grad_norm
    """,
    "learning_rate": r"""
        learning_rate actor/lr train/learning_rate optim/lr policy/(?:policy_)?lr stats/lr (?:train/)?actor_lr
        train/lr
    """,
}
"""Our names, and patterns of the names in logs, preferred first."""
_RULES = [
    (re.compile(p), ours, place) for ours, patterns in _PATTERNS.items() for place, p in enumerate(patterns.split())
]

_AT = r"(?:@|_at_|_)(?P<k>\d+)"
_KINDS = {"mean": "avg", "avg": "avg", "best": "best", "worst": "worst", "pass@": "best", "pass^": "worst"}
# veRL: val-core has the main variable (acc, else reward) at the largest k, val-aux everything else.
_VERL = re.compile(rf"val(?P<core>-core|-aux)?/(?P<set>.+)/(?P<var>[^/]+)/(?P<kind>mean|best|worst){_AT}(?P<of>/mean)?")
_VALIDATION = (
    re.compile(r"(?P<kind>avg|best|worst)@(?P<k>\d+)(?:/(?P<set>.+))?"),
    re.compile(r"(?:val/)?test_score/(?P<set>.+)"),
    re.compile(r"eval/(?P<set>[^/]+)/(?:(?P<subset>all|effective)/)?(?:.*/)?(?P<kind>avg|pass)(?P<how>@|\^)(?P<k>\d+)"),
    re.compile(r"eval/(?P<set>.+)/avg_score"),
    re.compile(r"eval/(?P<set>.+)/(?P<kind>pass)_at_(?P<k>\d+)"),
    re.compile(r"(?:eval/)?eval_(?P<set>.+)_(?P<kind>pass)(?P<k>\d+)"),
    re.compile(r"test/env/(?P<set>all)/reward/total"),
    re.compile(r"(?:val|eval|test|validation)[/_](?:mean_)?(?:reward|accuracy|acc|score|pass_rate)(?:[/_]mean)?"),
)
_AVERAGE = re.compile(r"avg@(\d{1,9})(?:/|$)")
_SAMPLED = re.compile(r"eval/.+/pass_at_(\d+)|(?:eval/)?eval_.+_pass(\d+)")
"""Keys that give the number of samples per problem in an evaluation."""
_LOOKS_LIKE_VALIDATION = re.compile(
    r"(?:(?:(?:final|best|last)_)?(?:val|eval|test|validation)(?:[-_/@]|$)|(?:avg|best|worst)@\d)"
)
_PREFIX = re.compile(r"^(?:(?:val(?:-core|-aux)?|eval|test|validation)[/_])+")
"""An optional prefix: the same metric is `test_score/gsm8k` at step 0 and `val/test_score/gsm8k` later."""
_LONGEST = 300
"""Longer names stay as they are."""
_OVERALL = {"all", "overall", "average", "agg"}


@dataclass(frozen=True)
class Names:
    """How the columns of a run are renamed, and which are averaged into one."""

    ours: Mapping[str, str]
    """Trainer's name → ours; names that are not listed stay."""
    means: Mapping[str, tuple[str, ...]]
    """`avg@4` → the per-set metrics that it averages, if several sets are validated."""
    alternatives: Mapping[str, str] = field(default_factory=dict)
    """Another spelling of a metric in `ours` → our name; its values fill rows in which the first spelling is empty."""


def is_validation(name: str) -> bool:
    """Whether a metric, in our name or the trainer's, comes from held-out problems."""
    return _LOOKS_LIKE_VALIDATION.match(name) is not None


def our_names(names: Iterable[str], *, samples: int = 1) -> Names:
    """Our names of all the metrics of one run; `samples` per problem in evaluations whose names do not give it."""
    known = [name for name in dict.fromkeys(names) if len(name) <= _LONGEST]
    best: dict[str, tuple[int, str]] = {}
    for name in known:
        for pattern, ours, place in _RULES:
            if pattern.fullmatch(name):
                if ours not in best or place < best[ours][0]:
                    best[ours] = (place, name)
                break
    out = {theirs: ours for ours, (_, theirs) in best.items()}
    by_metric: dict[str, dict[str, str]] = {}
    spellings: dict[str, str] = {}
    for name, metric, group in _validated(known, samples):
        first = by_metric.setdefault(metric, {}).setdefault(group, name)
        if name != first and _PREFIX.sub("", name) == _PREFIX.sub("", first):
            spellings[name] = first
    means: dict[str, tuple[str, ...]] = {}
    for metric, sets in by_metric.items():
        overall = next((s for s in sets if s in _OVERALL or s == ""), None)
        if overall is not None or len(sets) == 1:
            out[sets[overall if overall is not None else next(iter(sets))]] = metric
            sets = {s: name for s, name in sets.items() if name not in out}  # noqa: PLW2901 - what is left of them
        if len(by_metric[metric]) > 1:
            out |= {name: f"{metric}/{group}" for group, name in sets.items()}
            if overall is None:
                means[metric] = tuple(f"{metric}/{group}" for group in by_metric[metric])
    return Names(out, means, {name: out[first] for name, first in spellings.items() if first in out})


def our_name_among(name: str, metrics: Collection[str]) -> str | None:
    """The metric of a run that a trainer's metric was renamed to; None if there is none.

    A guess for error messages, since another key of the log may have that name.

    >>> our_name_among("eval_reward", ["avg@1", "train/avg"])
    'avg@1'
    """
    if len(name) > _LONGEST:
        return None
    ks = {int(m[1]) for metric in metrics if (m := _AVERAGE.match(metric))}
    for samples in (1, *sorted(ks - {1})):
        ours = our_names([name], samples=samples).ours.get(name)
        for _, metric, group in _validated([name], samples):
            several = any(other.startswith(f"{metric}/") for other in metrics)  # then the plain name is their mean
            ours = f"{metric}/{group}" if several and group and group not in _OVERALL else metric
        if ours in metrics:
            return ours
    return None


def _core_variables(names: Iterable[str]) -> dict[str, set[str]]:
    """For each set that veRL validates, its main variables: core ones, else acc, else any reward."""
    core: dict[str, set[str]] = {}
    logged: dict[str, set[str]] = {}
    for name in names:
        match = _VERL.fullmatch(name)
        if match:
            logged.setdefault(match["set"], set()).add(match["var"])
            if match["core"] == "-core":
                core.setdefault(match["set"], set()).add(match["var"])
    return {group: {"acc"} if "acc" in seen else {"reward", "score"} for group, seen in logged.items()} | core


def _validated(names: list[str], samples: int) -> Iterable[tuple[str, str, str]]:
    """Validation metrics as (trainer's name, ours, problem set), the preferred one of equal ones first."""
    core = _core_variables(names)
    sampled = [m[1] or m[2] for name in names if (m := _SAMPLED.fullmatch(name))]
    largest = max([samples, *map(int, sampled)])
    for name in sorted(names, key=lambda n: ("/effective/" not in n, n.startswith("val-aux"))):
        match = _VERL.fullmatch(name)
        if match:
            if match["var"] in core[match["set"]] and (match["kind"] == "mean") == (match["of"] is None):
                yield name, f"{_KINDS[match['kind']]}@{match['k']}", match["set"]
            continue
        for pattern in _VALIDATION:
            match = pattern.fullmatch(name)
            if match:
                found = match.groupdict()
                kind, k = found.get("kind") or "avg", found.get("k") or str(samples)
                if kind == "pass":
                    kind = "worst" if found.get("how") == "^" else "best"
                    if k == "1" and found.get("how") is None:
                        kind, k = "avg", str(largest)
                elif name.endswith("/avg_score"):
                    k = str(largest)
                yield name, f"{kind}@{k}", found.get("set") or ""
                break
