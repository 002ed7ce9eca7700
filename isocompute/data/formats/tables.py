"""Tables: CSV, TSV, parquet, JSON and plain JSON lines, in a layout that can be guessed from their columns."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import polars as pl

from isocompute.core.errors import InputError
from isocompute.core.run import RunWarning
from isocompute.data.cells import listed, odd_cells
from isocompute.data.columns import constant_columns, made_of, said_by
from isocompute.data.formats.frames import look, read_frame
from isocompute.data.formats.layout import Layout, layout_of, split_tracked
from isocompute.data.logs.base import NO_MATCH, Match
from isocompute.data.logs.collect import Rows, Sink
from isocompute.data.logs.literals import as_number
from isocompute.data.logs.source import Log, Sample
from isocompute.data.separators import DecimalCommaError

__all__ = ["Table"]

_SCORES = {"long": 0.9, "tracker": 0.9, "runs": 0.6, "rows": 0.6, "ends": 0.5, "none": 0.2}
_MOST_N = 4096
_MOST_VALUES = 50
"""Of a column that tells runs apart."""


class Table:
    """Rows of evaluations, metrics down the rows or across the columns, one run or many."""

    name: ClassVar[str] = "table"
    looks_for: ClassVar[str] = "a table with a column for the step or the compute"

    def sniff(self, sample: Sample) -> Match:
        """The columns of the first rows; of a table with decimal commas, that it is one: reading it says the rest."""
        try:
            frame = look(sample)
        except DecimalCommaError:
            return Match(_SCORES["rows"], 1)
        if frame is None:
            return NO_MATCH
        layout = _layout(frame)
        return Match(_SCORES[layout.kind], frame.height, layout.why, layout.other)

    def is_foreign(self, sample: Sample) -> bool:
        """Whether the columns have other names, or another meaning, than a table of ours."""
        frame = look(sample)
        if frame is None:
            return False
        layout = _layout(frame)
        if layout.kind in ("long", "tracker", "runs") or layout.other:
            return True
        ours = {"run": layout.run, "step": layout.step, **layout.compute, **layout.settings}
        return layout.kind == "rows" and any(theirs not in (None, name) for name, theirs in ours.items())

    def read(self, log: Log, sink: Sink) -> None:
        """Rows by run and step."""
        frame = read_frame(log)
        layout = _layout(frame)
        if layout.kind == "none":
            raise InputError(f"{log.name}: {layout.why}; the columns are {', '.join(frame.columns[:12])}.")
        frame = frame.drop(c for c, kind in frame.schema.items() if kind.is_nested())
        _refuse_parts_of_steps(frame, layout, log)
        _tell_of_text(frame, layout, log)
        if layout.run and layout.kind in ("rows", "ends"):
            frame = _with_names(frame, layout.run, log)
        _READ[layout.kind](frame, layout, sink)


def _layout(frame: pl.DataFrame) -> Layout:
    numeric = {c for c, kind in frame.schema.items() if kind.is_numeric()}
    layout = layout_of(frame.columns, numeric)
    odd = odd_cells(frame, frame.columns) if layout.kind == "none" and not layout.other else []
    return replace(layout, why=f"{layout.why}; {listed(odd)}") if odd else layout


def _refuse_parts_of_steps(frame: pl.DataFrame, layout: Layout, log: Log) -> None:
    """A step that is no whole number would fall on its neighbour."""
    if layout.step is None or not frame[layout.step].dtype.is_float():
        return
    numbered = frame.select(pl.col(layout.step), row=pl.int_range(1, pl.len() + 1)).filter(
        pl.col(layout.step).is_finite() & (pl.col(layout.step) != pl.col(layout.step).floor())
    )
    if numbered.height:
        step, row = numbered.row(0)
        raise InputError(
            f"{log.name}: column '{layout.step}' is {step:g} in row {row}: a step is a whole number; if it counts "
            "compute, call the column rollouts, tokens or gpu_hours."
        )


def _tell_of_text(frame: pl.DataFrame, layout: Layout, log: Log) -> None:
    """Warn of columns that are left out because a cell is not a number, where text is not what they are for."""
    used = {layout.run, layout.metric, *said_by(frame.columns)}
    odd = odd_cells(frame, [c for c in frame.columns if c not in used])
    if odd and layout.kind == "rows" and not layout.run:
        keys = _run_keys(frame, layout)
        odd = [found for found in odd if found.column not in keys]
    if odd:
        what = "such cells are" if layout.kind == "long" else "the whole column is"
        said = f"{log.name}: {listed(odd)}: {what} left out; fix such cells or leave them empty."
        warnings.warn(said, RunWarning, stacklevel=2)


def _with_names(frame: pl.DataFrame, run: str, log: Log) -> pl.DataFrame:
    """The rows that name their run; the others are told of and count as skipped."""
    nameless = frame[run].null_count()
    if not nameless:
        return frame
    log.skipped_lines += nameless
    rows = "1 row has" if nameless == 1 else f"{nameless} rows have"
    warnings.warn(f"{log.name}: {rows} an empty '{run}', left out; fill it in.", RunWarning, stacklevel=2)
    return frame.drop_nulls(run)


def _long(frame: pl.DataFrame, layout: Layout, sink: Sink) -> None:
    """Run, metric, step, value: rows of one run and step belong together."""
    assert layout.metric
    assert layout.value
    counter = layout.step or next(iter(layout.compute.values()))
    held: dict[tuple[str | None, float], dict[str, float]] = {}
    again: list[tuple[str | None, float, str, float]] = []
    for row in frame.iter_rows(named=True):
        run = None if layout.run is None or row[layout.run] is None else str(row[layout.run])
        step, value, name = row[counter], as_number(row[layout.value]), row[layout.metric]
        if step is None or value is None or name is None:
            continue  # an empty cell is how a tracker writes a gap
        point = held.setdefault((run, step), {})
        if str(name) in point:
            again.append((run, step, str(name), value))
        else:
            point[str(name)] = value
    for (run, step), point in held.items():
        _add(sink.run(run), step, point, layout, counter)
    for run, step, name, value in again:
        _add(sink.run(run), step, {name: value}, layout, counter)


def _add(rows: Rows, step: float, point: dict[str, float], layout: Layout, counter: str) -> None:
    if layout.step is None:
        rows.has_steps = False
        point = {next(iter(layout.compute)): step * _scale(counter), **point}
        step = len(rows)
    rows.add(step, tuple(point), list(point.values()))


def _tracker(frame: pl.DataFrame, layout: Layout, sink: Sink) -> None:
    """`Step, RUN - METRIC, …` as a tracker's chart exports it; over time there is no step."""
    columns: dict[str, dict[str, str]] = {}
    for column in layout.numbers:
        parts = split_tracked(column)
        if parts:
            columns.setdefault(parts[0], {})[column] = parts[1]
    for run, names in columns.items():
        _columns(frame, layout, names, sink.run(run))


def _runs(frame: pl.DataFrame, layout: Layout, sink: Sink) -> None:
    """`Step, RUN, RUN, …`: the chart's metric is not in the file."""
    for column in layout.numbers:
        rows = sink.run(column)
        _columns(frame, layout, {column: "value"}, rows)
        rows.notes.append("each column is taken for a run; its metric has no name in the file and is called 'value'")


def _columns(frame: pl.DataFrame, layout: Layout, names: dict[str, str], rows: Rows) -> None:
    counter = layout.step or next(iter(layout.compute.values()))
    for at, *cells in frame.select(counter, *names).iter_rows():
        found = {n: float(c) for n, c in zip(names.values(), cells, strict=True) if c is not None}
        if at is not None and found:
            _add(rows, at, found, layout, counter)


def _rows(frame: pl.DataFrame, layout: Layout, sink: Sink) -> None:
    """One evaluation a row."""
    parts = list(_parts(frame, layout))
    used = {layout.run, layout.step, *layout.compute.values(), *layout.settings.values()}
    made = {c: ours for c, ours in constant_columns(frame, [part for _, part in parts]).items() if c not in used}
    metrics = [c for c in layout.numbers if c not in made]
    for name, part in parts:
        rows = sink.run(name)
        rows.settings |= made_of(part, made)
        kept = _settings(part, layout, rows)
        counters = {ours: c for ours, c in layout.compute.items() if c not in kept}
        names = {c: ours for ours, c in counters.items()} | {c: c for c in (*metrics, *kept)}
        scale = {c: _scale(c) for c in names}
        rows.has_steps = layout.step is not None
        for cells in part.select(*([layout.step] if layout.step else []), *names).iter_rows():
            step, *values = cells if layout.step else (len(rows), *cells)
            found = {n: float(v) * scale[c] for (c, n), v in zip(names.items(), values, strict=True) if v is not None}
            if step is None or not found:
                rows.skipped_lines += 1
            else:
                rows.add(step, tuple(found), list(found.values()))


def _ends(frame: pl.DataFrame, layout: Layout, sink: Sink) -> None:
    """One row a run and no step: where each run ended. A name that comes twice is two runs."""
    assert layout.run
    count = pl.int_range(pl.len()).over(layout.run)
    name = pl.col(layout.run).cast(pl.String)
    numbered = pl.when(count == 0).then(name).otherwise(pl.format("{}-{}", name, count + 1))
    _rows(frame.with_columns(numbered.alias(layout.run)), layout, sink)
    for rows in sink.runs.values():
        rows.notes.append("the table has end points only, no curve: neither step nor compute is known")


def _parts(frame: pl.DataFrame, layout: Layout) -> Iterator[tuple[str | None, pl.DataFrame]]:
    """The rows of each run: by the run's column, else by what tells settings and sets apart."""
    if layout.run:
        for (name,), part in frame.partition_by([layout.run], as_dict=True, maintain_order=True).items():
            yield _text(name), part
        return
    keys = _run_keys(frame, layout)
    if not keys:
        yield None, frame
        return
    for key, part in frame.partition_by(keys, as_dict=True, maintain_order=True).items():
        yield ",".join(f"{k}={_text(v)}" for k, v in zip(keys, key, strict=True)), part


def _run_keys(frame: pl.DataFrame, layout: Layout) -> list[str]:
    """The columns that tell runs apart where none names them."""
    keys = [*layout.keys, *(c for ours, c in layout.settings.items() if ours != "gpus")]
    counter = layout.step or next(iter(layout.compute.values()), None)
    texts = [c for c, kind in frame.schema.items() if kind == pl.String and c not in keys]
    numbers = [c for c in said_by(frame.columns) if c in layout.numbers]
    more = [c for c in (*texts, *numbers) if frame[c].n_unique() <= _MOST_VALUES]
    while more and counter and not _increasing(frame, keys, counter) and frame.height:
        keys.append(more.pop(0))
    return keys


def _increasing(frame: pl.DataFrame, keys: list[str], counter: str) -> bool:
    parts = frame.partition_by(keys, maintain_order=True) if keys else [frame]
    return all(part[counter].drop_nulls().is_sorted() for part in parts)


def _settings(part: pl.DataFrame, layout: Layout, rows: Rows) -> list[str]:
    """Take over what is one whole number for the whole run; columns that are not stay metrics."""
    kept = []
    for ours, column in layout.settings.items():
        values = part[column].drop_nulls().unique().to_list()
        number = as_number(values[0]) if len(values) == 1 else None
        if (
            number is None
            or number != int(number)
            or number < (0 if ours == "seed" else 1)
            or (column == "num_rollouts" and number > _MOST_N)
        ):
            kept.append(column)
        else:
            rows.settings[ours] = int(number)
    return kept


def _scale(column: str) -> float:
    return 1000.0 if column.lower().endswith("_k") else 1.0


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


_READ = {"long": _long, "tracker": _tracker, "runs": _runs, "rows": _rows, "ends": _ends}
