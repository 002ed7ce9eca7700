"""How many modules run code on the two walks that a new reader follows first, and which, in the order they are met.

    python benchmarks/walks.py [plan|step]

`plan`: four veRL consoles (n = 8 … 64) become a plan: `isocompute plan --budget 4e5 --law logs/`. `step`: a study of
one cell and one update of the built-in model, from `study.toml` to `points.jsonl`, the worker process included. A
module runs code when one of its functions is called, also while modules are imported; executing its top level alone
does not count.
docs/architecture.md shows both lists.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

TRACER = """
import os, sys, threading
root, out, met = os.environ["WALK_ROOT"], os.environ["WALK_OUT"], set()
def profile(frame, event, _):
    code = frame.f_code
    if event != "call" or not code.co_filename.startswith(root) or code in met:
        return
    met.add(code)
    if code.co_name == "<module>" or not code.co_flags & 1:  # the bodies of modules and classes
        return
    with open(f"{out}/{os.getpid()}", "a") as file:
        file.write(f"{code.co_filename[len(root) + 1:]}\\t{code.co_qualname}\\n")
sys.setprofile(profile)
threading.setprofile(profile)
"""
ENTRY = "import sys; sys.argv[0] = 'isocompute'; from isocompute.cli.main import main; main()"
CONFIG = "{{'data': {{'train_batch_size': 32}}, 'actor_rollout_ref': {{'rollout': {{'n': {n}}}}}}}"
STUDY = """
engine = "lm"
seeds = [0]
engine_options = {device = "cpu"}
problems = {set = "easy", source = "chain:easy", size = 16, validation = 8}
grid = {problems_per_batch = [4], rollouts_per_problem = [4]}
budget = {rollouts = 16}
evaluation = {points = 2, samples = 4}
"""


def consoles(folder: Path) -> None:
    """Four runs of veRL in the paper's style: the ceiling rises with n, the speed in rollouts falls."""
    for n in (8, 16, 32, 64):
        lines = [CONFIG.format(n=n)]
        for step in range(0, 12_800 // n + 1, 160 // n):
            reward = 0.3 + (0.25 + 0.03 * math.log2(n)) * (1 - math.exp(-step * n * 32 / 60_000 / math.sqrt(n / 8)))
            reward += 0.004 * math.sin(step * 7.0 + n)
            lines.append(f"step:{step} - val-core/math/acc/mean@4:{reward:.5f} - critic/score/mean:{reward:.5f}")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"n{n}.log").write_text("\n".join(lines) + "\n")


def walk(arguments: list[str], folder: Path) -> list[tuple[str, int]]:
    """Modules in the order in which they first run code, each with how many of its functions ran."""
    import isocompute

    package = Path(isocompute.__file__).parent
    tracer, out = folder / "tracer", folder / "out"
    tracer.mkdir()
    out.mkdir()
    (tracer / "sitecustomize.py").write_text(TRACER)
    path = os.pathsep.join([str(tracer), os.environ.get("PYTHONPATH", "")])
    env = os.environ | {"PYTHONPATH": path, "WALK_ROOT": str(package), "WALK_OUT": str(out)}
    done = subprocess.run(
        [sys.executable, "-c", ENTRY, *arguments], env=env, cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"isocompute {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")
    functions: dict[str, set[str]] = {}
    for process in sorted(out.iterdir(), key=lambda file: file.stat().st_ctime):
        for line in process.read_text().splitlines():
            module, function = line.split("\t")
            functions.setdefault(module, set()).add(function)
    return [(module, len(names)) for module, names in functions.items()]


def main() -> None:
    """Print both walks, or the one that was asked for."""
    import isocompute

    package = Path(isocompute.__file__).parent
    for name in sys.argv[1:] or ["plan", "step"]:
        with tempfile.TemporaryDirectory() as where:
            folder = Path(where)
            if name == "plan":
                consoles(folder / "logs")
                modules = walk(["plan", "--budget", "4e5", "--law", "logs/"], folder)
            else:
                (folder / "study.toml").write_text(STUDY)
                modules = walk(["study", "run", "study.toml", "--out", "runs"], folder)
        lines = sum(len((package / module).read_text().splitlines()) for module, _ in modules)
        functions = sum(count for _, count in modules)
        print(f"{name}: {len(modules)} modules, {functions} functions, {lines:,} lines in those files")
        for module, count in modules:
            print(f"  {module}  {count}")


if __name__ == "__main__":
    main()
