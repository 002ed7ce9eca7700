"""Where n matters in the simulator: a policy that is held to its base by a KL term.

    python benchmarks/sim_anchored.py FOLDER

The paper's two kinds of problem set (6,000 problems, base pass rates in [.3, .6] and [0, .0625]) at Bp = 32, with a KL
term as strong as the pull of rewards. Printed are exact avg@4 on held-out problems by n, best checkpoint up to C, mean
over seeds with its standard error (in thousandths), and where the paper's own curves lead; then the same at 4M rollouts
with the learning rate found anew under that KL, as the paper found its own, at which small n are as good or better.
Sweeps are kept in FOLDER. About ten minutes on one core.
"""

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from isocompute import sweep as study
from isocompute.data import load

ROLLOUTS = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
COMPUTE = (62_500, 125_000, 250_000, 500_000, 1_000_000, 2_000_000, 4_000_000)
SETS: dict[str, tuple[float, float]] = {"easy": (2.0, 0.1), "hard": (0.3, 0.06)}
"""The KL's weight; the learning rate at B = 1,024 that is best at 128 × 8 under it (of .003, .01, .03, .06, .1, .2)."""
PAPER = {
    "easy": "8 to .25M, 32 to .8M, 128 to 1.3M, 256 to 2.7M, then 512; n = 8 ends at .58, 512 at .65",
    "hard": "8 to .76M, then 128; n = 8 ends at .08, 128 at .13",
}


def sweep(folder: Path, of: str, *, rollouts: tuple[int, ...], seeds: int, **recipe: Any) -> dict[int, np.ndarray]:
    """Curves by n: seeds × points of compute, best value so far."""
    lines = ['engine = "sim"', f"seeds = {list(range(seeds))}", "[problems]", f'set = "{of}"', "size = 6000"]
    lines += ["out_of_distribution = 0", "[recipe]", f'name = "isocompute-{of}"']
    lines += [f"{key} = {json.dumps(value)}" for key, value in recipe.items()]
    lines += ["[grid]", "problems_per_batch = [32]", f"rollouts_per_problem = {list(rollouts)}"]
    lines += ["[budget]", f"rollouts = {COMPUTE[-1]}", "[evaluation]", "points = 60"]
    folder.mkdir(parents=True, exist_ok=True)
    spec = folder / "spec.toml"
    spec.write_text("\n".join(lines) + "\n", encoding="utf-8")
    result = study.run(spec=spec, out=folder / "runs", workers=1)
    if result.failed or result.stopped:
        raise SystemExit(f"{folder}: {result.failed or 'stopped'}")
    out: dict[int, list[list[float]]] = {}
    for run in load(folder / "runs"):
        compute, value = run.points["rollouts"].to_numpy(), run.points["exact/avg@4"].to_numpy()
        best = [float(value[compute <= 1.001 * c].max()) for c in COMPUTE]
        out.setdefault(int(run.settings.rollouts_per_problem or 0), []).append(best)
    return {n: np.array(out[n]) for n in sorted(out)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    for of, (kl, rate) in SETS.items():
        found = sweep(folder / of, of, rollouts=ROLLOUTS, seeds=4, kl_coef=kl)
        print(f"{of}, kl_coef {kl}; the paper's leaders: {PAPER[of]}")
        print("C         n*   " + "".join(f"{n:>10}" for n in found))
        for i, c in enumerate(COMPUTE):
            cells = [(x[:, i].mean(), x[:, i].std(ddof=1) / np.sqrt(len(x))) for x in found.values()]
            best = list(found)[int(np.argmax([mean for mean, _ in cells]))]
            print(
                f"{c:<9} {best:<4} " + "".join(f"{mean:>7.3f}({1e3 * error:.0f})" for mean, error in cells), flush=True
            )
        tuned = sweep(folder / f"{of}-tuned", of, rollouts=(8, 32, 128, 512), seeds=2, kl_coef=kl, learning_rate=rate)
        ends = "  ".join(f"{n}: {x[:, -1].mean():.3f}" for n, x in tuned.items())
        print(f"at 4M with learning rate {rate} instead of .01: {ends}")
        print()


if __name__ == "__main__":
    main()
