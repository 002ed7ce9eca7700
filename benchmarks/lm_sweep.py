"""Cells of a study on one GPU: sharing it in one process against one after another.

    python benchmarks/lm_sweep.py [--n 4,16,64] [--seeds 4] [--rollouts 400000] [--out result.json]

The built-in base model on `chain:easy`, Bp = 32, every n with as many seeds, evaluations and files as in a study:
`LmEngine.run_pack`, which `isocompute study run` calls on a GPU, and `LmEngine.run`. Printed are wall-clock seconds of
a first round of 8,192 rollouts a cell, which is mostly compiling and capturing, and of a second of `--rollouts` a cell;
and the final avg@4 of every n both ways.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from isocompute.core import files
from isocompute.core.cell import Cell, Control
from isocompute.rl.engine import LmEngine

FIRST = 8192
BP = 32


class Undisturbed:
    """A study's control that never stops a cell."""

    def stopping(self) -> bool:
        return False

    def advanced(self, _: int) -> None:
        return None


def cells(n: list[int], seeds: int, rollouts: int, device: str) -> list[Cell]:
    """Those of a study."""
    return [
        Cell(
            name=f"{BP}x{one}-s{seed}",
            problems_per_batch=BP,
            rollouts_per_problem=one,
            update_steps=rollouts // (BP * one),
            seed=seed,
            problems={"source": "chain:easy"},
            recipe={"name": "isocompute-easy"},
            evaluation={"points": 12, "samples": 8},
            engine={"device": device},
        )
        for one in n
        for seed in range(seeds)
    ]


def run_all(of: list[Cell], top: Path, *, together: bool) -> None:
    """Run cells from nothing, each in a folder of its name."""
    engine = LmEngine()

    def jobs() -> Iterator[tuple[Cell, Path, Control]]:
        for cell in of:
            folder = top / cell.name
            folder.mkdir()
            yield cell, folder, Undisturbed()

    ended = engine.run_pack(jobs()) if together else ((job[0], engine.run(*job)) for job in jobs())
    for cell, how in ended:
        if how is not True:
            raise SystemExit(f"{cell.name}: {how!r}")


def measure(of: list[Cell], *, together: bool) -> dict[str, Any]:
    """How long they take, and where they end."""
    final = dict[int, list[float]]()
    with tempfile.TemporaryDirectory() as top:
        started = time.perf_counter()
        run_all(of, Path(top), together=together)
        took = time.perf_counter() - started
        for cell in of:
            last = (Path(top) / cell.name / "points.jsonl").read_text().splitlines()[-1]
            final.setdefault(cell.rollouts_per_problem, []).append(float(json.loads(last)["avg@4"]))
    rollouts = sum(cell.compute for cell in of)
    return {
        "seconds": round(took, 2),
        "rollouts": rollouts,
        "rollouts_per_second": round(rollouts / took),
        "final": {n: [round(float(f(values)), 4) for f in (np.mean, np.std)] for n, values in final.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", default="4,16,64")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--rollouts", type=int, default=400_000)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    n = [int(one) for one in args.n.split(",")]
    where = torch.cuda.get_device_name() if args.device.startswith("cuda") else "CPU"
    found: dict[str, Any] = {"command": " ".join(sys.argv), "device": where, "python": platform.python_version()}
    for rollouts in (FIRST, args.rollouts):
        for name, together in (("together", True), ("one after another", False)):
            key = f"{name}, {rollouts} rollouts a cell"
            found[key] = measure(cells(n, args.seeds, rollouts, args.device), together=together)
            print(key, json.dumps(found[key]), flush=True)
            if args.out:
                files.write_atomically(args.out, json.dumps(found, indent=1).encode() + b"\n")


if __name__ == "__main__":
    main()
