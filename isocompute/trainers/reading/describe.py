"""A setup in one paragraph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from isocompute.trainers.reading.setup import Odd, Setup

__all__ = ["describe"]

_MOST_UNKNOWN = 6
TITLES = {
    "verl": "veRL",
    "trl": "TRL",
    "openrlhf": "OpenRLHF",
    "prime-rl": "prime-rl",
    "nemo-rl": "NeMo-RL",
    "skyrl": "SkyRL",
}


def describe(setup: Setup, odd: Sequence[Odd], unknown: Mapping[str, str | None]) -> str:
    """What it is, whether it is on-policy, its recipe, what is assumed, what is odd, and keys that nobody reads."""
    sentences = [_allocation(setup), _policy(setup), _recipe(setup)]
    named = {"problems_per_batch": "Bp", "rollouts_per_problem": "n", "learning_rate": "the learning rate"}
    silent = [named[name] for name in named if name in setup.assumed and getattr(setup, name) is not None]
    if silent:
        sentences.append(
            f"The file does not say {_listed(silent)}; that is {TITLES[setup.trainer]} {setup.version}'s default."
        )
    if odd:
        numbered = [f"({i}) {note.message}" for i, note in enumerate(odd, 1)]
        sentences.append("Odd: " + " ".join(numbered if len(odd) > 1 else [odd[0].message]))
    if unknown:
        shown = [key if near is None else f"{key} (meant: {near}?)" for key, near in unknown.items()]
        shown.sort(key=lambda text: not text.endswith("?)"))
        more = f" and {len(shown) - _MOST_UNKNOWN} more" if len(shown) > _MOST_UNKNOWN else ""
        are = "Not a key" if len(shown) == 1 else "Not keys"
        sentences.append(f"{are} of {TITLES[setup.trainer]} {setup.version}: {', '.join(shown[:_MOST_UNKNOWN])}{more}.")
    return " ".join(sentence for sentence in sentences if sentence)


def _allocation(setup: Setup) -> str:
    bp, n, m = (_count(x) for x in (setup.problems_per_batch, setup.rollouts_per_problem, setup.update_steps))
    batch, compute = _count(setup.batch_size), _count(setup.compute)
    return (
        f"{TITLES[setup.trainer]}: Bp = {bp} problems × n = {n} rollouts × M = {m} batches: B = {batch} rollouts a "
        f"batch, C = {compute} rollouts in all."
    )


def _policy(setup: Setup) -> str:
    if setup.updates_per_batch is None:
        return "How many optimiser steps a batch gets cannot be told."
    if setup.updates_per_batch % 1:
        return f"It does not run as it stands: a batch would make {setup.updates_per_batch:g} optimiser steps."
    if setup.on_policy and setup.batch_size is None:
        return "One optimiser step a batch, as far as the file says what a batch is."
    if setup.on_policy:
        return "On-policy: one optimiser step a batch."
    if setup.staleness and setup.updates_per_batch == 1:
        return f"Off-policy: one optimiser step a batch, on rollouts up to {setup.staleness} update(s) old."
    size = "" if setup.rollouts_per_update is None else f", of {setup.rollouts_per_update:,} rollouts each"
    return f"Off-policy: {setup.updates_per_batch:g} optimiser steps a batch{size}."


def _recipe(setup: Setup) -> str:
    parts = []
    if setup.loss is not None:
        bounds = ""
        if setup.ratio_cap is not None:
            bounds = f" capped at {setup.ratio_cap:g}"
        elif setup.clip_low is not None and setup.clip_high is not None and setup.loss != "reinforce":
            bounds = f" {setup.clip_low:g}/{setup.clip_high:g}"
        parts.append(f"{setup.loss} loss{bounds}, averaged by {setup.aggregation}")
    if setup.advantage is not None:
        parts.append(f"advantage {setup.advantage}")
    if setup.learning_rate is not None:
        warm = f" after {setup.warmup_steps} steps of warm-up" if setup.warmup_steps else ""
        parts.append(f"learning rate {setup.learning_rate:.3g}{warm}")
    parts.append(f"KL {_value(setup.kl_coef)}, entropy {_value(setup.entropy_coef)}")
    parts.append(f"temperature {_value(setup.temperature)}")
    if setup.tis_cap is not None:
        parts.append(f"truncated importance sampling at {setup.tis_cap:g}")
    return _capital("; ".join(parts) + ".")


def _count(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def _value(value: float | None) -> str:
    return "?" if value is None else "off" if value == 0 else f"{value:g}"


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
