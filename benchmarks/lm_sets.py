"""Problem sets drawn at random for the built-in language model, held to its base by a KL term so that n matters.

    python benchmarks/lm_sets.py OUT.csv [--first 0] [--sets 8] [--seeds 3] [--rollouts 1000000] [--device cuda]

A set is 100 to 8,000 problems of `chain:easy` or, for odd numbers, `chain:hard`, with a KL coefficient between .1 and
.5. On each, n = 4 to 256 at Bp = 32 with every seed, a point for every evaluation (512 held-out problems × 16 samples).
OUT.csv is written after every set, and a second call goes on where it ended; `benchmarks/lm_backtest.py OUT.csv` says
what plans from C/8 are worth there.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from isocompute.core import files
from isocompute.core.allocation import Cell
from isocompute.rl.engine import LmEngine

BP = 32
ROLLOUTS = (4, 8, 16, 32, 64, 128, 256)
METRICS = ("avg@4", "best@4", "worst@4", "train/avg", "kl")
KEYS = ("set", "size", "kl_coef", "problems_per_batch", "rollouts_per_problem", "seed", "rollouts", *METRICS)


def draw(seed: int) -> dict[str, Any]:
    """What a set is made of."""
    rng = np.random.default_rng([seed, 78])
    kind = ("easy", "hard")[seed % 2]
    size = int(np.exp(rng.uniform(np.log(100), np.log(8000))))
    return {"kind": kind, "size": size, "kl_coef": round(float(np.exp(rng.uniform(np.log(0.1), np.log(0.5)))), 3)}


def cells(seed: int, *, seeds: int, rollouts: int, device: str) -> list[Cell]:
    """The sweep of a set."""
    of = draw(seed)
    return [
        Cell(
            name=f"{BP}x{n}-s{run}",
            problems_per_batch=BP,
            rollouts_per_problem=n,
            update_steps=rollouts // (BP * n),
            seed=run,
            problems={"source": f"chain:{of['kind']}", "size": of["size"], "validation": 512, "seed": seed},
            recipe={"name": f"isocompute-{of['kind']}", "kl_coef": of["kl_coef"]},
            evaluation={"points": 24, "samples": 16},
            engine={"device": device},
        )
        for n in ROLLOUTS
        for run in range(seeds)
    ]


class Undisturbed:
    """A control that never stops a cell."""

    def stopping(self) -> bool:
        return False

    def advanced(self, rollouts: int) -> None:
        """Nobody watches."""


def sweep(seed: int, sweep_cells: list[Cell]) -> list[dict[str, Any]]:
    """Run a set's cells; a row for every evaluation."""
    of, rows = draw(seed), []
    with tempfile.TemporaryDirectory() as top:
        for cell in sweep_cells:
            folder = Path(top) / cell.name
            folder.mkdir()
            LmEngine().run(cell, folder, Undisturbed())
            about = {
                "set": f"{of['kind']}-{seed}",
                "size": of["size"],
                "kl_coef": of["kl_coef"],
                "problems_per_batch": BP,
                "rollouts_per_problem": cell.rollouts_per_problem,
                "seed": cell.seed,
            }
            for line in (folder / "points.jsonl").read_text().splitlines():
                point = json.loads(line)
                values = {key: _short(point.get(key)) for key in METRICS}
                rows.append({**about, "rollouts": point["rollouts"], **values})
    return rows


def _short(number: float | None) -> str:
    return "" if number is None else f"{number:.6g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--sets", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rollouts", type=int, default=1_000_000)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if args.out.exists():
        rows = list(csv.DictReader(args.out.open()))
    done = {row["set"] for row in rows}
    for seed in range(args.first, args.first + args.sets):
        if f"{draw(seed)['kind']}-{seed}" in done:
            continue
        started = time.perf_counter()
        some = cells(seed, seeds=args.seeds, rollouts=args.rollouts, device=args.device)
        rows += sweep(seed, some)
        text = io.StringIO()
        writer = csv.DictWriter(text, KEYS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        files.write_atomically(args.out, text.getvalue().encode())
        print(f"set {seed} {draw(seed)}: {time.perf_counter() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
