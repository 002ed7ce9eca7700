"""What the runner adds to a cell: a study of 10,000 tiny cells against the same run folders written in a bare loop.

    python benchmarks/study_overhead.py [--cells 10000] [--workers 2]

Cells are two steps of the tests' fake engine. `overhead` is the wall time of the whole study, worker start and look
over the folder included, less the bare loop's time spread over the workers, for each cell. A second run of the finished
study shows what skipping costs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))


class Free:
    """A control that never stops."""

    def stopping(self) -> bool:
        return False

    def advanced(self, rollouts: int) -> None:
        pass


def main() -> None:
    from isocompute import sweep as study
    from tests.sweep.fake import FakeEngine

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="study-overhead-") as temporary:
        top = Path(temporary)
        spec = top / "study.toml"
        spec.write_text(
            f'engine = "tests.sweep.fake:FakeEngine"\nseeds = {list(range(args.cells))}\n'
            "grid = {problems_per_batch = [2], rollouts_per_problem = [2]}\nbudget = {rollouts = 8}\n"
        )
        cells = study.cells(study.read_spec(spec))
        start = time.perf_counter()
        for cell in cells:
            (top / "bare" / cell.name).mkdir(parents=True)
            FakeEngine().run(cell, top / "bare" / cell.name, Free())
        bare = time.perf_counter() - start
        start = time.perf_counter()
        result = study.run(spec=spec, out=top / "out", workers=args.workers)
        whole = time.perf_counter() - start
        assert result.finished == len(cells), result.failed
        start = time.perf_counter()
        study.run(spec=spec, out=top / "out", workers=args.workers)
        again = time.perf_counter() - start
    each = 1000.0 / len(cells)
    out = {
        "cells": len(cells),
        "workers": args.workers,
        "cores": os.cpu_count(),
        "study_ms_a_cell": whole * each,
        "bare_loop_ms_a_cell": bare * each,
        "overhead_ms_a_cell": (whole - bare / args.workers) * each,
        "skipping_ms_a_cell": again * each,
    }
    print(f"study of {len(cells):,} cells on {args.workers} workers: {whole:.1f} s, {whole * each:.2f} ms a cell")
    print(f"bare loop in one process: {bare:.1f} s, {bare * each:.2f} ms a cell")
    print(f"overhead {out['overhead_ms_a_cell']:.2f} ms a cell; skipping a finished one {again * each:.3f} ms")
    print(json.dumps(out))


if __name__ == "__main__":
    main()
