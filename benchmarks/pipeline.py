"""PipelineRL-k against synchronous training: how busy the sampler is, and who learns sooner.

    python benchmarks/pipeline.py clock                     simulated clock, seconds
    python benchmarks/pipeline.py learn [--device cpu]      chain:all with the built-in base, minutes

`clock` runs the engine's own scheduler against response lengths with a long tail. `learn` trains the same cell
synchronously and as PipelineRL-8, over several seeds, on one device: final validation avg@4 at equal rollouts, and the
seconds of training (evaluation left out) after which each first reaches 80% of the synchronous runs' rise.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from isocompute.rl.rollout.engine import Rollouts
from isocompute.rl.rollout.source import Group, Ledger

SAMPLED = Rollouts([], *(torch.zeros(0) for _ in range(5)))
"""Stands for the responses of a group that is complete."""


def long_tail(spread: float, longest: int) -> Iterator[int]:
    rng = np.random.default_rng(0)
    while True:
        yield from np.clip(np.exp(spread * rng.standard_normal(1024)) * 8, 1, longest).astype(int).tolist()


# A decode step gives every occupied slot one token and takes one tick, however many are occupied: decoding is bound by
# memory. The trainer is beside the sampler and takes a fixed number of ticks for an update. Synchronous training is the
# same with k = 0: a batch is sampled, then the sampler waits for the update.


@dataclass(frozen=True)
class Timing:
    """What a run on the clock came to."""

    ticks: int
    updates: int
    busy: float
    """Share of slots × ticks in which a token was sampled."""
    oldest: int
    """Most updates between a group's first token and its training."""
    staleness: float
    """The same, on average over groups."""


def run_clock(
    lengths: Iterator[int],
    *,
    problems_per_batch: int,
    rollouts_per_problem: int,
    steps: int,
    updates: int,
    train_ticks: int,
    slots: int | None = None,
) -> Timing:
    """PipelineRL-`steps` for this many updates; by default there are slots for one batch."""
    n = rollouts_per_problem
    slots = slots or problems_per_batch * n
    ledger = Ledger(problems_per_batch=problems_per_batch, steps=steps)
    left_S = np.zeros(slots, dtype=np.int64)  # tokens still to come
    group_S = np.full(slots, -1)
    unfinished: dict[int, int] = {}
    ticks = worked = started = done = oldest = age = trained = 0
    version = next_update = 0  # of the sampler's weights; of the update that is to start next
    finishes: int | None = None  # when the update that is running will be done
    while done < updates:
        free_F = np.flatnonzero(group_S < 0)
        waits = steps == 0 and finishes is not None
        room = 0 if waits else ledger.room(version=version, next_update=next_update)
        for at in range(min(len(free_F) // n, room)):
            ledger.start(Group(started, problem=0, version=version))
            here = free_F[at * n : (at + 1) * n]
            group_S[here], unfinished[started] = started, n
            left_S[here] = [next(lengths) for _ in range(n)]
            started += 1
        running_S = group_S >= 0
        jump = int(left_S[running_S].min()) if running_S.any() else None
        if finishes is not None:
            jump = finishes - ticks if jump is None else min(jump, finishes - ticks)
        assert jump is not None, "nothing is sampled and nothing trained"
        ticks += jump
        worked += jump * int(running_S.sum())
        left_S[running_S] -= jump
        for slot in np.flatnonzero(running_S & (left_S == 0)):
            number = int(group_S[slot])
            unfinished[number] -= 1
            if not unfinished[number]:
                ledger[number].rollouts = SAMPLED
            group_S[slot] = -1
        if finishes is not None and ticks >= finishes:
            finishes, done, version = None, done + 1, next_update
        if finishes is None and (batch := ledger.batch(next_update)):
            ages = [next_update - group.version for group in batch]
            oldest, age, trained = max(oldest, *ages), age + sum(ages), trained + len(batch)
            ledger.remove(batch)
            next_update += 1
            finishes = ticks + train_ticks
            if train_ticks == 0:
                finishes, done, version = None, done + 1, next_update
    return Timing(ticks, done, worked / (slots * ticks), oldest, age / trained)


def clock(_: argparse.Namespace) -> None:
    steps = (0, 1, 2, 4, 8)
    print("lengths 8·exp(spread·N(0,1)), at most `longest`; 32 × 8 rollouts, an update takes 8 ticks, 400 updates")
    print(f"{'spread':>8}{'longest':>9}{'mean':>7}" + "".join(f"{f'k = {k}':>9}" for k in steps) + "   stale at k = 8")
    for spread, longest in ((0.5, 96), (0.8, 64), (1.2, 96), (0.8, 96), (1.2, 256)):
        drawn = long_tail(spread, longest)
        mean = np.mean([next(drawn) for _ in range(20_000)])
        found = [
            run_clock(
                long_tail(spread, longest),
                problems_per_batch=32,
                rollouts_per_problem=8,
                steps=k,
                updates=400,
                train_ticks=8,
            )
            for k in steps
        ]
        line = "".join(f"{timing.busy:>9.1%}" for timing in found)
        print(f"{spread:>8}{longest:>9}{mean:>7.1f}{line}   {found[-1].staleness:.1f}, at most {found[-1].oldest}")


VARIANTS: dict[str, dict[str, Any]] = {
    "synchronous": {},
    "pipeline-8": {"recipe": {"pipeline_steps": 8}},
}


def learn(options: argparse.Namespace) -> None:
    from isocompute.core.allocation import Cell
    from isocompute.rl.engine import LmEngine

    class Alone:
        def stopping(self) -> bool:
            return False

        def advanced(self, rollouts: int) -> None:
            pass

    def curve(seed: int, changes: dict[str, Any]) -> list[dict[str, Any]]:
        cell = Cell(
            name="run",
            problems_per_batch=32,
            rollouts_per_problem=16,
            update_steps=options.updates,
            seed=seed,
            problems={"source": "chain:all", "size": 4000, "validation": 256},
            recipe={"name": "cispo", **changes.get("recipe", {})},
            evaluation={"points": 14, "samples": 4},
            engine={"device": options.device, **changes.get("engine", {})},
        )
        with tempfile.TemporaryDirectory() as folder:
            LmEngine().run(cell, Path(folder), Alone())
            return [json.loads(line) for line in (Path(folder) / "points.jsonl").read_text().splitlines()]

    curves = {name: [curve(seed, changes) for seed in range(options.seeds)] for name, changes in VARIANTS.items()}
    where = f"{options.device}, seeds 0–{options.seeds - 1}"
    print(f"chain:all, 32 × 16 × {options.updates} on {where}")
    show(curves)
    if options.json:
        Path(options.json).write_text(
            json.dumps({"curves": curves, "updates": options.updates, "device": options.device})
        )


def show(curves: dict[str, list[list[dict[str, Any]]]]) -> None:
    first, last = (np.mean([run[i]["avg@4"] for run in curves["synchronous"]]) for i in (0, -1))
    target = float(first + 0.8 * (last - first))
    print(f"target: 80% of the synchronous rise, avg@4 of {target:.3f}")
    print(f"{'':>20}{'final avg@4':>18}{'seconds':>9}{'to target':>11}{'reached by':>12}{'stale':>7}{'busy':>7}")
    for name, runs in curves.items():
        final = [run[-1]["avg@4"] for run in runs]
        seconds = np.mean([run[-1]["seconds"] for run in runs])
        soon = [_reached(run, target) for run in runs]
        stale, busy = (np.mean([run[-1].get(key, np.nan) for run in runs]) for key in ("staleness", "sampler_busy"))
        shown, by = f"{np.mean(final):.3f} ± {np.std(final, ddof=1):.3f}", f"{np.isfinite(soon).sum()} of {len(runs)}"
        print(f"{name:>20}{shown:>18}{seconds:>9.1f}{np.nanmean(soon):>11.1f}{by:>12}{stale:>7.1f}{busy:>7.2f}")


def _reached(run: list[dict[str, Any]], target: float) -> float:
    """Seconds at which the curve crosses the target, between points by a straight line."""
    values, seconds = [point["avg@4"] for point in run], [point["seconds"] for point in run]
    for i in range(1, len(run)):
        if values[i] >= target:
            share = (target - values[i - 1]) / max(values[i] - values[i - 1], 1e-9)
            return seconds[i - 1] + max(share, 0.0) * (seconds[i] - seconds[i - 1])
    return float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["clock", "learn"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--json", help="write the curves here")
    options = parser.parse_args()
    {"clock": clock, "learn": learn}[options.part](options)


if __name__ == "__main__":
    main()
