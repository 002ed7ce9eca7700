"""Kill a study again and again and compare its points with those of one that was never interrupted.

    python benchmarks/study_kill.py [--kills 20] [--seed 0]       SIGKILL of `study run`, all its workers orphaned
    python benchmarks/study_kill.py --on ray [--kills 3]          SIGKILL of a node with its running cells, each time

Locally the moments are random: some hit the runner's start, most its work, be that a step, a checkpoint or a cell's
end. On Ray a cluster of two nodes runs in this machine; one node is killed while cells run on it and replaced.
Ends with code 1 if a byte differs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
SPEC = """
engine = "tests.sweep.fake:FakeEngine"
seeds = [0, 1]
grid = {problems_per_batch = [2, 4, 8], rollouts_per_problem = [2, 4, 8]}
budget = {rollouts = 4000}
engine_options = {every = 7, pause = 0.005}
"""


def points(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("points.jsonl"))}


def size(folder: Path) -> int:
    return sum(map(len, points(folder).values())) if folder.exists() else 0


def start(spec: Path, out: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "isocompute", "study", "run", str(spec), "--out", str(out)]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.DEVNULL)


def kill_runner(spec: Path, out: Path, kills: int, rng: random.Random) -> dict[str, Any]:
    """Kill the runner: every fourth time anywhere in its start-up, else within a second after it wrote a point."""
    done = at_work = 0
    while done < kills:
        before = points(out) if out.exists() else {}
        process = start(spec, out)
        if done % 4 == 0:
            time.sleep(rng.uniform(0.0, 1.5))
        else:
            while process.poll() is None and (not out.exists() or points(out) == before):
                time.sleep(0.005)
            time.sleep(rng.uniform(0.0, 1.0))
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        done += 1
        at_work += out.exists() and points(out) != before
    code = start(spec, out).wait()
    return {"kills": done, "kills_at_work": at_work, "exit_code": code}


def kill_nodes(spec: Path, out: Path, kills: int, rng: random.Random) -> dict[str, Any]:
    """Kill a node that runs cells, wait until the others have gone on, add a new one."""
    import ray
    from ray.cluster_utils import Cluster

    from isocompute import sweep as study

    os.environ["PYTHONPATH"] = str(ROOT)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 10**8})
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    found: list[study.Result] = []
    node = cluster.add_node(num_cpus=2, object_store_memory=10**8)
    thread = threading.Thread(target=lambda: found.append(study.run(spec=spec, out=out, on="ray")))
    thread.start()
    done = 0
    for _ in range(kills):
        before = size(out)
        while thread.is_alive() and size(out) < before + 20_000:
            time.sleep(0.05)
        time.sleep(rng.uniform(0.0, 1.0))
        if not thread.is_alive():
            break
        cluster.remove_node(node, allow_graceful=False)
        done += 1
        node = cluster.add_node(num_cpus=2, object_store_memory=10**8)
    thread.join()
    ray.shutdown()
    cluster.shutdown()
    return {"kills": done, "exit_code": int(bool(found[0].failed))}


def main() -> None:
    from isocompute import sweep as study

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--on", choices=["local", "ray"], default="local")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    with tempfile.TemporaryDirectory(prefix="study-kill-") as temporary:
        top = Path(temporary)
        spec = top / "study.toml"
        # Slower steps where a node must die: its loss takes Ray seconds to notice.
        spec.write_text(SPEC if args.on == "local" else SPEC.replace("0.005", "0.02"))
        whole, out = top / "whole", top / "out"
        (top / "fast.toml").write_text(SPEC.replace("pause = 0.005", "pause = 0.0"))
        study.run(spec=top / "fast.toml", out=whole)
        begin = time.perf_counter()
        if args.on == "local":
            summary = kill_runner(spec, out, args.kills or 20, rng)
        else:
            summary = kill_nodes(spec, out, args.kills or 3, rng)
        made, expected = points(out), points(whole)
        same = made == expected and summary["exit_code"] == 0
        left = sorted(path.name for path in out.rglob(".*"))
        summary |= {
            "on": args.on,
            "cells": len(expected),
            "points": sum(data.count(b"\n") for data in expected.values()),
            "identical": same,
            "left_behind": left,
            "seconds": time.perf_counter() - begin,
        }
    print(f"{summary['kills']} kills on {args.on}: {summary['points']:,} points of {summary['cells']} cells", end=" ")
    print("identical to the byte" if same else "DIFFER")
    print(json.dumps(summary))
    sys.exit(0 if same and not left else 1)


if __name__ == "__main__":
    main()
