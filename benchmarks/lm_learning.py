"""What `isocompute train` does out of the box on a CPU: gain of validation avg@4 and wall time, seed by seed.

    python benchmarks/lm_learning.py [--seeds 5] [--updates 30]

Every seed is a process of its own, timed from its start to its end: imports, evaluations and the written checkpoint
included. The target is a gain of at least .10 in under 60 s on 2 cores for every seed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
COMMAND = ("train", "--recipe", "isocompute-easy", "--problems", "chain:easy", "--json")


def run(seed: int, updates: int | None, out: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "isocompute", *COMMAND, "--seed", str(seed), "--out", str(out)]
    if updates is not None:
        command += ["--update-steps", str(updates)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    start = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    if done.returncode:
        raise SystemExit(f"seed {seed}: {done.stderr.strip()}")
    data = json.loads(done.stdout)
    first, last = data["first"], data["last"]
    return {
        "seed": seed,
        "seconds": seconds,
        "before": first["avg@4"],
        "after": last["avg@4"],
        "gain": last["avg@4"] - first["avg@4"],
        "error": (first["avg@4/error"] ** 2 + last["avg@4/error"] ** 2) ** 0.5,
        "updates": last["step"],
        "rollouts": last["rollouts"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--updates", type=int, help="the command's own default if not given")
    args = parser.parse_args()
    print(f"{'seed':>5}{'before':>9}{'after':>9}{'gain':>9}{'±':>7}{'rollouts':>10}{'seconds':>9}")
    rows = []
    with tempfile.TemporaryDirectory(prefix="lm-learning-") as temporary:
        for seed in range(args.seeds):
            row = run(seed, args.updates, Path(temporary) / str(seed))
            rows.append(row)
            print(
                f"{seed:>5}{row['before']:>9.3f}{row['after']:>9.3f}{row['gain']:>+9.3f}{row['error']:>7.3f}"
                f"{row['rollouts']:>10,}{row['seconds']:>9.1f}",
                flush=True,
            )
    gains, seconds = [row["gain"] for row in rows], [row["seconds"] for row in rows]
    load = os.getloadavg()[0]
    out = {
        "seeds": rows,
        "gain_mean": statistics.mean(gains),
        "gain_smallest": min(gains),
        "seconds_mean": statistics.mean(seconds),
        "seconds_longest": max(seconds),
        "cores": os.cpu_count(),
        "load": load,
    }
    print(
        f"gain {out['gain_mean']:+.3f} on average, {out['gain_smallest']:+.3f} at least; "
        f"{out['seconds_longest']:.0f} s at most on {out['cores']} cores (load {load:.1f})"
    )
    print(json.dumps(out))


if __name__ == "__main__":
    main()
