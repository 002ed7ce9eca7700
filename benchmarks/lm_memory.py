"""Training at a batch of 65,536 rollouts in 8 GB: peak memory of one update of the built-in model.

    python benchmarks/lm_memory.py [--problems-per-batch 2048] [--rollouts-per-problem 32] [--gigabytes 8] [--updates 1]

The training is a process of its own, whose data segment (heap and private mappings; Linux) may not grow beyond the
limit: an allocation above it fails, so a run that ends has fitted. The peak of its resident memory is printed as the
system counted it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems-per-batch", type=int, default=2048)
    parser.add_argument("--rollouts-per-problem", type=int, default=32)
    parser.add_argument("--gigabytes", type=float, default=8.0)
    parser.add_argument("--updates", type=int, default=1)
    parser.add_argument("--problems", default="chain:easy")
    args = parser.parse_args()
    limit = int(args.gigabytes * 2**30)

    def bounded() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

    with tempfile.TemporaryDirectory(prefix="lm-memory-") as temporary:
        command = [sys.executable, "-m", "isocompute", "train", "--recipe", "isocompute-easy", "--json"]
        command += ["--problems", args.problems, "--set", f"problems.size={args.problems_per_batch}"]
        command += ["--problems-per-batch", str(args.problems_per_batch)]
        command += ["--rollouts-per-problem", str(args.rollouts_per_problem)]
        command += ["--update-steps", str(args.updates), "--set", "evaluation.points=2,engine_options.device=cpu"]
        command += ["--out", str(Path(temporary) / "run")]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        start = time.perf_counter()
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, preexec_fn=bounded)
        seconds = time.perf_counter() - start
        if done.returncode:
            raise SystemExit(done.stderr.strip())
        data = json.loads(done.stdout)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024  # Linux counts in KiB
    batch = args.problems_per_batch * args.rollouts_per_problem
    out = {
        "batch": batch,
        "updates": data["last"]["step"],
        "rollouts": data["last"]["rollouts"],
        "peak_gigabytes": peak / 2**30,
        "limit_gigabytes": args.gigabytes,
        "seconds": seconds,
    }
    print(
        f"B = {batch:,}: {out['updates']} update(s), peak {peak / 2**30:.2f} GB resident (data limit "
        f"{args.gigabytes:g} GB), {seconds:.0f} s"
    )
    print(json.dumps(out))


if __name__ == "__main__":
    main()
