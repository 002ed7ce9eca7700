"""Run a study, and see how far it is: what `isocompute study run` and `study status` do."""

from __future__ import annotations

from pathlib import Path

from isocompute.core import files
from isocompute.core.errors import InputError
from isocompute.sweep.execute import load_engine
from isocompute.sweep.folder import CellStatus, Progress, Report, Result, StudyFolder
from isocompute.sweep.local import run_local
from isocompute.sweep.spec import cells, check_cells, parse_spec

__all__ = ["run", "run_spec", "status"]


def _silent(_: Progress) -> None:
    pass


def run(
    *,
    spec: str | Path,
    out: str | Path | None = None,
    workers: int | None = None,
    on: str = "local",
    fork: bool = False,
    report: Report = _silent,
) -> Result:
    """Run what is left of a study: finished cells are skipped, half-finished ones resume from their checkpoint.

    `out` is the study's folder, by default named after the spec's file; `on` is `local`, `ray` or `ray=ADDRESS`.
    """
    name = str(spec)
    return run_spec(files.read_bytes(name), name=name, out=out, workers=workers, on=on, fork=fork, report=report)


def run_spec(
    data: bytes,
    *,
    name: str,
    out: str | Path | None = None,
    workers: int | None = None,
    on: str = "local",
    fork: bool = False,
    report: Report = _silent,
) -> Result:
    """`run` for a spec's text; `name` is what errors call it."""
    where, _, ray_address = on.partition("=")
    if where not in ("local", "ray") or (ray_address and where == "local"):
        raise InputError(f"--on {on}: it is 'local', 'ray' or 'ray=ADDRESS'.")
    if workers is not None and workers < 1:
        raise InputError(f"--workers {workers}: give at least one.")
    parsed = parse_spec(data, name=name)
    all_cells = cells(parsed)
    check_cells(load_engine(parsed.engine), all_cells, budget=parsed.budget.rollouts, name=name)
    folder = StudyFolder(out if out is not None else Path(files.last_part(name)).stem)
    if fork:
        folder = folder.fork()
    elif out is None and files.exists(folder.address) and not files.is_folder(folder.address):
        raise InputError(
            f"{name}: the study's folder is by default the spec's name without its ending, and {folder.address} is a "
            "file; give --out."
        )
    folder.create()
    with folder.locked():
        folder.adopt(parsed, data)
        statuses = folder.status(all_cells)
        if where == "ray":
            from isocompute.sweep.ray import run_ray

            return run_ray(
                engine=parsed.engine,
                statuses=statuses,
                address=folder.address,
                resources=parsed.resources,
                cluster=ray_address or None,
                report=report,
            )
        return run_local(
            engine=parsed.engine, statuses=statuses, address=folder.address, workers=workers, report=report
        )


def status(*, folder: str | Path) -> list[CellStatus]:
    """The state of every cell, from the study's files alone."""
    return StudyFolder(folder).status()
