"""Seconds to load a million points: as one run folder, as a thousand, as one table (CSV and JSON lines).

python benchmarks/load_speed.py
"""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

from isocompute.data import load

POINTS, RUNS = 1_000_000, 1_000


def points(count: int, rng: np.random.Generator) -> pl.DataFrame:
    step = np.arange(1, count + 1)
    return pl.DataFrame(
        {
            "step": step,
            "rollouts": step * 256,
            "tokens": step * 256 * 731,
            "seconds": np.round(step * 12.345, 3),
            "avg@4": np.round(rng.random(count), 5),
            "train/avg": rng.random(count),
        }
    )


def write_run(folder: Path, table: pl.DataFrame, seed: int) -> None:
    folder.mkdir(parents=True)
    table.write_ndjson(folder / "points.jsonl")
    settings = {"problems_per_batch": 32, "rollouts_per_problem": 8, "seed": seed}
    (folder / "run.json").write_text(json.dumps(settings) + "\n")


def main() -> None:
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        write_run(root / "one", points(POINTS, rng), 0)
        parts = []
        for i in range(RUNS):
            part = points(POINTS // RUNS, rng)
            write_run(root / "many" / f"run{i:04d}", part, i)
            constants = {"run": f"run{i:04d}", "problems_per_batch": 32, "rollouts_per_problem": 8}
            parts.append(part.with_columns(**{key: pl.lit(value) for key, value in constants.items()}))
        table = pl.concat(parts)
        table.write_csv(root / "table.csv")
        table.write_ndjson(root / "table.jsonl")
        for what in ("one", "many", "table.csv", "table.jsonl"):
            times = []
            for _ in range(3):
                start = time.perf_counter()
                runs = load(root / what)
                times.append(time.perf_counter() - start)
            assert sum(run.points.height for run in runs) == POINTS
            print(f"{what:12s}{len(runs):6d} runs   median {sorted(times)[1]:.2f} s", flush=True)


if __name__ == "__main__":
    main()
