"""What is odd about a setup, whichever trainer it is for."""

from __future__ import annotations

from collections.abc import Callable

from isocompute.trainers.reading.setup import Odd, Setup

__all__ = ["oddities"]

ANCHOR_RATE, ANCHOR_BATCH = 1e-6, 1024
"""The IsoCompute paper's learning rate and the batch it holds at; it grows with the batch's square root."""
_GROUPED = ("group_std", "group_mean", "batch_std")


def oddities(setup: Setup) -> list[Odd]:
    """Everything that holds for this setup."""
    return [Odd(code, message) for code, rule in _RULES.items() if (message := rule(setup)) is not None]


def _off_policy(setup: Setup) -> str | None:
    if setup.updates_per_batch is None or setup.updates_per_batch <= 1 or setup.updates_per_batch % 1:
        return None
    return (
        f"{setup.updates_per_batch:g} optimiser steps on each batch: all but the first are off-policy. For one, the "
        "mini-batch must be the whole batch, once."
    )


def _stale(setup: Setup) -> str | None:
    return f"sampling runs ahead: rollouts may be {setup.staleness} update(s) old." if setup.staleness else None


def _group(setup: Setup) -> str | None:
    if setup.rollouts_per_problem == 1 and setup.advantage in _GROUPED:
        return f"n = 1 with a group baseline ({setup.advantage}): there is nothing to compare a rollout with."
    return None


def _rate(setup: Setup) -> str | None:
    rollouts = setup.rollouts_per_update
    if setup.learning_rate is None or rollouts is None or rollouts < 1:
        return None
    scaled = ANCHOR_RATE * (rollouts / ANCHOR_BATCH) ** 0.5
    if 0.5 <= setup.learning_rate / scaled <= 2:
        return None
    return (
        f"learning rate {setup.learning_rate:.3g} at {rollouts:,} rollouts an update; {ANCHOR_RATE:g} at "
        f"{ANCHOR_BATCH:,} and the square-root rule give {scaled:.2g}. Fine if it was tuned there."
    )


def _schedule(setup: Setup) -> str | None:
    if setup.schedule is None or setup.schedule.startswith("constant"):
        return None
    return f"the learning rate does not stay: schedule '{setup.schedule}'. A law over update steps assumes it does."


def _warmup(setup: Setup) -> str | None:
    if setup.warmup_steps is None or setup.update_steps is None or setup.warmup_steps < setup.update_steps:
        return None
    return f"warm-up of {setup.warmup_steps} steps lasts the whole run of {setup.update_steps}."


def _hard(setup: Setup) -> str | None:
    hard = "hard" in (setup.train_file or "").lower()
    if hard and ((setup.kl_coef or 0) > 0 or (setup.entropy_coef or 0) > 0):
        terms = f"KL {setup.kl_coef or 0:g} and entropy {setup.entropy_coef or 0:g}"
        return f"{terms} on a hard set: the playbook has neither."
    return None


def _cispo(setup: Setup) -> str | None:
    if setup.loss == "cispo" and setup.on_policy and setup.ratio_anchor == "trainer" and setup.tis_cap is None:
        return "CISPO's ratio is 1 with one update a batch against the trainer's own log-probs: its cap never acts."
    return None


def _shares(setup: Setup) -> str | None:
    if setup.gpus is None or setup.batch_size is None or setup.trainer in ("trl", "prime-rl"):
        return None
    if setup.batch_size % setup.gpus:
        return f"{setup.batch_size} rollouts are no equal parts on {setup.gpus} GPUs."
    return None


def _greedy(setup: Setup) -> str | None:
    if setup.temperature == 0 and (setup.rollouts_per_problem or 1) > 1:
        return "temperature 0: all rollouts of a problem are the same."
    return None


_RULES: dict[str, Callable[[Setup], str | None]] = {
    "off_policy": _off_policy,
    "stale": _stale,
    "group": _group,
    "learning_rate": _rate,
    "schedule": _schedule,
    "warmup": _warmup,
    "regularisers": _hard,
    "cispo_anchor": _cispo,
    "shares": _shares,
    "greedy": _greedy,
}
