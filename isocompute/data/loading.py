"""Load runs as a `RunSet`.

An address is a run folder, a folder of them (a study), a table, a single run of either (`PATH::NAME`), or a trainer's
raw log, which is imported first.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from os import PathLike
from pathlib import Path

from isocompute.core import files
from isocompute.core.errors import InputError, recorded
from isocompute.core.formatting import plural
from isocompute.core.metric_names import REWARDS, reward_rank
from isocompute.core.recorder import POINTS
from isocompute.core.run import (
    NON_FINITE,
    NonFiniteWarning,
    Run,
    RunSet,
    RunWarning,
    listing,
    non_finite,
    place_of,
    text_cells,
)
from isocompute.data.columns import NO_COMPUTE
from isocompute.data.compatible import columns_in_name
from isocompute.data.discover import is_foreign_table
from isocompute.data.folder import read_run
from isocompute.data.frames import NoPointsError, separator_of
from isocompute.data.importing import FROM_NAME, Imports, import_logs, warn_of_differing_names
from isocompute.data.source import Log
from isocompute.data.table import TABLE_SUFFIXES, read_table

_DEPTH = 4
_THREADS = 8
_SEPARATORS = {".csv": ",", ".tsv": "\t"}
"""Tables with other separators are imported as logs."""
_MAX_NAMED = 3
"""Runs, metrics and tables that a warning names."""


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

    `problems_per_batch` and `rollouts_per_problem` are used for runs without them, and never replace a run's own. If
    they are given, the values in a log's name are ignored.
    """
    many = _addresses(paths)
    if not many:
        raise InputError("no runs were given; name a run folder, a folder of runs, or a table.")
    source = many[0] if len(many) == 1 else f"{len(many)} paths"
    defaults = {"problems_per_batch": problems_per_batch, "rollouts_per_problem": rollouts_per_problem}
    request = _Request(columns or {}, where or {}, defaults)
    read = [(path, run) for path in many for run in _load_one(path, request)]
    excluded = excluded_runs([run.name for _, run in read], [without] if isinstance(without, str) else without)
    runs: dict[str, Run] = {}
    for path, run in read:
        if run.name in excluded:
            continue
        known = runs.get(run.name)
        if known is not None and not (known.points.equals(run.points) and known.settings == run.settings):
            raise InputError(
                f"{path}: two different runs are named '{run.name}'; rename one, or leave one of the files out."
            )
        runs[run.name] = run
    filled = tuple(replace(run, settings=run.settings.filled(**defaults)) for run in runs.values())
    warn_of_differing_names({n: request.ignored_names[n] for n in runs if n in request.ignored_names}, defaults)
    _warn_of_non_finite(filled, source)
    return RunSet(filled, source, (columns or {}).get("value"))


@dataclass(frozen=True)
class _Request:
    """The arguments of `load` that apply to every path."""

    columns: Mapping[str, str]
    where: Mapping[str, str]
    defaults: Mapping[str, int | None]
    ignored_names: dict[str, Mapping[str, int]] = field(default_factory=dict)
    """Bp and n in the names of logs that `defaults` replaced, by run; filled while reading."""


def _addresses(given: object) -> list[str]:
    """Paths as text. A table in memory is refused, because iterating over it would yield column names."""
    single = isinstance(given, str | PathLike | Mapping | RunSet) or hasattr(type(given), "columns")
    many = list(given) if isinstance(given, Iterable) and not single else [given]
    for one in many:
        if not isinstance(one, str | PathLike):
            remedy = hint_for_data_in_memory(one) or "give text or a Path, or a list of those"
            raise InputError(f"runs are named by their paths, not given as {type(one).__name__}: {remedy}.")
    return [str(one) for one in many]


def hint_for_data_in_memory(given: object) -> str | None:
    """How to load data that are in memory; None if the object holds no data."""
    if isinstance(given, Run | RunSet):
        return "loaded runs are given as a RunSet, such as isocompute.RunSet((run,))"
    how = 'polars.DataFrame(rows).write_parquet("runs.parquet")' if isinstance(given, Mapping) else None
    if hasattr(type(given), "columns"):  # asked of the type: a lazy frame computes its columns
        ways = {
            "write_parquet": 'frame.write_parquet("runs.parquet")',
            "collect": 'frame.collect().write_parquet("runs.parquet")',
            "to_csv": 'frame.to_csv("runs.csv", index=False)',
        }
        how = how or next((way for method, way in ways.items() if hasattr(type(given), method)), None)
    return None if how is None else f"write the table to a file, such as {how}, and name that"


def excluded_runs(names: Sequence[str], without: Sequence[str]) -> set[str]:
    """The names that `--without` leaves out, by name or pattern; one that matches no run is an error.

    >>> sorted(excluded_runs(["n8", "n16", "n32"], ["n8", "n3?"]))
    ['n32', 'n8']
    """
    out: set[str] = set()
    for wanted in without:
        # An exact name takes precedence: it may contain the special characters of a pattern.
        matched = {wanted} if wanted in names else {name for name in names if fnmatchcase(name, wanted)}
        if not matched:
            near = get_close_matches(wanted, names, n=4, cutoff=0.4)
            raise InputError(
                f"--without {wanted}: no run has that name; "
                + (f"the nearest are {listing(near)}." if near else f"there are {listing(sorted(set(names)))}.")
            )
        out |= matched
    if names and out.issuperset(names):
        raise InputError(f"--without {' --without '.join(without)}: no run remains; leave fewer out.")
    return out


def _warn_of_non_finite(runs: Iterable[Run], source: str) -> None:
    """One warning for all values that are NaN or infinite."""
    named = [
        f"{name} = {marked.value:g} in run '{run.name}', {place_of(run.points, marked.row)}"
        + (f" and {marked.rows - 1} later" if marked.rows > 1 else "")
        for run in runs
        for name, marked in non_finite(run.points).items()
    ]
    if named:
        more = f"; and {len(named) - _MAX_NAMED} more" if len(named) > _MAX_NAMED else ""
        warnings.warn(f"{source}: left out: {'; '.join(named[:_MAX_NAMED])}{more}.", NonFiniteWarning, stacklevel=3)


def _load_one(address: str, request: _Request) -> list[Run]:
    if "::" in address:
        whole, name = address.split("::", 1)
        return [RunSet(tuple(_load_one(whole, request)), whole).named(name)]
    if not address.strip():
        raise InputError("an empty path was given; name a run folder, a folder of runs, or a table.")
    if not files.exists(address):
        raise InputError(f"{address}: no such file or folder.")
    where, suffix = request.where, address.lower()[-4:]
    if files.is_folder(address):
        runs = _load_study(address) or _load_logs(
            address, f"no run folders (with {POINTS}) in it; name the study's folder", request
        )
        return _filter_by_settings(runs, where, address)
    if not address.lower().endswith(TABLE_SUFFIXES):
        runs = _load_logs(address, f"not a run folder and not a table ({', '.join(TABLE_SUFFIXES)})", request)
        return _filter_by_settings(runs, where, address)
    if suffix in _SEPARATORS and separator_of(Log.at(address).start().head, address) != _SEPARATORS[suffix]:
        if request.columns:
            raise InputError(
                f"{address}: --columns reads tables separated by commas (.csv) or tabs (.tsv); save it so."
            )
        return _filter_by_settings(_load_logs(address, "not a table with our columns", request), where, address)
    if not request.columns and is_foreign_table(address):
        foreign = _load_foreign_table(address, request)
        if foreign is not None:
            return _filter_by_settings(foreign, where, address)
    return read_table(address, columns=request.columns, where=where)


def _load_foreign_table(address: str, request: _Request) -> list[Run] | None:
    """The runs of a table whose columns are not ours; None if `where` filters its rows and not its runs."""
    with recorded() as caught:
        try:
            runs = _load_logs(address, "not a table with our columns", request)
        except InputError:
            if request.where:
                return None
            raise
    if not all(any(_setting(run, key) is not None for run in runs) for key in request.where):
        return None
    for one in caught:
        warnings.warn(one.message, stacklevel=2)
    return runs


def _load_logs(address: str, otherwise: str, request: _Request) -> list[Run]:
    """Import a trainer's logs; the error begins with `otherwise`, the reason why this is not a study or a table."""
    try:
        found = import_logs(
            address,
            problems_per_batch=request.defaults["problems_per_batch"],
            rollouts_per_problem=request.defaults["rollouts_per_problem"],
        )
    except InputError as error:
        if address.lower().endswith(".json") and files.read_bytes(address).startswith(b'{"format": "isocompute-law"'):
            raise InputError(
                f"{address}: a law, not runs; `isocompute plan --law {address}` plans with it. Name the runs that it "
                "was fitted to."
            ) from error
        raise InputError(f"{address}: {otherwise}. As a log: {error}") from error
    for message in _import_warnings(found):
        warnings.warn(f"{address}: {message}", RunWarning, stacklevel=2)
    request.ignored_names.update({item.run.name: item.ignored_name for item in found})
    return [item.run for item in found]


def _import_warnings(found: Imports) -> Iterator[str]:
    """Warnings about what was left out of the logs, and about settings that only their names give."""
    tables = [why for why in found.left_out if NO_COMPUTE in why]
    if len(tables) == 1:
        yield f"1 table left out: {tables[0]}"
    elif tables:
        names = listing([files.last_part(why.partition(f": {NO_COMPUTE}")[0]) for why in tables], _MAX_NAMED)
        yield f"{len(tables)} tables without step or compute left out: {names}."
    skipped = sum(item.skipped_lines for item in found)
    if skipped:
        yield f"{plural(skipped, 'line')} that could not be read left out."
    guessed = [
        f"{note.removesuffix(FROM_NAME)} of '{item.run.name}'"
        for item in found
        for note in item.notes
        if note.endswith(FROM_NAME)
    ]
    if guessed:
        more = f" and {len(guessed) - _MAX_NAMED} more" if len(guessed) > _MAX_NAMED else ""
        remedy = "say --rollouts-per-problem or --problems-per-batch" if len(found) == 1 else "rename the files"
        yield (f"{', '.join(guessed[:_MAX_NAMED])}{more} by the name alone; {remedy} where it means something else.")


def _load_study(address: str) -> list[Run]:
    """The runs of a folder, read in parallel: small local files keep one core busy each, remote ones mostly wait."""

    def read(found: tuple[str, str]) -> Run | NoPointsError:
        try:
            return read_run(found[0], name=found[1])
        except NoPointsError as error:
            return error

    with ThreadPoolExecutor(_THREADS) as pool:
        results = list(pool.map(read, _run_folders(address, "", _DEPTH)))
    runs = [run for run in results if isinstance(run, Run)]
    waiting = [error for error in results if isinstance(error, NoPointsError)]
    if waiting and not runs:
        raise waiting[0]
    if waiting:  # a study in progress: a cell's folder is there before its first evaluation
        count = plural(len(waiting), "run")
        warnings.warn(f"{address}: {count} without a point yet left out", RunWarning, stacklevel=2)
    _warn_of_text(runs, address)
    return runs


def _run_folders(address: str, name: str, depth: int) -> Iterator[tuple[str, str]]:
    """Run folders anywhere below, named by their path from the top so that equal names in two places differ."""
    entries = {files.last_part(child): child for child in files.children(address)}
    if POINTS in entries:
        yield address, name or files.last_part(address)
    elif depth > 0:
        for entry, child in entries.items():
            if not entry.startswith(".") and files.is_folder(child):
                yield from _run_folders(child, f"{name}/{entry}".strip("/"), depth - 1)


def _warn_of_text(runs: Sequence[Run], address: str) -> None:
    """Warn once about all columns of a study that a cell made text; the fit checks rewards itself."""
    odd: dict[str, tuple[str, int]] = {}
    for run in runs:
        columns = [name for name in run.points.columns if name != NON_FINITE and reward_rank(name) == len(REWARDS)]
        for found in text_cells(run.points, columns, place=run.place):
            first, count = odd.get(found.column, (f"{found} in run '{run.name}'", 0))
            odd[found.column] = first, count + 1
    if odd:
        named = [first + (f" and in {count - 1} more" if count > 1 else "") for first, count in odd.values()]
        more = f"; and {len(named) - _MAX_NAMED} more" if len(named) > _MAX_NAMED else ""
        warnings.warn(
            f"{address}: {'; '.join(named[:_MAX_NAMED])}{more}: taken for text; fix such cells or leave them empty.",
            RunWarning,
            stacklevel=2,
        )


def _filter_by_settings(runs: list[Run], where: Mapping[str, str], address: str) -> list[Run]:
    """Runs with these values in `run.json`, or in a name that was built from a table's columns."""
    for key, wanted in where.items():
        values = [_setting(run, key) for run in runs]
        kept = [run for run, value in zip(runs, values, strict=True) if _equal(value, wanted)]
        if not kept:
            there = sorted({value for value in values if value is not None})
            raise InputError(
                f"--where {key}={wanted} leaves no runs of {address}; '{key}' in run.json is {listing(there)}."
            )
        runs = kept
    return runs


def _setting(run: Run, key: str) -> str | None:
    """A run's setting as text; dots reach into tables, as in `recipe.learning_rate`."""
    value: object = run.settings.model_dump()
    for name in key.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    if value is None:
        return dict(columns_in_name(run.name)).get(key)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _equal(value: str | None, wanted: str) -> bool:
    """Equal as text or as numbers: 1e-6 is 0.000001."""
    if value is None or value == wanted:
        return value == wanted
    try:
        return float(value) == float(wanted)
    except ValueError:
        return False
