"""`import_logs`: from paths to runs, with what was found, replaced, skipped and left unknown."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import polars as pl
from pydantic import ValidationError

from isocompute.core.errors import InputError, first_wrong
from isocompute.core.run import POINT_COLUMNS, Run, RunSettings, RunWarning, listing
from isocompute.data.finite import non_finite, place
from isocompute.data.folder import read_run
from isocompute.data.logs.base import Reader
from isocompute.data.logs.collect import Rows, Sink
from isocompute.data.logs.detect import find_reader, reader_named
from isocompute.data.logs.discover import Found, find
from isocompute.data.logs.names import is_validation
from isocompute.data.logs.sampled import LOWER_BOUND, sampled
from isocompute.data.logs.settings import evaluation_samples, from_config, from_name, in_batches, steps_per_batch
from isocompute.data.logs.siblings import config_beside
from isocompute.data.logs.tokens import with_tokens

__all__ = ["FROM_NAME", "Imported", "Imports", "import_logs", "warn_of_names"]

FROM_NAME = " from the name of the run"
"""How a note ends that says so."""


@dataclass(frozen=True)
class Imported:
    """One run and what became of its log."""

    run: Run
    format: str
    sources: tuple[str, ...]
    replaced: int = 0
    """Points that a later line of the same step stands for (a resumed run)."""
    skipped_lines: int = 0
    """Lines that look like metrics and could not be read."""
    notes: tuple[str, ...] = ()
    """What was concluded or is not known."""
    pass_rates: Mapping[tuple[int, str], Sequence[int]] = field(default_factory=dict)
    """(step, problem) → correct, samples; from rollout dumps."""
    pass_rates_set: str = "train"
    """Whether these are problems that are trained on, or held out (`validation`)."""
    overruled: Mapping[str, int] = field(default_factory=dict)
    """What its name says of Bp and n where the user's word stands instead."""

    @property
    def validation_points(self) -> int:
        """Points with a metric on held-out problems."""
        held_out = [m for m in self.run.metrics if is_validation(m)]
        if not held_out:
            return 0
        return int(self.run.points.select(pl.any_horizontal(pl.col(m).is_not_null() for m in held_out).sum()).item())


@dataclass(frozen=True)
class Imports(Sequence[Imported]):
    """The runs, and the files of a folder that turned out to hold none."""

    runs: tuple[Imported, ...]
    left_out: tuple[str, ...] = ()
    """`file: why`."""

    def __len__(self) -> int:
        return len(self.runs)

    def __getitem__(self, index: Any) -> Any:
        return self.runs[index]


def import_logs(
    paths: str | Path | Sequence[str | Path],
    *,
    format: str | None = None,
    problems_per_batch: int | None = None,
    rollouts_per_problem: int | None = None,
) -> Imports:
    """Read trainers' logs: files, folders, globs, `-` for standard input.

    The format is found by content, `format` insists on one. `problems_per_batch` and `rollouts_per_problem` fill in
    what the logs do not say; they never replace what they do.
    """
    many = [str(p) for p in ([paths] if isinstance(paths, str | Path) else paths)]
    if not many:
        raise InputError("nothing to import; name a log, a folder of logs, or - for standard input.")
    reader = None if format is None else reader_named(format)
    fill = {"problems_per_batch": problems_per_batch, "rollouts_per_problem": rollouts_per_problem}
    taken: list[Imported] = []
    left_out: list[str] = []
    for found in find(many):
        try:
            taken += _import(found, reader, fill)
        except InputError as error:
            if found.chosen:
                raise
            left_out.append(str(error))
    if not taken:
        if len(left_out) == 1:
            raise InputError(left_out[0])
        if not left_out:
            raise InputError(f"{listing(many, 3)}: no file that could be a log.")
        raise InputError(f"{listing(many, 3)}: no log among {len(left_out)} files; the first: {left_out[0]}")
    distinct = _distinct(taken, left_out)  # first: a run's lengths and its counters may stand in two files
    return Imports(tuple(_with_tokens(item) for item in distinct), tuple(left_out))


def _import(found: Found, reader: Reader | None, fill: Mapping[str, int | None]) -> list[Imported]:
    if found.run_folder is not None:
        run = read_run(str(found.run_folder), name=found.name)
        return [Imported(_filled(run, fill), "isocompute", (str(found.run_folder),))]
    sink, out = Sink(), []
    used = reader
    sources = tuple(log.name for log in found.logs)
    reading = sources[0]
    try:
        for log in found.logs:
            reading = log.name
            used = reader or find_reader(log)
            used.read(log, sink)
            if log.skipped_lines:
                sink.run(next(iter(sink.runs), None)).skipped_lines += log.skipped_lines
        assert used is not None
        for rows in sink.runs.values():
            if len(rows):
                item = _finish(rows, found, used.name, sources, fill, several=len(sink.runs) > 1)
                out += [item] if item.run.points.height else []
    except InputError as error:
        raise error if reading in str(error) else InputError(f"{reading}: {error}") from error
    if not out:
        skipped = sum(rows.skipped_lines for rows in sink.runs.values())
        lines = (
            "1 line looks like metrics but is not" if skipped == 1 else f"{skipped} lines look like metrics, none is"
        )
        why = f"{lines} readable" if skipped else f"no rows ({used.looks_for})"
        raise InputError(f"{sources[0]}: read as {used.name}, but there are no points: {why}.")
    return out


def _finish(
    rows: Rows,
    found: Found,
    format_name: str,
    sources: tuple[str, ...],
    fill: Mapping[str, int | None],
    *,
    several: bool,
) -> Imported:
    path = found.logs[0].path
    beside = {} if several or path is None or sources[0] == "-" else config_beside(path)
    config = {**beside, **rows.config}
    points, replaced = rows.points(samples=evaluation_samples(config))
    name = rows.name or found.name
    notes = [*rows.notes, *_odd(points)]
    engine = format_name.split("-console", maxsplit=1)[0].removesuffix("-file").removesuffix("-rollouts")
    settings, said = from_config(rows.config, trainer=engine)
    notes += said
    outside, said = from_config(beside, trainer=engine)
    new = [k for k in outside if k not in settings]
    if new:
        notes.append(f"{', '.join(_short(k) for k in new)} from the config file beside the log")
    per_batch = steps_per_batch(config)
    batch = {} if per_batch == 1 else _batch(from_config(config, trainer=engine)[0])  # it may take both to tell it
    settings = in_batches(_over(batch, settings, outside, rows.settings), per_batch)
    named = {key: value for key, value in from_name(name).items() if key not in settings}
    overruled = {key: value for key, value in named.items() if fill.get(key) is not None}
    for key, value in named.items():
        if key not in overruled:
            settings[key] = value
            notes.append(f"{_short(key)} = {value}{FROM_NAME}")
    try:
        made = RunSettings.model_validate({"engine": engine} | settings if engine != "table" else settings)
    except ValidationError as error:
        where, why = first_wrong(error)
        raise InputError(f"{sources[0]}: {where}: {why}.") from error
    run = _filled(Run(name, made, points), fill)
    counted = _counted(run, per_batch)
    if rows.has_steps and "rollouts" not in points.columns:
        counted, said = _with_sampled(counted, config)
        notes += said if "rollouts" in counted.points.columns else [*_unknown(run.settings), *said]
    return Imported(
        counted,
        format_name,
        sources,
        replaced,
        rows.skipped_lines,
        tuple(dict.fromkeys(notes)),
        rows.pass_rates,
        rows.pass_rates_set,
        overruled,
    )


def _batch(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: settings[key] for key in ("problems_per_batch", "rollouts_per_problem") if key in settings}


def warn_of_names(said: Mapping[str, Mapping[str, int]], fill: Mapping[str, int | None]) -> None:
    """Warn where the names of runs (`said`: run → `overruled`) differ in what the user has said for all of them."""
    for key, told in fill.items():
        first: dict[int, str] = {}
        for run, says in said.items():
            if key in says:
                first.setdefault(says[key], run)
        if len(first) > 1:
            two = [f"'{run}' says {_short(key)} = {value}" for value, run in first.items()][:2]
            warnings.warn(
                f"--{key.replace('_', '-')} {told} makes one setting of runs whose names differ ({', '.join(two)}): "
                "leave it out if the names are right.",
                RunWarning,
                stacklevel=3,
            )


def _over(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of the first layer that says them; a table in them field by field."""
    out: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            if isinstance(value, dict) and isinstance(out.get(key), dict):
                out[key] = {**value, **out[key]}
            elif value is not None:
                out.setdefault(key, value)
    return out


def _odd(points: pl.DataFrame) -> list[str]:
    """What is not finite any more, and since when."""
    return [
        f"{name} is {marked.value:g} at {place(points, marked.row)}, not finite any more"
        for name, marked in non_finite(points).items()
    ]


def _filled(run: Run, fill: Mapping[str, int | None]) -> Run:
    missing = {k: v for k, v in fill.items() if v is not None and getattr(run.settings, k) is None}
    return replace(run, settings=run.settings.model_copy(update=missing)) if missing else run


def _counted(run: Run, per_batch: Fraction) -> Run:
    """With the rollouts so far, where a batch's and the steps on it are known."""
    bp, n = run.settings.problems_per_batch, run.settings.rollouts_per_problem
    if bp is None or n is None or "rollouts" in run.points.columns or "step" not in run.points.columns:
        return run
    at = run.points.columns.index("step") + 1
    rollouts = run.points["step"] * (bp * n * per_batch.denominator)
    if per_batch.numerator > 1:
        whole = (rollouts % per_batch.numerator == 0).all()
        rollouts = rollouts // per_batch.numerator if whole else rollouts / per_batch.numerator
    return replace(run, points=run.points.clone().insert_column(at, rollouts.alias("rollouts")))


def _with_sampled(run: Run, config: Mapping[str, Any]) -> tuple[Run, list[str]]:
    """With the rollouts that were sampled, where the trainer says them; else a note where it sampled more."""
    bp, n = run.settings.problems_per_batch, run.settings.rollouts_per_problem
    found = sampled(run.points, problems=bp, rollouts=n, config=config)
    if found is None:
        refilled = (run.settings.recipe or {}).get("zero_variance_filter") == "refill"
        return run, [LOWER_BOUND] if refilled else []
    trained = run.points.get_column("rollouts", default=None)
    if trained is None:
        at = run.points.columns.index("step") + 1
        points = run.points.clone().insert_column(at, found.rollouts)
    elif (trained == found.rollouts).all():
        return run, []
    else:
        points = run.points.with_columns(found.rollouts)
    told = " + ".join(found.keys)
    of = "" if trained is None else f", {found.rollouts[-1]:,}; {trained[-1]:,.0f} of them were trained on"
    notes = [f"rollouts are all that were sampled ({told}){of}", found.doubt]
    return replace(run, points=points), [note for note in notes if note]


def _with_tokens(item: Imported) -> Imported:
    """With tokens of responses, where they can be told; a run folder of ours is taken as it is."""
    if item.format == "isocompute":
        return item
    points, notes = with_tokens(item.run.points)
    return replace(item, run=replace(item.run, points=points), notes=(*item.notes, *notes))


def _unknown(settings: RunSettings) -> list[str]:
    missing = [k for k in ("problems_per_batch", "rollouts_per_problem") if getattr(settings, k) is None]
    if not missing:
        return []
    options = " ".join("--" + k.replace("_", "-") for k in missing)
    return [f"{' and '.join(map(_short, missing))} unknown: compute in steps; give {options}"]


def _short(key: str) -> str:
    return {"problems_per_batch": "Bp", "rollouts_per_problem": "n", "update_steps": "steps"}.get(
        key, key.replace("_", " ")
    )


def _distinct(taken: list[Imported], left_out: list[str]) -> list[Imported]:
    """One run a name: what two files agree on is merged, an end point gives way to its curve, others are told apart."""
    out: dict[str, Imported] = {}
    ends: dict[str, int] = {}
    for item in taken:
        name = item.run.name
        known = out.get(name)
        if known is None:
            out[name] = item
        elif (merged := _merged(known, item)) is not None:
            out[name] = merged
        elif _has_curve(item) != _has_curve(known):
            curve, end = (item, known) if _has_curve(item) else (known, item)
            ends[end.sources[0]] = ends.get(end.sources[0], 0) + 1
            out[name] = curve
        else:
            fresh = _fresh(item, out)
            out[fresh] = replace(item, run=replace(item.run, name=fresh))
    for source, count in ends.items():
        curves = "1 run whose curve is there" if count == 1 else f"{count} runs whose curves are there"
        left_out.append(f"{source}: end points of {curves}")
    return list(out.values())


def _has_curve(item: Imported) -> bool:
    return any(c in item.run.points.columns for c in POINT_COLUMNS)


def _merged(a: Imported, b: Imported) -> Imported | None:
    """One run out of two files that tell of the same one: wherever both have a value, it is the same."""
    left, right = a.run.points, b.run.points
    if left.equals(right) and a.run.settings == b.run.settings:
        return replace(a, sources=tuple(dict.fromkeys(a.sources + b.sources)))
    if a.run.settings != b.run.settings or "step" not in left.columns or "step" not in right.columns:
        return None
    both = left.join(right, on="step", how="full", coalesce=True, suffix="\0").sort("step")
    shared = [c for c in left.columns if c in right.columns and c != "step"]
    if not shared or not any(both[c].is_not_null().any() and both[f"{c}\0"].is_not_null().any() for c in shared):
        return None
    for c in shared:
        pair = both.filter(pl.col(c).is_not_null() & pl.col(f"{c}\0").is_not_null())
        if not pair.is_empty() and not (pair[c] == pair[f"{c}\0"]).all():
            return None
    both = both.with_columns(pl.coalesce(c, f"{c}\0").alias(c) for c in shared).drop([f"{c}\0" for c in shared])
    run = replace(a.run, points=both, rows=None)
    return replace(
        a,
        run=run,
        sources=tuple(dict.fromkeys(a.sources + b.sources)),
        replaced=max(a.replaced, b.replaced),
        skipped_lines=a.skipped_lines + b.skipped_lines,
        notes=tuple(dict.fromkeys(a.notes + b.notes)),
    )


def _fresh(item: Imported, known: Mapping[str, Imported]) -> str:
    """Another name for a different run: with its folder, else with a number."""
    parent = Path(item.sources[0]).absolute().parent.name
    base = f"{parent}/{item.run.name}" if parent else item.run.name
    name, number = base, 2
    while name in known:
        name, number = f"{base}-{number}", number + 1
    return name
