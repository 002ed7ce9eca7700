"""Time and memory of importing a large veRL console log.

    python benchmarks/import_speed.py [--gigabytes 1] [--kind console|dense|resumed]

Writes the log into a temporary folder, imports it in a process of its own with `import --json` and again with `--out`,
and prints one JSON object: seconds (by the clock and of one core), peak memory (MB) and what was found. Three logs:

console   what a long run leaves behind: about one line in forty is a step, the rest is model text, warnings and
          progress bars of many processes
dense     nothing but step lines, each step new: the most there is to parse and to keep
resumed   the same few hundred steps over and over, as after many restarts
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

PREFIX = "\x1b[36m(TaskRunner pid=2021996)\x1b[0m "
WORKER = "\x1b[36m(WorkerDict pid=2033021, ip=10.0.0.7)\x1b[0m "
KEYS = (
    *(f"actor/{k}" for k in ("entropy", "pg_loss", "pg_clipfrac", "ppo_kl", "kl_loss", "grad_norm", "lr")),
    *(f"critic/{k}/{s}" for k in ("score", "rewards", "advantages", "returns") for s in ("mean", "max", "min")),
    *(f"{k}_length/{s}" for k in ("response", "prompt") for s in ("mean", "max", "min", "clip_ratio")),
    *(f"timing_s/{k}" for k in ("gen", "reward", "old_log_prob", "adv", "update_actor", "step")),
    *("timing_per_token_ms/gen", "perf/mfu/actor", "perf/total_num_tokens", "perf/time_per_step", "perf/throughput"),
    *("perf/max_memory_allocated_gb", "training/global_step", "training/epoch"),
)
CONFIG = (
    "{'actor_rollout_ref': {'actor': {'optim': {'lr': 1e-06},",
    "                                 'ppo_mini_batch_size': 32},",
    "                       'rollout': {'n': 8, 'temperature': 1.0}},",
    " 'data': {'train_batch_size': 32, 'train_files': 'train.parquet'},",
    " 'trainer': {'n_gpus_per_node': 8, 'nnodes': 1}}",
)


def step_line(step: int, rng: random.Random) -> str:
    pairs = [f"{key}:{rng.random()!r}" for key in KEYS]
    if step % 20 == 0:
        pairs += [
            f"val-core/math/acc/mean@4:np.float64({rng.random()!r})",
            f"val-aux/math/acc/worst@4/mean:{rng.random()!r}",
        ]
    return f"{PREFIX}step:{step} - " + " - ".join(pairs) + "\n"


def foreign(rng: random.Random) -> str:
    words = " ".join(rng.choice(("let", "us", "check", "the", "answer", "is", "42", "x:", "=", "-")) for _ in range(60))
    done = rng.randrange(1000)
    return rng.choice(
        (
            f"{WORKER}<|im_start|>assistant {words}\n",
            f"{WORKER}INFO 11-19 18:59:13 [scheduler.py:201] step: 12 tokens - {words[:80]}\n",
            f"\rTraining Progress: {done // 10:3d}%|████      | {done}/1000 [10:07<1:02:03, 3.1s/it]",
            f"{words}\n",
        )
    )


def make(path: Path, size: int, kind: str) -> int:
    """Write the log; gives the number of distinct steps in it."""
    rng = random.Random(0)
    block = 400
    texts = [foreign(rng) for _ in range(block * 40)]
    step = written = 0
    steps: set[int] = set()
    with path.open("w", encoding="utf-8") as file:
        file.writelines(PREFIX + line + "\n" for line in CONFIG)
        template = step_line(1, rng).split(" - ", 1)[1]
        while written < size:
            step = step % 300 + 1 if kind == "resumed" else step + 1
            # A fresh line costs more to make than to read; every fiftieth is, the others repeat its digits.
            if step % 50 == 0:
                template = step_line(step, rng).split(" - ", 1)[1]
            line = f"{PREFIX}step:{step} - {template}"
            if kind == "console":
                at = rng.randrange(len(texts) - 40)
                line += "".join(texts[at : at + 40]) + "\n"
            written += file.write(line)
            steps.add(step)
    return len(steps)


CHILD = """
import json, resource, sys, time
began = time.perf_counter()
from isocompute.data.importing import import_logs
from isocompute.data.importing import summary, write_runs
from pathlib import Path
imports = import_logs(sys.argv[1])
if len(sys.argv) > 2:
    write_runs(imports, Path(sys.argv[2]))
(run,) = imports
print(json.dumps({
    "seconds": round(time.perf_counter() - began, 2),
    "cpu_seconds": round(time.process_time(), 2),
    "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    **{k: v for k, v in summary(run).items() if k in
       ("points", "validation_points", "problems_per_batch", "rollouts_per_problem", "replaced", "skipped_lines")},
}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--kind", choices=("console", "dense", "resumed"), action="append")
    arguments = parser.parse_args()
    out = {}
    for kind in arguments.kind or ("console", "dense", "resumed"):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "verl.log"
            steps = make(path, int(arguments.gigabytes * 2**30), kind)
            out[kind] = {
                "megabytes": path.stat().st_size >> 20,
                "steps": steps,
            }
            for name, extra in (("import", ()), ("import_and_write", (str(Path(folder) / "runs"),))):
                done = subprocess.run(
                    [sys.executable, "-c", CHILD, str(path), *extra], capture_output=True, text=True, check=True
                )
                out[kind][name] = json.loads(done.stdout)
                assert out[kind][name]["points"] == steps, (kind, out[kind][name], steps)
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
