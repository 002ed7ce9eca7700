"""Whether the training loop stands on this device: three recipes learn, and a stopped run resumes.

    python benchmarks/rl_check.py [--device cuda] [--out result.json]

The built-in model on `chain:easy`, 32 × 32 rollouts, 40 updates, stopped after 10 of them and resumed, under the
paper's recipe, PipelineRL-8 (ScaleRL) and PPO. Needs torch, pydantic and this folder alone. The model and the problems
are synthetic: the rollouts per second say nothing of a real checkpoint.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch

from isocompute.core.allocation import Cell
from isocompute.rl.engine import LmEngine

RECIPES = ("isocompute-easy", "scalerl", "ppo")


class StopAfter:
    """Asks a run to stop once this many rollouts are reported."""

    def __init__(self, rollouts: float) -> None:
        self.left = rollouts

    def stopping(self) -> bool:
        return self.left <= 0

    def advanced(self, rollouts: int) -> None:
        self.left -= rollouts


def check(recipe: str, device: str, folder: Path) -> dict[str, Any]:
    """One recipe: its first and last point, and its speed without evaluations."""
    cell = Cell(
        name=recipe,
        problems_per_batch=32,
        rollouts_per_problem=32,
        update_steps=40,
        seed=0,
        problems={"source": "chain:easy", "size": 2000, "validation": 128},
        recipe={"name": recipe},
        evaluation={"points": 4, "samples": 4},
        engine={"device": device},
    )
    engine = LmEngine()
    engine.check(cell)
    assert not engine.run(cell, folder, StopAfter(10 * cell.batch_size))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # responses in flight begin again
        assert engine.run(cell, folder, StopAfter(float("inf")))
    first, *_, last = [json.loads(line) for line in (folder / "points.jsonl").read_text().splitlines()]
    return {
        "recipe": recipe,
        "avg@4": [first["avg@4"], last["avg@4"]],
        "logprob_gap": last["logprob_gap"],
        "rollouts_per_second": round(last["rollouts"] / last["seconds"]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", help="write the result here")
    options = parser.parse_args()
    name = torch.cuda.get_device_name() if options.device.startswith("cuda") else platform.processor() or "CPU"
    found: dict[str, Any] = {"device": name, "torch": torch.__version__, "recipes": []}
    for recipe in RECIPES:
        with tempfile.TemporaryDirectory() as folder:
            found["recipes"].append(check(recipe, options.device, Path(folder)))
        print(found["recipes"][-1])
    if options.out:
        Path(options.out).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
