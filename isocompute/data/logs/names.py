"""Trainers' metric names and ours: one table for consoles, files and trackers alike.

A row of `_PLAIN` is one of our names and the names it goes by, the best first: where a run logs several of them, the
first stands and the others keep their own names. Sources: veRL 0.9 (and 2024), TRL 1.16 (and .1x), prime-rl 08/2026,
OpenRLHF 0.11, SkyRL 08/2026, NeMo-RL 08/2026, PipelineRL 06/2026, Tinker cookbook 08/2026.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

__all__ = ["CUMULATIVE", "PER_STEP", "STEP_NAMES", "Names", "is_validation", "name_here", "our_names"]

STEP_NAMES = (
    "training/global_step",
    "train/global_step",
    "trainer/global_step",
    "global_step",
    "eval/global_step",
    "step",
    "_step",
)
"""Keys that count updates, the most telling first: a tracker's own `_step` counts calls of its log function."""

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
"""What one step took; summed up to a counter where every step is there."""

CUMULATIVE = {
    "seconds": ("_runtime",),
    "tokens_with_prompts": ("num_tokens", "train/num_tokens", "progress/total_tokens", "stats/tokens"),
}
"""Counters as they are. Trainers count tokens with their prompts; ours are those of responses (logs/tokens.py)."""

_PLAIN: dict[str, tuple[str, ...]] = {
    "train/avg": (
        r"train/avg",
        r"critic/score/mean",
        r"rollout/reward_mean",
        r"train/rollout/reward_mean",
        r"reward/avg_raw_reward",
        r"env/all/reward/total",
        r"train/(?:agg|all)/effective/[^/]+/reward/mean",
        r"train/(?:agg|all)/all/[^/]+/reward/mean",
        r"train/[^/]+/(?:effective/)?(?:[^/]+/)?reward/mean",
        r"reward/(?:all/)?mean",
        r"(?:train/)?reward",
        r"train[_/]reward(?:/mean)?",
        r"train/mean_reward",
        r"rl/reward",
        r"actor/reward_mean",
        r"train/accuracy",
        r"critic/rewards/mean",
    ),
    "entropy": (
        r"entropy",
        r"actor/entropy",
        r"actor/entropy_loss",
        r"train/entropy",
        r"entropy/all/mean",
        r"entropy/mean",
        r"optim/entropy",
        r"policy/policy_entropy",
        r"policy/entropy",
        r"rl/entropy",
        r"train/approx_entropy",
        r"(?:train/)?entropy_loss",
    ),
    "kl": (
        r"kl",
        r"critic/kl",
        r"actor/reward_kl_penalty",
        r"actor/kl_loss",
        r"train/kl",
        r"loss/avg_kl",
        r"policy/policy_kl",
        r"rl/kl",
        r"mismatch_kl/all/mean",
        r"mismatch_kl/mean",
        r"optim/kl_sample_train_v2",
        r"optim/kl_sample_train_v1",
        r"train/gen_kl_error",
    ),
    "response_length": (
        r"response_length",
        r"response_length/mean",
        r"(?:train/)?completions/mean_length",
        r"(?:train/)?completion_length",
        r"(?:train/)?rollout/response_length_mean",
        r"train/(?:agg|all)/effective/num_output_tokens/mean",
        r"train/[^/]+/(?:effective/)?(?:[^/]+/)?num_output_tokens/mean",
        r"(?:completion_len|decode_len)/(?:all/)?mean",
        r"seq_len/(?:all/)?mean",
        r"generate/avg_num_tokens",
        r"env/all/ac_tokens_per_turn",
        r"train/mean_gen_tokens_per_sample",
        r"train/mean_response_length",
        r"(?:train/)?response_length",
        r"actor/output_tokens(?:_mean)?",
    ),
    "truncated": (
        r"truncated",
        r"response_length/clip_ratio",
        r"(?:train/)?completions/clipped_ratio",
        r"(?:train/)?rollout/truncated_rate",
        r"train/(?:agg|all)/effective/[^/]+/is_truncated/mean",
        r"train/[^/]+/(?:effective/)?(?:[^/]+/)?is_truncated/mean",
        r"is_truncated/(?:all/)?mean",
        r"train/truncation_rate",
        r"actor/overflow_mean",
        r"(?:train/)?truncated_rate",
    ),
    "zero_variance": (r"zero_variance", r"(?:train/)?frac_reward_zero_std"),
    "grad_norm": (
        r"grad_norm",
        r"actor/grad_norm",
        r"train/grad_norm",
        r"optim/grad_norm",
        r"policy/(?:raw_)?grad_norm",
        r"stats/grad_norm",
        r"(?:train/)?actor_grad_norm",
    ),
    "learning_rate": (
        r"learning_rate",
        r"actor/lr",
        r"train/learning_rate",
        r"optim/lr",
        r"policy/(?:policy_)?lr",
        r"stats/lr",
        r"(?:train/)?actor_lr",
        r"train/lr",
    ),
}
_RULES = [(re.compile(p), ours, place) for ours, patterns in _PLAIN.items() for place, p in enumerate(patterns)]

_AT = r"(?:@|_at_|_)(?P<k>\d+)"
_KINDS = {"mean": "avg", "avg": "avg", "best": "best", "worst": "worst", "pass@": "best", "pass^": "worst"}
# veRL: val-core holds the variable that counts (acc, else reward) at the largest k, val-aux everything else.
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
"""Keys that tell how many samples an evaluation takes of a problem."""
_LOOKS_LIKE_VALIDATION = re.compile(
    r"(?:(?:(?:final|best|last)_)?(?:val|eval|test|validation)(?:[-_/@]|$)|(?:avg|best|worst)@\d)"
)
_PREFIX = re.compile(r"^(?:(?:val(?:-core|-aux)?|eval|test|validation)[/_])+")
"""What spellings of one validation metric differ in: `test_score/gsm8k` at step 0, `val/test_score/gsm8k` later."""
_LONGEST = 300
"""Longer names are nobody's metric and stay as they are."""
_OVERALL = {"all", "overall", "average", "agg"}


@dataclass(frozen=True)
class Names:
    """How a run's columns are renamed, and which of them are averaged into one."""

    ours: Mapping[str, str]
    """Trainer's name → ours; a name that is not in it stays."""
    means: Mapping[str, tuple[str, ...]]
    """`avg@4` → the per-set names it is the mean of, where several sets are validated."""
    again: Mapping[str, str] = field(default_factory=dict)
    """Another spelling of a metric that is in `ours` → our name: it fills the rows where the first is empty."""


def is_validation(name: str) -> bool:
    """Whether a metric, in our name or the trainer's, comes from held-out problems."""
    return _LOOKS_LIKE_VALIDATION.match(name) is not None


def our_names(names: Iterable[str], *, samples: int = 1) -> Names:
    """Our names of all the metrics of one run, whose evaluations take `samples` of a problem where no name says it."""
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
        for group, name in sets.items():
            if len(by_metric[metric]) > 1:
                out[name] = f"{metric}/{group}"
        if overall is None and len(by_metric[metric]) > 1:
            means[metric] = tuple(f"{metric}/{group}" for group in by_metric[metric])
    return Names(out, means, {name: out[first] for name, first in spellings.items() if first in out})


def name_here(name: str, metrics: Collection[str]) -> str | None:
    """Which of a run's metrics a trainer's metric would have become; None where it would be none of them.

    A guess: another key of the log may have become it, so it is for advice and not for reading.

    >>> name_here("eval_reward", ["avg@1", "train/avg"])
    'avg@1'
    """
    if len(name) > _LONGEST:
        return None
    said = {int(m[1]) for metric in metrics if (m := _AVERAGE.match(metric))}
    for samples in (1, *sorted(said - {1})):
        ours = our_names([name], samples=samples).ours.get(name)
        for _, metric, group in _validated([name], samples):
            several = any(other.startswith(f"{metric}/") for other in metrics)  # then the plain name is their mean
            ours = f"{metric}/{group}" if several and group and group not in _OVERALL else metric
        if ours in metrics:
            return ours
    return None


def _core_variables(names: Iterable[str]) -> dict[str, set[str]]:
    """For each set that veRL validates, the variables that count: its core ones, else acc, else any reward."""
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
    """Validation metrics as (trainer's name, ours, problem set); what comes first stands where two are the same."""
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
