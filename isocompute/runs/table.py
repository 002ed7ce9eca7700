"""Bare tables: CSV, JSON lines or parquet with one row an evaluation, in our column names or renamed by the user."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import polars as pl

from isocompute.errors import InputError
from isocompute.runs import files
from isocompute.runs.folder import parse_points, tidy
from isocompute.runs.model import POINT_COLUMNS, Run, RunSettings, listing

__all__ = ["TABLE_SUFFIXES", "read_table"]

TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
_SETTING_COLUMNS = ("problems_per_batch", "rollouts_per_problem", "seed", "gpus")
_ROLES = ("run", "value", *_SETTING_COLUMNS, *POINT_COLUMNS)


def read_table(
    address: str, *, columns: Mapping[str, str] | None = None, where: Mapping[str, str] | None = None
) -> list[Run]:
    """The runs of one table.

    `columns` maps our names to the table's (`{"value": "val_reward_fit", "rollouts": "C_rollouts"}`), `where` keeps
    the rows whose column has a value. Without a `run` column the rows are one run for each (Bp, n, seed) they name.
    """
    columns, where = columns or {}, where or {}
    table = _read(address)
    for column, wanted in where.items():
        table = _filter(table, column, wanted, address)
    renames = {}
    for ours, theirs in columns.items():
        if ours not in _ROLES:
            raise InputError(f"--columns {ours}={theirs}: '{ours}' is not one of {listing(_ROLES, 12)}.")
        if theirs not in table.columns:
            raise InputError(f"{address}: there is no column '{theirs}'; there are {listing(table.columns, 12)}.")
        if ours != "value":
            renames[theirs] = ours
    clash = [ours for theirs, ours in renames.items() if ours in table.columns and ours != theirs]
    table = table.drop(clash).rename(renames)
    settings = [c for c in _SETTING_COLUMNS if c in table.columns]
    keys = ["run"] if "run" in table.columns else settings
    if not keys:
        return [_run(_stem(address), table, settings, address)]
    runs = []
    for key, part in table.partition_by(keys, as_dict=True, maintain_order=True).items():
        if any(value is None for value in key):
            raise InputError(
                f"{address}: a row has an empty '{keys[[v is None for v in key].index(True)]}'; fill it in."
            )
        name = str(key[0]) if keys == ["run"] else ",".join(f"{_short(k)}={v}" for k, v in zip(keys, key, strict=True))
        runs.append(_run(name, part.drop(keys) if keys == ["run"] else part, settings, address))
    return runs


def _short(key: str) -> str:
    return {"problems_per_batch": "Bp", "rollouts_per_problem": "n"}.get(key, key)


def _stem(address: str) -> str:
    return address.rstrip("/").rsplit("/", 1)[-1].rsplit(".", 1)[0]


def _read(address: str) -> pl.DataFrame:
    data = files.read_bytes(address)
    if not data.strip():
        raise InputError(f"{address}: the file is empty.")
    suffix = "." + address.rsplit(".", 1)[-1].lower()
    try:
        if suffix == ".parquet":
            return pl.read_parquet(io.BytesIO(data))
        if suffix in (".jsonl", ".ndjson"):
            return (
                parse_points(data, address)
                if b'"run"' not in data[:4096]
                else pl.read_ndjson(io.BytesIO(data), infer_schema_length=None)
            )
        return pl.read_csv(
            io.BytesIO(data),
            separator="\t" if suffix == ".tsv" else ",",
            infer_schema_length=None,
            null_values=["", "null", "NULL", "None"],
        )
    except pl.exceptions.PolarsError as error:
        raise InputError(f"{address}: not a readable {suffix[1:]} table ({str(error).splitlines()[0]}).") from error


def _filter(table: pl.DataFrame, column: str, wanted: str, address: str) -> pl.DataFrame:
    if column not in table.columns:
        raise InputError(
            f"--where {column}={wanted}: {address} has no column '{column}'; it has {listing(table.columns, 12)}."
        )
    kind = table.schema[column]
    if kind.is_numeric():
        try:
            kept = table.filter(pl.col(column) == float(wanted))
        except ValueError as error:
            raise InputError(f"--where {column}={wanted}: the column holds numbers; give a number.") from error
    else:
        kept = table.filter(pl.col(column).cast(pl.String) == wanted)
    if kept.is_empty():
        values = [str(v) for v in table[column].unique(maintain_order=True).head(9)]
        raise InputError(f"--where {column}={wanted} leaves no rows of {address}; '{column}' has {listing(values)}.")
    return kept


def _run(name: str, table: pl.DataFrame, settings: list[str], address: str) -> Run:
    found: dict[str, Any] = {}
    for column in settings:
        values = table[column].drop_nulls().unique(maintain_order=True)
        if len(values) > 1:
            raise InputError(
                f"{address}: run '{name}' has {column} = {values[0]} and {values[1]}: two different runs with one "
                "name; give them their own names in the run column."
            )
        if len(values):
            value = values[0]
            if value != int(value) or (value < 1 and column != "seed"):
                raise InputError(f"{address}: run '{name}' has {column} = {value}; it must be a whole number above 0.")
            found[column] = int(value)
    return Run(name, RunSettings(**found), tidy(table.drop(settings)))
