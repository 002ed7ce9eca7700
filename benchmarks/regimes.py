"""Does the diagnosis name the limit that the simulator was set up to have? A confusion table over fresh worlds.

python benchmarks/regimes.py [--worlds 10] [--first-seed 100]

Each world is drawn anew: problems, base policy, rollouts. `as tested` are the setups of tests/planner/regimes.py;
`other`
changes what should not matter: the size of the world and of the batch, the values of n, the recipe.
"""

from __future__ import annotations

import os

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from isocompute.planner.regime import REGIMES, diagnose
from tests.planner.regimes import SETUPS, Setup, sweep

OTHER = {
    "updates": {"problems": {"features": 32, "size": 12_000, "set": "all"}, "recipe": {"name": "cispo"}},
    "noise": {"problems": {"features": 24, "responses": 24}, "rollouts_per_problem": (2, 16)},
    "interference": {"problems": {"noise": 0.9, "size": 12_000}, "recipe": {"name": "dapo", "learning_rate": 0.05}},
    "data": {"problems": {"size": 300, "set": "hard"}, "recipe": {"name": "isocompute-hard"}},
    "coverage": {"problems": {"size": 2000, "noise": 0.3}, "recipe": {"name": "grpo"}},
}


def varied(name: str) -> Setup:
    """The setup with another batch and, by regime, other settings that leave its limit in place."""
    setup, change = SETUPS[name], dict[str, Any](OTHER[name])
    problems = {**setup.problems, **change.pop("problems")}
    values = {**vars(setup), "problems_per_batch": 32, **change, "problems": problems}
    return Setup(**values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=100)
    arguments = parser.parse_args()
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.worlds)
    for title, setups in (("as tested", SETUPS), ("other", {name: varied(name) for name in REGIMES})):
        print(f"{title:14s}" + "".join(f"{name:>14s}" for name in (*REGIMES, "none")))
        for name in REGIMES:
            named = [diagnose(sweep(setups[name], seed=seed)).regime for seed in seeds]
            counts = [named.count(regime) for regime in (*REGIMES, None)]
            print(f"{name:14s}" + "".join(f"{count:14d}" for count in counts), flush=True)


if __name__ == "__main__":
    main()
