"""Stands for an outside trainer: logs a value a step, keeps its own checkpoint, and fails where it is told to."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, required=True)
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--rate", type=float, default=0.0)
parser.add_argument("--format", default="jsonl")
parser.add_argument("--fail-at", type=int)
parser.add_argument("--wait-at", type=int)
parser.add_argument("--torn", action="store_true")
args = parser.parse_args()

state = args.out / "trainer-step.txt"
first = int(state.read_text()) if state.exists() else 0
print(f"training from step {first} at {args.rate}", flush=True)
log = args.out / f"metrics.{args.format}"
begun = log.exists()
with log.open("a", buffering=1) as file:
    if args.format == "csv" and not begun:
        file.write("global_step,val\n")
    for step in range(first + 1, args.steps + 1):
        value = round(1 - 1 / step, 4)
        if args.format == "csv":
            file.write(f"{step},{value}\n")
        else:
            file.write(json.dumps({"global_step": step, "timing": 0.1}) + "\n")
            file.write(json.dumps({"global_step": step, "val": {"acc": value}}) + "\n")
        if step % 4 == 0:
            state.write_text(str(step))
        if step == args.wait_at and not (args.out / "waited").exists():
            (args.out / "waited").touch()
            while True:
                time.sleep(1)
        if step == args.fail_at:
            for line in range(20):
                print(f"line {line}")
            print("CUDA out of memory", file=sys.stderr)
            sys.exit(3)
    if args.torn:
        file.write('{"global_step": 99, "val":')
