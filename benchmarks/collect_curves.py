"""Collect the validation curves of a folder of public runs into one bare table that `isocompute` reads.

    python benchmarks/collect_curves.py DATA_FOLDER curves.csv [--train train_curves.csv]

Understands the layouts found there: long tracker exports (`run_name,metric,step,value`), wide tracker exports (a
column a run), veRL console logs with the 2024 keys, Tinker `metrics.jsonl`, digitised tables
(`run,...,gpu_hours_k,pass_rate`) and, for `--train`, TRL states and consoles. A run that appears in several files
counts once, in its longest version.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
from pathlib import Path

Curve = list[tuple[float, float]]
MINIMUM_POINTS = 15


def long_exports(folder: Path) -> dict[str, Curve]:
    runs: dict[str, Curve] = {}
    for path in sorted(folder.glob("garg-grpo-math/*_data.csv")):
        found: dict[str, Curve] = {}
        with path.open() as file:
            for row in csv.DictReader(file):
                if row["metric"] == "eval/reward":
                    found.setdefault(row["run_name"], []).append((float(row["step"]), float(row["value"])))
        for name, curve in found.items():
            if len(curve) > len(runs.get(name, [])):
                runs[name] = curve
    return runs


def wide_exports(folder: Path) -> dict[str, Curve]:
    runs: dict[str, Curve] = {}
    for path in sorted(folder.glob("wandb-csv-*/*.csv")):
        with path.open() as file:
            for row in csv.DictReader(file):
                step = float(row.pop("Step"))
                for name, value in row.items():
                    if value:
                        runs.setdefault(f"{path.parent.name}/{name}", []).append((step, float(value)))
    return runs


def verl_consoles(folder: Path, key: str) -> dict[str, Curve]:
    runs: dict[str, Curve] = {}
    pattern = re.compile(rf"step:(\d+) - .*?{key}:(-?[\d.e+-]+)")
    for path in sorted(folder.glob("verl-data-ppo-gsm8k/*.log")):
        for line in path.read_text(errors="replace").splitlines():
            if match := pattern.search(line):
                runs.setdefault(path.stem, []).append((float(match[1]), float(match[2])))
    return runs


def tinker(folder: Path, key: str) -> dict[str, Curve]:
    runs: dict[str, Curve] = {}
    for path in sorted(folder.glob("tinker-rubric/*.metrics.jsonl")):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            if key in row:
                name = f"tinker/{path.name.split('.')[0]}"
                runs.setdefault(name, []).append((float(row["step"]), row[key]))
    return runs


def digitised(folder: Path) -> dict[str, Curve]:
    runs: dict[str, Curve] = {}
    for path in sorted(folder.glob("scalerl-*/*.csv")):
        with path.open() as file:
            for row in csv.DictReader(file):
                runs.setdefault(f"scalerl/{row['run']}", []).append(
                    (float(row["gpu_hours_k"]), float(row["pass_rate"]))
                )
    return runs


def trl(folder: Path) -> dict[str, Curve]:
    runs: dict[str, Curve] = {}
    for path in sorted(folder.glob("trl-trainer-state/*.json")):
        rows = json.loads(path.read_text())["log_history"]
        runs[f"trl/{path.stem}"] = [(float(r["step"]), r["reward"]) for r in rows if "reward" in r]
    pattern = re.compile(r"'reward': '?(-?[\d.e+-]+)")
    for path in sorted(folder.glob("trl-console-dict/*.log")):
        values = [float(m[1]) for m in pattern.finditer(path.read_text(errors="replace"))]
        runs[f"trl/{path.stem}"] = [(float(i + 1), v) for i, v in enumerate(values)]
    return runs


def binned(curve: Curve, points: int = 40) -> Curve:
    """Train rewards are one noisy batch each: average them into about as many points as an evaluation log has."""
    size = max(1, len(curve) // points)
    return [
        (curve[i + size - 1][0], sum(v for _, v in curve[i : i + size]) / size)
        for i in range(0, len(curve) - size + 1, size)
    ]


def write(path: Path, runs: dict[str, Curve]) -> None:
    kept = {name: curve for name, curve in runs.items() if len(curve) >= MINIMUM_POINTS}
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["run", "step", "value"])
        for name, curve in kept.items():
            table.writerows((name, step, value) for step, value in curve)
    print(f"{path}: {len(kept)} runs with at least {MINIMUM_POINTS} points, {len(runs) - len(kept)} shorter")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--train", type=Path, help="also write the train-reward curves here")
    args = parser.parse_args()
    folder: Path = args.folder
    write(
        args.out,
        long_exports(folder)
        | wide_exports(folder)
        | verl_consoles(folder, "val/test_score/openai/gsm8k")
        | tinker(folder, "test/env/all/reward/total")
        | digitised(folder),
    )
    if args.train:
        train = trl(folder) | verl_consoles(folder, "critic/score/mean") | tinker(folder, "env/all/reward/total")
        write(args.train, {f"train:{name}": binned(curve) for name, curve in train.items()})


if __name__ == "__main__":
    main()
