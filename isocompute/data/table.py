"""Tables: CSV, TSV, JSON lines, JSON or parquet with evaluations of one run or many.

`read_table` reads a table in our column names, or with `columns` that name its own, strictly. `Table` reads the tables
of other tools: it infers the layout from the columns, and skips and counts what is not a row.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import polars as pl
import polars.selectors as cs

from isocompute.core import files
from isocompute.core.errors import InputError
from isocompute.core.metric_names import REWARDS, reward_rank
from isocompute.core.recorder import RunSettings
from isocompute.core.run import POINT_COLUMNS, Run, RunWarning, is_text_column, list_cells, listing, text_cells
from isocompute.data.columns import (
    ORIGINS,
    Layout,
    constant_columns,
    layout_of,
    origin_of,
    origin_settings,
    split_tracked,
)
from isocompute.data.folder import is_bookkeeping, merge_rows_of_steps, rows_of_points, steps_of
from isocompute.data.frames import (
    DecimalCommaError,
    first_rows,
    parse_csv,
    parse_json_lines,
    read_frame,
    with_numbers,
)
from isocompute.data.rows import NO_MATCH, Match, Rows, Sink
from isocompute.data.source import Log, Sample, as_number

TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
_SETTING_COLUMNS = ("problems_per_batch", "rollouts_per_problem", "seed", "gpus")
_ROLES = ("run", "value", *_SETTING_COLUMNS, *POINT_COLUMNS, *ORIGINS)
_ROW = "\0row"
"""A column for the row in the file, while the rows are split into runs."""


# Tables in our column names.


def read_table(
    address: str, *, columns: Mapping[str, str] | None = None, where: Mapping[str, str] | None = None
) -> list[Run]:
    """The runs of one table.

    `columns` maps our names to the table's (`{"value": "val_reward_fit", "rollouts": "C_rollouts"}`), `where` keeps
    the rows whose column has a value. Without a `run` column the rows are one run for each (Bp, n, seed), model and
    problem set they name. Columns of a model, a problem set or a recipe field become settings if each run has a
    single value of them.
    """
    columns, where = columns or {}, where or {}
    table, rows = _read(address, columns)
    for key, wanted in where.items():
        kept = _matching_rows(table, _column_of(key, table), wanted, address)
        table, rows = table.filter(kept), rows.filter(kept)
    if where:
        table = _numbers_from_text(table, columns)  # the cell that made a column text may be gone
    table = _renamed(table, columns, address)
    settings = [c for c in _SETTING_COLUMNS if c in table.columns]
    table = table.with_columns(pl.col(c).fill_nan(None) for c in settings if table.schema[c].is_float())
    keys = ["run"] if "run" in table.columns else [*settings, *_distinguishing(table, settings)]
    for column in {*keys, *settings}:
        if table.schema[column].is_nested():
            raise InputError(f"{address}: the column '{column}' holds lists or objects; give plain values.")
    _warn_of_text(table, rows, address, text={*keys, *settings, *origin_of(table.columns)}, value=columns.get("value"))
    for column in keys:
        if table[column].has_nulls():
            raise InputError(f"{address}: a row has an empty '{column}'; fill it in.")
    table = table.with_columns(rows)
    if not keys:
        runs = {files.last_part(address).rsplit(".", 1)[0]: table}
    elif keys == ["run"]:
        by_run = table.partition_by(keys, as_dict=True, maintain_order=True, include_key=False)
        runs = {str(name): run for (name,), run in by_run.items()}
    else:
        short = {"problems_per_batch": "Bp", "rollouts_per_problem": "n"}
        by_key = table.partition_by(keys, as_dict=True, maintain_order=True)
        runs = {
            ",".join(f"{short.get(key, key)}={value}" for key, value in zip(keys, values, strict=True)): run
            for values, run in by_key.items()
        }
    constant = constant_columns(table, runs.values())
    constant.pop(columns.get("value", ""), None)  # named as the value, so it is a metric
    return [_run(name, run.drop(_ROW), run[_ROW], settings, constant, address) for name, run in runs.items()]


def _read(address: str, columns: Mapping[str, str]) -> tuple[pl.DataFrame, pl.Series]:
    """The table, and its rows' numbers in the file: from 1 without the header, blank lines counted."""
    data = files.read_bytes(address)
    if not data or data.isspace():
        raise InputError(f"{address}: the file is empty.")
    suffix = "." + address.rsplit(".", 1)[-1].lower()
    try:
        if suffix == ".parquet":
            table = _numbers_from_text(pl.read_parquet(io.BytesIO(data)), columns)
        elif suffix in (".jsonl", ".ndjson"):
            table = _numbers_from_text(parse_json_lines(data, address), columns)
        else:
            separator = "\t" if suffix == ".tsv" else ","
            table = parse_csv(data, address, separator=separator, run_column=columns.get("run", "run"))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise InputError(f"{address}: not a readable {suffix[1:]} table ({str(error).splitlines()[0]}).") from error
    filled = pl.repeat(value=True, n=table.height, eager=True)
    if suffix in (".csv", ".tsv"):
        filled = table.select(~pl.all_horizontal(pl.all().is_null())).to_series()
    if not filled.any():
        raise InputError(f"{address}: the table has no rows.")
    return table.filter(filled), (filled.arg_true() + 1).cast(pl.Int64).alias(_ROW)


def _numbers_from_text(table: pl.DataFrame, columns: Mapping[str, str]) -> pl.DataFrame:
    """Convert quoted numbers, except in columns that name runs, models or problems (`007` stays `007`)."""
    names = ("run", "model", "problems")
    text = [column for column, role in origin_of(table.columns).items() if role in names]
    named = [columns.get(role, role) for role in names]
    return with_numbers(table, text=[*text, *named, *filter(is_text_column, table.columns)])


def _column_of(key: str, table: pl.DataFrame) -> str:
    """The column that `--where` means: by its own name, or by its name in the settings of the runs."""
    ours = {name: column for column, name in origin_of(table.columns).items()}
    return key if key in table.columns else ours.get(key.removeprefix("recipe."), key)


def _matching_rows(table: pl.DataFrame, column: str, wanted: str, address: str) -> pl.Series:
    """Whether `--where` keeps each row; an error where it keeps none."""
    if column not in table.columns:
        raise InputError(
            f"--where {column}={wanted}: {address} has no column '{column}'; it has {listing(table.columns, 12)}."
        )
    kind = table.schema[column]
    if kind.is_nested():
        raise InputError(f"--where {column}={wanted}: the column of {address} holds lists; give another column.")
    if kind.is_numeric():
        try:
            kept = table[column] == float(wanted)
        except ValueError as error:
            raise InputError(f"--where {column}={wanted}: the column holds numbers; give a number.") from error
    else:
        kept = table[column].cast(pl.String) == wanted
    if not kept.any():
        values = table[column].unique(maintain_order=True).drop_nulls().cast(pl.String).to_list()
        raise InputError(f"--where {column}={wanted} leaves no rows of {address}; '{column}' has {listing(values)}.")
    return kept


def _renamed(table: pl.DataFrame, columns: Mapping[str, str], address: str) -> pl.DataFrame:
    """The table in our column names; the value keeps its own, which is the metric's name."""
    for ours, theirs in columns.items():
        if ours not in _ROLES:
            raise InputError(f"--columns {ours}={theirs}: '{ours}' is not one of {listing(_ROLES, 12)}.")
        if theirs not in table.columns:
            raise InputError(f"{address}: there is no column '{theirs}'; there are {listing(table.columns, 12)}.")
    renames = {ours: theirs for ours, theirs in columns.items() if ours != "value"}
    used = set(renames.values()) - set(renames)
    return table.with_columns(pl.col(theirs).alias(ours) for ours, theirs in renames.items()).drop(used)


def _distinguishing(table: pl.DataFrame, settings: list[str]) -> list[str]:
    """The columns of models, problems and recipes that make rows different runs.

    A column of text always does; one of numbers, such as a learning rate, only where steps go back without it.
    """
    columns = [c for c in origin_of(table.columns) if not table.schema[c].is_nested() and not table[c].has_nulls()]
    counter = next((c for c in POINT_COLUMNS if c in table.columns and table.schema[c].is_numeric()), None)
    keys: list[str] = []
    for column in sorted(columns, key=lambda c: table.schema[c] != pl.String):
        runs = _split(table, [*settings, *keys])
        varies = any(run[column].n_unique() > 1 for run in runs)
        if varies and (table.schema[column] == pl.String or (counter and not _increasing(runs, counter))):
            keys.append(column)
    return keys


def _split(table: pl.DataFrame, keys: list[str]) -> list[pl.DataFrame]:
    return table.partition_by(keys, maintain_order=True) if keys else [table]


def _increasing(runs: Iterable[pl.DataFrame], counter: str) -> bool:
    return all(run[counter].drop_nulls().is_sorted() for run in runs)


def _warn_of_text(
    table: pl.DataFrame, rows: pl.Series, address: str, *, text: Collection[str], value: str | None
) -> None:
    """Name the columns that cannot be used because a cell is not a number; `text` are columns of text.

    An error where the column counts rollouts. Rewards are left to the fit, which knows whether one of them is used.
    """
    odd = [
        cell
        for cell in text_cells(table, [c for c in table.columns if c not in text], place=lambda row: f"row {rows[row]}")
        if cell.column in POINT_COLUMNS or (value is None and reward_rank(cell.column) == len(REWARDS))
    ]
    rollouts = [cell for cell in odd if cell.column == "rollouts"]
    if rollouts:
        raise InputError(f"{address}: {rollouts[0]}; fix the cell or leave it empty.")
    if odd and any(kind.is_numeric() for c, kind in table.schema.items() if c not in (*text, *POINT_COLUMNS)):
        message = f"{address}: {list_cells(odd)}: taken for text; fix such cells or leave them empty."
        warnings.warn(message, RunWarning, stacklevel=3)


def _run(
    name: str, table: pl.DataFrame, rows: pl.Series, settings: list[str], constant: Mapping[str, str], address: str
) -> Run:
    found: dict[str, Any] = origin_settings(table, constant)
    for column in settings:
        low: Any = table[column].min()
        high: Any = table[column].max()
        if low != high:
            raise InputError(
                f"{address}: run '{name}' has {column} = {low} and {high}: two different runs with one name; "
                "give them their own names in the run column."
            )
        if low is None:
            continue
        number = as_number(low)
        if number is None or number != int(number) or (number < 1 and column != "seed"):
            raise InputError(f"{address}: run '{name}' has {column} = {low}; it must be a whole number above 0.")
        found[column] = int(low)
    table = table.drop(settings, *constant)
    _check_first_step(name, table, address)
    return Run(name, RunSettings.model_validate(found), merge_rows_of_steps(table), rows_of_points(table, rows))


def _check_first_step(name: str, table: pl.DataFrame, address: str) -> None:
    """Refuse a run that has its first step twice with other values: it must be two runs, not a resumed one."""
    step = steps_of(table)
    if step is None or step.n_unique() == table.height:
        return
    first = table.filter(step == step[0]).with_columns(cs.float().fill_nan(None))
    if all(first[c].count() <= 1 for c in first.columns if not is_bookkeeping(c)):
        return  # a validation and a training row of one run, each with its own clock
    if any(first[c].drop_nulls().n_unique() > 1 for c in first.columns):
        raise InputError(
            f"{address}: run '{name}', column 'step': {step[0]} comes twice with different values: two "
            "different runs with one name? Give them their own names in the run column, or keep one with --where."
        )


# Tables of other tools.

_SCORES = {"long": 0.9, "tracker": 0.9, "runs": 0.6, "rows": 0.6, "ends": 0.5, "none": 0.2}
_MAX_ROLLOUTS = 4096
"""A column `num_rollouts` with more than that counts compute, not the rollouts of a problem."""
_MAX_RUNS = 50
"""The most distinct values of a column that separates runs."""


class Table:
    """Rows of evaluations, metrics down the rows or across the columns, one run or many."""

    name: ClassVar[str] = "table"
    marks: ClassVar[tuple[bytes, ...]] = ()
    looks_for: ClassVar[str] = "a table with a column for the step or the compute"

    def sniff(self, sample: Sample) -> Match:
        """Judge by the columns of the first rows. Decimal commas match too, so that reading the table reports them."""
        try:
            frame = first_rows(sample)
        except DecimalCommaError:
            return Match(_SCORES["rows"], 1)
        if frame is None:
            return NO_MATCH
        layout = _layout(frame)
        return Match(_SCORES[layout.kind], frame.height, layout.why, layout.other)

    def is_foreign(self, sample: Sample) -> bool:
        """Whether the columns differ in name or meaning from our own."""
        frame = first_rows(sample)
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
        _refuse_fractional_steps(frame, layout, log)
        _warn_of_columns_left_out(frame, layout, log)
        if layout.run and layout.kind in ("rows", "ends") and (nameless := frame[layout.run].null_count()):
            log.skipped_lines += nameless
            rows = "1 row has" if nameless == 1 else f"{nameless} rows have"
            message = f"{log.name}: {rows} an empty '{layout.run}', left out; fill it in."
            warnings.warn(message, RunWarning, stacklevel=2)
            frame = frame.drop_nulls(layout.run)
        _READ[layout.kind](frame, layout, sink)


def _layout(frame: pl.DataFrame) -> Layout:
    numeric = {c for c, kind in frame.schema.items() if kind.is_numeric()}
    layout = layout_of(frame.columns, numeric)
    odd = text_cells(frame, frame.columns) if layout.kind == "none" and not layout.other else []
    return replace(layout, why=f"{layout.why}; {list_cells(odd)}") if odd else layout


def _refuse_fractional_steps(frame: pl.DataFrame, layout: Layout, log: Log) -> None:
    if layout.step is None or not frame[layout.step].dtype.is_float():
        return
    step = pl.col(layout.step)
    wrong = frame.select(step, row=pl.int_range(1, pl.len() + 1)).filter(step.is_finite() & (step != step.floor()))
    if wrong.height:
        value, row = wrong.row(0)
        raise InputError(
            f"{log.name}: column '{layout.step}' is {value:g} in row {row}: a step is a whole number; if it counts "
            "compute, call the column rollouts, tokens or gpu_hours."
        )


def _warn_of_columns_left_out(frame: pl.DataFrame, layout: Layout, log: Log) -> None:
    """Name the columns that are left out because a cell is not a number."""
    text = {layout.run, layout.metric, *origin_of(frame.columns)}
    odd = text_cells(frame, [c for c in frame.columns if c not in text])
    if odd and layout.kind == "rows" and not layout.run:
        keys = _run_keys(frame, layout)
        odd = [cell for cell in odd if cell.column not in keys]
    if odd:
        what = "such cells are" if layout.kind == "long" else "the whole column is"
        message = f"{log.name}: {list_cells(odd)}: {what} left out; fix such cells or leave them empty."
        warnings.warn(message, RunWarning, stacklevel=3)


def _read_long(frame: pl.DataFrame, layout: Layout, sink: Sink) -> None:
    """Run, metric, step, value: rows of one run and step are one point."""
    assert layout.metric
    assert layout.value
    counter = layout.step or next(iter(layout.compute.values()))
    points: dict[tuple[str | None, float], dict[str, float]] = {}
    repeated: list[tuple[str | None, float, str, float]] = []
    for row in frame.iter_rows(named=True):
        run = None if layout.run is None or row[layout.run] is None else str(row[layout.run])
        step, value, name = row[counter], as_number(row[layout.value]), row[layout.metric]
        if step is None or value is None or name is None:
            continue  # an empty cell is how a tracker writes a gap
        point = points.setdefault((run, step), {})
        if str(name) in point:
            repeated.append((run, step, str(name), value))
        else:
            point[str(name)] = value
    for (run, step), point in points.items():
        _add(sink.run(run), step, point, layout, counter)
    for run, step, name, value in repeated:
        _add(sink.run(run), step, {name: value}, layout, counter)


def _add(rows: Rows, step: float, point: dict[str, float], layout: Layout, counter: str) -> None:
    if layout.step is None:
        rows.has_steps = False
        point = {next(iter(layout.compute)): step * _scale(counter), **point}
        step = len(rows)
    rows.add(step, tuple(point), list(point.values()))


def _read_tracker(frame: pl.DataFrame, layout: Layout, sink: Sink) -> None:
    """`Step, RUN - METRIC, …` as a tracker's chart exports it; over time there is no step."""
    columns: dict[str, dict[str, str]] = {}
    for column in layout.numbers:
        if tracked := split_tracked(column):
            columns.setdefault(tracked[0], {})[column] = tracked[1]
    for run, names in columns.items():
        _add_columns(frame, layout, names, sink.run(run))


def _read_runs(frame: pl.DataFrame, layout: Layout, sink: Sink) -> None:
    """`Step, RUN, RUN, …`: the file does not name the chart's metric."""
    for column in layout.numbers:
        rows = sink.run(column)
        _add_columns(frame, layout, {column: "value"}, rows)
        rows.notes.append("each column is read as a run; the file does not name its metric, so it is called 'value'")


def _add_columns(frame: pl.DataFrame, layout: Layout, names: dict[str, str], rows: Rows) -> None:
    counter = layout.step or next(iter(layout.compute.values()))
    for at, *cells in frame.select(counter, *names).iter_rows():
        point = {n: float(c) for n, c in zip(names.values(), cells, strict=True) if c is not None}
        if at is not None and point:
            _add(rows, at, point, layout, counter)


def _read_rows(frame: pl.DataFrame, layout: Layout, sink: Sink) -> None:
    """One evaluation per row."""
    runs = list(_runs_of(frame, layout))
    used = {layout.run, layout.step, *layout.compute.values(), *layout.settings.values()}
    constant = {c: ours for c, ours in constant_columns(frame, [run for _, run in runs]).items() if c not in used}
    metrics = [c for c in layout.numbers if c not in constant]
    for name, run in runs:
        rows = sink.run(name)
        rows.settings |= origin_settings(run, constant)
        varying = _take_settings(run, layout, rows)
        names = {c: ours for ours, c in layout.compute.items() if c not in varying}
        names |= {c: c for c in (*metrics, *varying)}
        scale = {c: _scale(c) for c in names}
        rows.has_steps = layout.step is not None
        for cells in run.select(*([layout.step] if layout.step else []), *names).iter_rows():
            step, *values = cells if layout.step else (len(rows), *cells)
            point = {n: float(v) * scale[c] for (c, n), v in zip(names.items(), values, strict=True) if v is not None}
            if step is None or not point:
                rows.skipped_lines += 1
            else:
                rows.add(step, tuple(point), list(point.values()))


def _read_ends(frame: pl.DataFrame, layout: Layout, sink: Sink) -> None:
    """One row per run and no step: where each run ended. A name that comes twice is two runs."""
    assert layout.run
    count = pl.int_range(pl.len()).over(layout.run)
    name = pl.col(layout.run).cast(pl.String)
    numbered = pl.when(count == 0).then(name).otherwise(pl.format("{}-{}", name, count + 1))
    _read_rows(frame.with_columns(numbered.alias(layout.run)), layout, sink)
    for rows in sink.runs.values():
        rows.notes.append("the table has end points only, no curve: neither step nor compute is known")


def _runs_of(frame: pl.DataFrame, layout: Layout) -> Iterator[tuple[str | None, pl.DataFrame]]:
    """The name and rows of each run: by the run's column, else by the columns of settings and sets."""
    keys = [layout.run] if layout.run else _run_keys(frame, layout)
    if not keys:
        yield None, frame
        return
    for values, run in frame.partition_by(keys, as_dict=True, maintain_order=True).items():
        texts = [f"{value:g}" if isinstance(value, float) else str(value) for value in values]
        yield texts[0] if layout.run else ",".join(map("{}={}".format, keys, texts)), run


def _run_keys(frame: pl.DataFrame, layout: Layout) -> list[str]:
    """The columns that separate runs if no column names the run."""
    keys = [*layout.keys, *(c for ours, c in layout.settings.items() if ours != "gpus")]
    counter = layout.step or next(iter(layout.compute.values()), None)
    texts = [c for c, kind in frame.schema.items() if kind == pl.String and c not in keys]
    numbers = [c for c in origin_of(frame.columns) if c in layout.numbers]
    more = [c for c in (*texts, *numbers) if frame[c].n_unique() <= _MAX_RUNS]
    while more and counter and frame.height and not _increasing(_split(frame, keys), counter):
        keys.append(more.pop(0))
    return keys


def _take_settings(run: pl.DataFrame, layout: Layout, rows: Rows) -> list[str]:
    """Store settings that are a single whole number in the run; return the other columns, which are metrics."""
    varying = []
    for ours, column in layout.settings.items():
        values = run[column].drop_nulls().unique().to_list()
        number = as_number(values[0]) if len(values) == 1 else None
        if (
            number is None
            or number != int(number)
            or number < (0 if ours == "seed" else 1)
            or (column == "num_rollouts" and number > _MAX_ROLLOUTS)
        ):
            varying.append(column)
        else:
            rows.settings[ours] = int(number)
    return varying


def _scale(column: str) -> float:
    return 1000.0 if column.lower().endswith("_k") else 1.0


_READ = {
    "long": _read_long,
    "tracker": _read_tracker,
    "runs": _read_runs,
    "rows": _read_rows,
    "ends": _read_ends,
}
