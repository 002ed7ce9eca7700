"""Import trainers' logs as runs, with notes on what was inferred, replaced and skipped; write runs as run folders."""

from __future__ import annotations

import itertools
import json
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from pydantic import ValidationError

from isocompute.core import files
from isocompute.core.errors import InputError, first_wrong
from isocompute.core.metric_names import is_validation
from isocompute.core.recorder import PASS_RATES, POINTS, SETTINGS, RunSettings
from isocompute.core.run import NON_FINITE, POINT_COLUMNS, Run, RunWarning, listing, non_finite, place_of
from isocompute.data.config import config_beside, read_run_config, settings_in_name
from isocompute.data.counters import with_rollouts, with_tokens
from isocompute.data.discover import ImportSource, find, reader_named, reader_of
from isocompute.data.folder import read_run
from isocompute.data.rows import Reader, Rows, Sink

FROM_NAME = " from the name of the run"
"""The end of a note about a setting that only the run's name gives."""
_SHORT = {"problems_per_batch": "Bp", "rollouts_per_problem": "n", "update_steps": "steps"}


@dataclass(frozen=True)
class Imported:
    """One run and how its log was read."""

    run: Run
    format: str
    sources: tuple[str, ...]
    replaced: int = 0
    """Points that a resumed run logged again."""
    skipped_lines: int = 0
    """Lines that look like metrics and could not be read."""
    notes: tuple[str, ...] = ()
    """What was inferred or is unknown."""
    pass_rates: Mapping[tuple[int, str], Sequence[int]] = field(default_factory=dict)
    """(step, problem) → correct, samples; from rollout dumps."""
    pass_rates_set: str = "train"
    """Whether these problems are trained on (`train`) or held out (`validation`)."""
    ignored_name: Mapping[str, int] = field(default_factory=dict)
    """Bp and n in the run's name that the user's values replaced."""

    @property
    def validation_points(self) -> int:
        """Points with a metric on held-out problems."""
        held_out = [m for m in self.run.metrics if is_validation(m)]
        if not held_out:
            return 0
        return int(self.run.points.select(pl.any_horizontal(pl.col(m).is_not_null() for m in held_out).sum()).item())


@dataclass(frozen=True)
class Imports(Sequence[Imported]):
    """The imported runs, and the files of a folder that have none."""

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

    The format is recognised by content, `format` overrides that. `problems_per_batch` and `rollouts_per_problem` are
    used for runs whose logs do not give them.
    """
    many = [str(p) for p in ([paths] if isinstance(paths, str | Path) else paths)]
    if not many:
        raise InputError("nothing to import; name a log, a folder of logs, or - for standard input.")
    reader = None if format is None else reader_named(format)
    defaults = {"problems_per_batch": problems_per_batch, "rollouts_per_problem": rollouts_per_problem}
    items: list[Imported] = []
    left_out: list[str] = []
    for found in find(many):
        try:
            items += _import(found, reader, defaults)
        except InputError as error:
            if found.named_by_user:
                raise
            left_out.append(str(error))
    if not items:
        if len(left_out) == 1:
            raise InputError(left_out[0])
        if not left_out:
            raise InputError(f"{listing(many, 3)}: no file that could be a log.")
        raise InputError(f"{listing(many, 3)}: no log among {len(left_out)} files; the first: {left_out[0]}")
    runs = []
    for item in _one_per_name(items, left_out):  # before tokens: lengths and counters may be in two files of a run
        if item.format != "isocompute":
            points, notes = with_tokens(item.run.points)
            item = replace(item, run=replace(item.run, points=points), notes=(*item.notes, *notes))  # noqa: PLW2901
        runs.append(item)
    return Imports(tuple(runs), tuple(left_out))


def _import(found: ImportSource, reader: Reader | None, defaults: Mapping[str, int | None]) -> list[Imported]:
    if found.run_folder is not None:
        run = read_run(str(found.run_folder), name=found.name)
        run = replace(run, settings=run.settings.filled(**defaults))
        return [Imported(run, "isocompute", (str(found.run_folder),))]
    sink, out = Sink(), []
    used = reader
    sources = tuple(log.name for log in found.logs)
    reading = sources[0]
    try:
        for log in found.logs:
            reading = log.name
            used = reader or reader_of(log)
            used.read(log, sink)
            if log.skipped_lines:
                sink.run(next(iter(sink.runs), None)).skipped_lines += log.skipped_lines
        assert used is not None
        for rows in sink.runs.values():
            if len(rows):
                item = _finish(rows, found, used.name, sources, defaults, several=len(sink.runs) > 1)
                out += [item] if item.run.points.height else []
    except InputError as error:
        raise error if reading in str(error) else InputError(f"{reading}: {error}") from error
    if not out:
        skipped = sum(rows.skipped_lines for rows in sink.runs.values())
        why = f"no rows ({used.looks_for})"
        if skipped:
            lines = "1 line looks" if skipped == 1 else f"{skipped} lines look"
            why = f"{lines} like metrics{' but is not' if skipped == 1 else ', none is'} readable"
        raise InputError(f"{sources[0]}: read as {used.name}, but there are no points: {why}.")
    return out


def _finish(
    rows: Rows,
    found: ImportSource,
    format_name: str,
    sources: tuple[str, ...],
    defaults: Mapping[str, int | None],
    *,
    several: bool,
) -> Imported:
    """The run of these rows: settings from the log, then from the config beside it, then from the run's name."""
    path = found.logs[0].path
    beside = {} if several or path is None or sources[0] == "-" else config_beside(path)
    engine = format_name.split("-console", maxsplit=1)[0].removesuffix("-file").removesuffix("-rollouts")
    logged = {**beside, **rows.config}  # a log may give one half of a batch and the config beside it the other
    config = read_run_config(logged, trainer=engine)
    points, replaced = rows.points(samples=config.evaluation_samples)
    name = rows.name or found.name
    notes = [*rows.notes, *config.notes]
    notes += [
        f"{metric} is {marked.value:g} at {place_of(points, marked.row)}, no longer finite"
        for metric, marked in non_finite(points).items()
    ]
    settings = config.settings
    if beside and (new := settings.keys() - read_run_config(rows.config, trainer=engine).settings.keys()):
        keys = [_short(key) for key in settings if key in new]
        notes.append(f"{', '.join(keys)} from the config file beside the log")
    for key, value in rows.settings.items():
        if key == "update_steps":
            settings.setdefault(key, max(1, round(value / config.steps_per_batch)))
        elif isinstance(value, dict) and isinstance(settings.get(key), dict):
            settings[key] = {**value, **settings[key]}
        elif value is not None:
            settings.setdefault(key, value)
    ignored_name = {}
    for key, value in settings_in_name(name).items():
        if key not in settings and defaults.get(key) is not None:
            ignored_name[key] = value
        elif key not in settings:
            settings[key] = value
            notes.append(f"{_short(key)} = {value}{FROM_NAME}")
    try:
        made = RunSettings.model_validate({"engine": engine} | settings if engine != "table" else settings)
    except ValidationError as error:
        where, why = first_wrong(error)
        raise InputError(f"{sources[0]}: {where}: {why}.") from error
    run = Run(name, made.filled(**defaults), points)
    if rows.has_steps and "rollouts" not in points.columns:
        run, more = with_rollouts(run, logged, steps_per_batch=config.steps_per_batch)
        unknown = [key for key in defaults if getattr(run.settings, key) is None]
        if unknown and "rollouts" not in run.points.columns:
            options = " ".join("--" + key.replace("_", "-") for key in unknown)
            notes.append(f"{' and '.join(map(_short, unknown))} unknown: compute in steps; give {options}")
        notes += more
    return Imported(
        run,
        format_name,
        sources,
        replaced,
        rows.skipped_lines,
        tuple(dict.fromkeys(notes)),
        rows.pass_rates,
        rows.pass_rates_set,
        ignored_name,
    )


def _short(key: str) -> str:
    return _SHORT.get(key, key.replace("_", " "))


def warn_of_differing_names(ignored: Mapping[str, Mapping[str, int]], defaults: Mapping[str, int | None]) -> None:
    """Warn where one value of Bp or n was given for runs whose names differ in it (run → `ignored_name`)."""
    for key, value in defaults.items():
        first: dict[int, str] = {}
        for run, named in ignored.items():
            if key in named:
                first.setdefault(named[key], run)
        if len(first) > 1:
            two = [f"'{run}' says {_short(key)} = {named}" for named, run in first.items()][:2]
            warnings.warn(
                f"--{key.replace('_', '-')} {value} applies to runs whose names differ ({', '.join(two)}): "
                "leave it out if the names are right.",
                RunWarning,
                stacklevel=3,
            )


# Several files of one run.


def _one_per_name(items: list[Imported], left_out: list[str]) -> list[Imported]:
    """One run per name: files that agree are merged, end points give way to their curve, other runs get a new name."""
    out: dict[str, Imported] = {}
    ends: dict[str, int] = {}
    for item in items:
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
            folder = Path(item.sources[0]).absolute().parent.name
            name = _free_name(f"{folder}/{name}" if folder else name, out)
            out[name] = replace(item, run=replace(item.run, name=name))
    for source, count in ends.items():
        curves = "1 run whose curve is there" if count == 1 else f"{count} runs whose curves are there"
        left_out.append(f"{source}: end points of {curves}")
    return list(out.values())


def _has_curve(item: Imported) -> bool:
    return any(c in item.run.points.columns for c in POINT_COLUMNS)


def _merged(a: Imported, b: Imported) -> Imported | None:
    """Merge two files of one run, which agree at every step that both have; None if they differ."""
    left, right = a.run.points, b.run.points
    sources = tuple(dict.fromkeys(a.sources + b.sources))
    if left.equals(right) and a.run.settings == b.run.settings:
        return replace(a, sources=sources)
    if a.run.settings != b.run.settings or "step" not in left.columns or "step" not in right.columns:
        return None
    both = left.join(right, on="step", how="full", coalesce=True, suffix="\0").sort("step")
    shared = [c for c in left.columns if c in right.columns and c != "step"]
    if not any(both[c].is_not_null().any() and both[f"{c}\0"].is_not_null().any() for c in shared):
        return None
    for c in shared:
        pair = both.filter(pl.col(c).is_not_null() & pl.col(f"{c}\0").is_not_null())
        if not pair.is_empty() and not (pair[c] == pair[f"{c}\0"]).all():
            return None
    both = both.with_columns(pl.coalesce(c, f"{c}\0").alias(c) for c in shared).drop([f"{c}\0" for c in shared])
    return replace(
        a,
        run=replace(a.run, points=both, rows=None),
        sources=sources,
        replaced=max(a.replaced, b.replaced),
        skipped_lines=a.skipped_lines + b.skipped_lines,
        notes=tuple(dict.fromkeys(a.notes + b.notes)),
    )


def _free_name(base: str, taken: Iterable[str]) -> str:
    """The name, with a number appended if it is taken (ignoring case)."""
    name, number, taken = base, 2, {other.lower() for other in taken}
    while name.lower() in taken:
        name, number = f"{base}-{number}", number + 1
    return name


# Runs as run folders: `run.json`, `points.jsonl`, `import.json` (their sources), `pass_rates.jsonl`.

_NOT_COMPARED = {*POINT_COLUMNS[1:], NON_FINITE}
_MAX_NAMED = 3


def write_runs(imports: Imports, out: Path) -> list[Path]:
    """Write each run into its own folder below `out`; every file is replaced atomically.

    A run that is already there is overwritten; a warning names those that were different runs.
    """
    folders: dict[str, Path] = {}
    different = []
    for item in imports:
        # Names may differ only in case, or in characters that a folder's name cannot have.
        name = _free_name(folder_name(item.run.name), folders)
        folder = folders[name] = out / name
        if _is_different_run(item.run.points, folder / POINTS):
            different.append(f"'{name}' ({_origin(folder)})")
        _write(item, folder)
    if different:
        more = f" and {len(different) - _MAX_NAMED} more" if len(different) > _MAX_NAMED else ""
        runs = "a different run" if len(different) == 1 else f"{len(different)} different runs"
        warnings.warn(
            f"{out}: replaced {runs} of the same name: {', '.join(different[:_MAX_NAMED])}{more}; use another --out "
            "to keep both.",
            RunWarning,
            stacklevel=2,
        )
    return list(folders.values())


def _is_different_run(points: pl.DataFrame, path: Path) -> bool:
    """Whether the first three points of a file differ from these or share no metric with them, ignoring compute."""
    try:
        with path.open("rb") as file:
            before = [json.loads(line) for line in itertools.islice(file, 3)]
    except (OSError, ValueError):
        return False
    now = [{k: v for k, v in row.items() if v is not None} for row in points.head(len(before)).to_dicts()]
    were, are = ({key for row in rows for key in row} - {"step", *_NOT_COMPARED} for rows in (before, now))
    if were and are and not were & are:
        return True
    pairs = zip(before, now, strict=False)
    return any(old[key] != new[key] for old, new in pairs for key in old.keys() & new.keys() - _NOT_COMPARED)


def _origin(folder: Path) -> str:
    try:
        sources = json.loads((folder / "import.json").read_bytes())["sources"]
        return f"from {sources[0]}"
    except (OSError, ValueError, LookupError, TypeError):
        return "not imported"


def folder_name(run: str) -> str:
    """A run's name as a relative path that any file system accepts, of at most four folders."""
    names = [re.sub(r"[^\w.@=+,% -]+", "_", name).strip(" .")[:120] for name in run.replace("\\", "/").split("/")]
    return "/".join([name for name in names if name][-4:]) or "run"


def summary(item: Imported) -> dict[str, Any]:
    """One run of `import --json`."""
    return {
        "name": item.run.name,
        "format": item.format,
        "points": item.run.points.height,
        "validation_points": item.validation_points,
        "problems_per_batch": item.run.settings.problems_per_batch,
        "rollouts_per_problem": item.run.settings.rollouts_per_problem,
        "metrics": item.run.metrics,
        "replaced": item.replaced,
        "skipped_lines": item.skipped_lines,
        "update_steps": item.run.settings.update_steps,
        "learning_rate": (item.run.settings.recipe or {}).get("learning_rate"),
        "problems": len({problem for _, problem in item.pass_rates}) or None,
        "notes": list(item.notes),
        "sources": list(item.sources),
    }


def _write(item: Imported, folder: Path) -> None:
    settings = json.dumps(item.run.settings.model_dump(exclude_none=True), indent=1, default=str)
    files.write_atomically(folder / SETTINGS, settings.encode() + b"\n")
    if item.pass_rates:
        _write_chunks(folder / PASS_RATES, _pass_rates(item))
    elif not Path(item.sources[0]).resolve().is_relative_to(folder.resolve()):  # a run may be written onto itself
        (folder / PASS_RATES).unlink(missing_ok=True)
    kept = ("format", "replaced", "skipped_lines", "notes", "sources")
    origin = {k: v for k, v in summary(item).items() if k in kept}
    files.write_atomically(folder / "import.json", json.dumps(origin, indent=1).encode() + b"\n")
    _write_chunks(folder / POINTS, _points(item.run.points))  # last: a folder with points is a run


def _points(points: pl.DataFrame) -> Iterator[bytes]:
    """Points as JSON lines, without nulls."""
    kept = [c for c, kind in points.schema.items() if kind.is_numeric() or kind == pl.Boolean or c == NON_FINITE]
    points = points.select(kept)
    for rows in points.iter_slices(4_000):
        yield b"".join(_lines(rows))


def _lines(table: pl.DataFrame) -> list[bytes]:
    """The JSON line of each row. Rows with the same nulls, which most have, are written together."""
    null_RC = np.packbits(table.select(pl.all().is_null()).to_numpy(), axis=1)
    _, kind_R = np.unique(null_RC, axis=0, return_inverse=True)
    kind_R = kind_R.reshape(-1)
    order_R = np.argsort(kind_R, kind="stable")
    out = [b""] * table.height
    for rows in np.split(order_R, np.flatnonzero(np.diff(kind_R[order_R])) + 1):
        same = table[rows]
        filled = same.select(c for c in same.columns if same[c].null_count() == 0)
        for row, line in zip(rows.tolist(), filled.write_ndjson().encode().splitlines(True), strict=True):
            out[row] = line
    return out


def _pass_rates(item: Imported) -> Iterator[bytes]:
    """A line per step, as engines write them."""
    ordered = sorted(item.pass_rates.items(), key=lambda entry: entry[0][0])
    for step, entries in itertools.groupby(ordered, key=lambda entry: entry[0][0]):
        rows = [(problem, correct, samples) for (_, problem), (correct, samples) in entries]
        problems, correct, samples = zip(*rows, strict=True)
        line = {"step": step, "set": item.pass_rates_set, "problems": problems, "samples": samples, "correct": correct}
        yield json.dumps(line).encode() + b"\n"


def _write_chunks(path: Path, chunks: Iterator[bytes]) -> None:
    """Like `write_atomically`, for data that are too large to hold in memory."""
    temporary = path.with_name(f".{path.name}.part")
    try:
        with temporary.open("wb") as file:
            for chunk in chunks:
                file.write(chunk)
        temporary.replace(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}).") from error
    finally:
        temporary.unlink(missing_ok=True)
