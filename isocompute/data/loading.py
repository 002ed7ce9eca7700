"""From addresses to a `RunSet`: run folders, folders of them (studies), bare tables, single runs of either, and a
trainer's raw logs, which are imported on the way.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path

from isocompute.core import files
from isocompute.core.caught import recorded
from isocompute.core.errors import InputError
from isocompute.core.formatting import plural
from isocompute.core.run import NonFiniteWarning, Run, RunSet, RunSettings, RunWarning, listing
from isocompute.data.cells import odd_cells
from isocompute.data.conditions import spelt
from isocompute.data.finite import NON_FINITE, non_finite, place
from isocompute.data.folder import POINTS, NoPointsError, read_run
from isocompute.data.rewards import REWARDS, rank
from isocompute.data.separators import separator_of
from isocompute.data.table import TABLE_SUFFIXES, read_table
from isocompute.data.without import left_out

__all__ = ["in_memory", "load"]

RUN_MARK = "::"
_DEPTH = 4
_READERS = 8
_LAW = b'{"format": "isocompute-law"'
_TEXT = {".csv": ",", ".tsv": "\t"}
"""Tables as text, and what separates their cells; other separators are read as `isocompute import` reads them."""
_WRITE = "write the table to a file, such as {}, and name that"
_MOST_NAMED = 3
"""Runs and metrics in the warning about values that are left out."""


def load(
    paths: str | Path | Sequence[str | Path],
    *,
    columns: Mapping[str, str] | None = None,
    where: Mapping[str, str] | None = None,
    without: str | Sequence[str] = (),
    problems_per_batch: int | None = None,
    rollouts_per_problem: int | None = None,
) -> RunSet:
    """Read runs. `PATH::NAME` takes one run out of a folder or table, `without` leaves some out by name or pattern.

    `problems_per_batch` and `rollouts_per_problem` fill in what the data do not say; they never replace what they do.
    (The name of a log says nothing where they are given.)
    """
    many = _addresses(paths)
    if not many:
        raise InputError("no runs were given; name a run folder, a folder of runs, or a table.")
    runs: dict[str, Run] = {}
    source = many[0] if len(many) == 1 else f"{len(many)} paths"
    defaults = {"problems_per_batch": problems_per_batch, "rollouts_per_problem": rollouts_per_problem}
    asked = _Asked(columns or {}, where or {}, defaults)
    read = [(path, run) for path in many for run in _load_one(path, asked)]
    gone = left_out([run.name for _, run in read], [without] if isinstance(without, str) else without)
    for path, run in read:
        if run.name in gone:
            continue
        known = runs.get(run.name)
        if known is not None and not (known.points.equals(run.points) and known.settings == run.settings):
            raise InputError(
                f"{path}: two different runs are named '{run.name}'; rename one, or leave one of the files out."
            )
        runs[run.name] = run
    filled = tuple(replace(r, settings=_filled(r.settings, defaults)) for r in runs.values())
    _tell_of_names({name: asked.overruled[name] for name in runs if name in asked.overruled}, defaults)
    _tell_of_non_finite(filled, source)
    return RunSet(filled, source, (columns or {}).get("value"))


def _addresses(given: object) -> list[str]:
    """Paths as text. A table is refused before the names of its columns are taken for paths."""
    single = isinstance(given, str | PathLike | Mapping | RunSet) or _is_table(given)
    many = list(given) if isinstance(given, Iterable) and not single else [given]
    for one in many:
        if not isinstance(one, str | PathLike):
            remedy = in_memory(one) or "give text or a Path, or a list of those"
            raise InputError(f"runs are named by their paths, not given as {type(one).__name__}: {remedy}.")
    return [str(one) for one in many]


def in_memory(given: object) -> str | None:
    """How data that are no file come to be runs; None for what holds none."""
    if isinstance(given, Run | RunSet):
        return "what is loaded already is given as a RunSet, such as isocompute.RunSet((run,))"
    if isinstance(given, Mapping):
        return _WRITE.format('polars.DataFrame(rows).write_parquet("runs.parquet")')
    ways = {
        "write_parquet": 'frame.write_parquet("runs.parquet")',
        "collect": 'frame.collect().write_parquet("runs.parquet")',
        "to_csv": 'frame.to_csv("runs.csv", index=False)',
    }
    how = next((way for method, way in ways.items() if hasattr(type(given), method)), None)
    return _WRITE.format(how) if how is not None and _is_table(given) else None


def _is_table(given: object) -> bool:
    """By its type: a lazy table that is asked for its columns works them out."""
    return hasattr(type(given), "columns")


def _tell_of_non_finite(runs: Iterable[Run], source: str) -> None:
    """One warning for all values that are NaN or infinite: no law can use them, the other points stand."""
    named = [
        f"{name} = {marked.value:g} in run '{run.name}', {place(run.points, marked.row)}"
        + (f" and {marked.rows - 1} later" if marked.rows > 1 else "")
        for run in runs
        for name, marked in non_finite(run.points).items()
    ]
    if not named:
        return
    more = f"; and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
    warnings.warn(f"{source}: left out: {'; '.join(named[:_MOST_NAMED])}{more}.", NonFiniteWarning, stacklevel=3)


def _tell_of_names(said: Mapping[str, Mapping[str, int]], fill: Mapping[str, int | None]) -> None:
    if said:
        from isocompute.data.logs.importing import warn_of_names

        warn_of_names(said, fill)


def _filled(settings: RunSettings, defaults: Mapping[str, int | None]) -> RunSettings:
    missing = {k: v for k, v in defaults.items() if v is not None and getattr(settings, k) is None}
    return settings.model_copy(update=missing) if missing else settings


@dataclass(frozen=True)
class _Asked:
    """How runs are to be read."""

    columns: Mapping[str, str]
    where: Mapping[str, str]
    fill: Mapping[str, int | None]
    overruled: dict[str, Mapping[str, int]] = field(default_factory=dict)
    """What names of logs said of Bp and n where `fill` stands instead, by run; found on the way."""


def _load_one(address: str, asked: _Asked) -> list[Run]:
    columns, where = asked.columns, asked.where
    if RUN_MARK in address:
        whole, name = address.split(RUN_MARK, 1)
        return [RunSet(tuple(_load_one(whole, asked)), whole).named(name)]
    if not address.strip():
        raise InputError("an empty path was given; name a run folder, a folder of runs, or a table.")
    if not files.exists(address):
        raise InputError(f"{address}: no such file or folder.")
    if files.is_folder(address):
        runs = _study(address) or _logs(
            address, f"no run folders (with {POINTS}) in it; name the study's folder", asked
        )
        return _filter_settings(runs, where, address)
    if not address.lower().endswith(TABLE_SUFFIXES):
        runs = _logs(address, f"not a run folder and not a table ({', '.join(TABLE_SUFFIXES)})", asked)
        return _filter_settings(runs, where, address)
    if address.lower().endswith(tuple(_TEXT)) and _separator(address) != _TEXT[address.lower()[-4:]]:
        if columns:
            raise InputError(
                f"{address}: --columns reads tables separated by commas (.csv) or tabs (.tsv); save it so."
            )
        return _filter_settings(_logs(address, "not a table with our columns", asked), where, address)
    if not columns and _is_foreign(address):
        foreign = _foreign(address, asked)
        if foreign is not None:
            return _filter_settings(foreign, where, address)
    return read_table(address, columns=columns, where=where)


def _foreign(address: str, asked: _Asked) -> list[Run] | None:
    """A table in somebody else's columns; None where `where` is about its rows and not about its runs."""
    with recorded() as told:
        try:
            runs = _logs(address, "not a table with our columns", asked)
        except InputError:
            if asked.where:
                return None
            raise
    if not all(any(_said(run, key) is not None for run in runs) for key in asked.where):
        return None
    for one in told:
        warnings.warn(one.message, stacklevel=2)
    return runs


def _logs(address: str, otherwise: str, asked: _Asked) -> list[Run]:
    """A trainer's logs, as `isocompute import` reads them; `otherwise` says what the address is not."""
    from isocompute.data.formats.layout import NO_COMPUTE
    from isocompute.data.logs import import_logs
    from isocompute.data.logs.importing import FROM_NAME

    try:
        found = import_logs(
            address,
            problems_per_batch=asked.fill["problems_per_batch"],
            rollouts_per_problem=asked.fill["rollouts_per_problem"],
        )
    except InputError as error:
        if address.lower().endswith(".json") and files.read_bytes(address).startswith(_LAW):
            otherwise = f"a law, not runs; `isocompute plan --law {address}` plans with it"
            raise InputError(f"{address}: {otherwise}. Name the runs that it was fitted to.") from error
        raise InputError(f"{address}: {otherwise}. As a log: {error}") from error
    tables = [why for why in found.left_out if NO_COMPUTE in why]
    if len(tables) == 1:
        warnings.warn(f"{address}: 1 table left out: {tables[0]}", RunWarning, stacklevel=2)
    elif tables:
        names = listing([files.last_part(why.partition(f": {NO_COMPUTE}")[0]) for why in tables], _MOST_NAMED)
        warnings.warn(
            f"{address}: {len(tables)} tables without step or compute left out: {names}.", RunWarning, stacklevel=2
        )
    skipped = sum(item.skipped_lines for item in found)
    if skipped:
        warnings.warn(
            f"{address}: {plural(skipped, 'line')} that could not be read left out.", RunWarning, stacklevel=2
        )
    guessed = [
        f"{note.removesuffix(FROM_NAME)} of '{item.run.name}'"
        for item in found
        for note in item.notes
        if note.endswith(FROM_NAME)
    ]
    if guessed:
        more = f" and {len(guessed) - _MOST_NAMED} more" if len(guessed) > _MOST_NAMED else ""
        remedy = "say --rollouts-per-problem or --problems-per-batch" if len(found) == 1 else "rename the files"
        warnings.warn(
            f"{address}: {', '.join(guessed[:_MOST_NAMED])}{more} by the name alone; {remedy} where it means something "
            "else.",
            RunWarning,
            stacklevel=2,
        )
    asked.overruled.update({item.run.name: item.overruled for item in found})
    return [item.run for item in found]


def _separator(address: str) -> str:
    from isocompute.data.logs.source import Log

    return separator_of(Log.at(address).start().head, address)


def _is_foreign(address: str) -> bool:
    """Whether a file named like a table is a log, or a table whose columns are somebody else's."""
    from isocompute.data.logs.detect import is_foreign_table

    return is_foreign_table(address)


def _study(address: str) -> list[Run]:
    """The runs of a folder, read side by side: small files keep one core busy each, remote ones mostly wait."""
    with ThreadPoolExecutor(_READERS) as pool:
        read = list(pool.map(_read_begun, _run_folders(address, "", _DEPTH)))
    begun = [run for run in read if isinstance(run, Run)]
    waiting = [error for error in read if isinstance(error, NoPointsError)]
    if waiting and not begun:
        raise waiting[0]
    if waiting:
        # A study that is running: a cell's folder is there before its first evaluation.
        runs = plural(len(waiting), "run")
        warnings.warn(f"{address}: {runs} without a point yet left out", RunWarning, stacklevel=2)
    _tell_of_text(begun, address)
    return begun


def _tell_of_text(runs: Sequence[Run], address: str) -> None:
    """One warning for all columns of a study that are text because of a cell."""
    odd: dict[str, tuple[str, int]] = {}
    for run in runs:
        others = [name for name in run.points.columns if name != NON_FINITE and rank(name) == len(REWARDS)]
        for found in odd_cells(run.points, others, place=run.place):
            first, count = odd.get(found.column, (f"{found} in run '{run.name}'", 0))
            odd[found.column] = first, count + 1
    if odd:
        said = [first + (f" and in {count - 1} more" if count > 1 else "") for first, count in odd.values()]
        more = f"; and {len(said) - _MOST_NAMED} more" if len(said) > _MOST_NAMED else ""
        warnings.warn(
            f"{address}: {'; '.join(said[:_MOST_NAMED])}{more}: taken for text; fix such cells or leave them empty.",
            RunWarning,
            stacklevel=2,
        )


def _read_begun(found: tuple[str, str]) -> Run | NoPointsError:
    address, name = found
    try:
        return read_run(address, name=name)
    except NoPointsError as error:
        return error


def _run_folders(address: str, name: str, depth: int) -> Iterator[tuple[str, str]]:
    """Run folders anywhere below, named by their path from the top so that equal names in two places stay apart."""
    entries = {files.last_part(child): child for child in files.children(address)}
    if POINTS in entries:
        yield address, name or files.last_part(address)
    elif depth > 0:
        for part, child in entries.items():
            if not part.startswith(".") and files.is_folder(child):
                yield from _run_folders(child, f"{name}/{part}".strip("/"), depth - 1)


def _filter_settings(runs: list[Run], where: Mapping[str, str], address: str) -> list[Run]:
    """Runs whose `run.json`, or whose name where a table's row was named by its columns, says so."""
    for key, wanted in where.items():
        values = [_said(run, key) for run in runs]
        kept = [run for run, value in zip(runs, values, strict=True) if _same(value, wanted)]
        if not kept:
            there = sorted({value for value in values if value is not None})
            raise InputError(
                f"--where {key}={wanted} leaves no runs of {address}; '{key}' in run.json is {listing(there)}."
            )
        runs = kept
    return runs


def _said(run: Run, key: str) -> str | None:
    """What a run says of a key; `recipe.learning_rate` is the field of a table in its settings."""
    value: object = run.settings.model_dump()
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return dict(spelt(run.name)).get(key) if value is None else _text(value)


def _same(value: str | None, wanted: str) -> bool:
    """Equal as text or as numbers: 1e-6 is 0.000001."""
    if value is None or value == wanted:
        return value == wanted
    try:
        return float(value) == float(wanted)
    except ValueError:
        return False


def _text(value: object) -> str | None:
    return str(value).lower() if isinstance(value, bool) else None if value is None else str(value)
