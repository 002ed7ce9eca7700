"""Which reader a log is for: by what is in it, never by what it is called."""

from __future__ import annotations

from isocompute.core.errors import InputError
from isocompute.data.formats import READERS
from isocompute.data.formats.tables import Table
from isocompute.data.logs.base import Match, Reader
from isocompute.data.logs.source import Log, Sample
from isocompute.data.table import TABLE_SUFFIXES

__all__ = ["find_reader", "is_foreign_table", "reader_named"]

_READABLE = 0.45
_SHARE = 0.05
"""Two formats are in one file when the rarer one has at least this share of the other's rows."""


def reader_named(name: str) -> Reader:
    """The reader of `--format`."""
    for reader in READERS:
        if reader.name == name:
            return reader
    raise InputError(f"--format {name}: not a format; there are {', '.join(r.name for r in READERS)}.")


def find_reader(log: Log) -> Reader:
    """The one clear match, or the best of those that are not; an error that says why where there is none."""
    sample = log.sample()
    if not sample.head.strip():
        raise InputError(f"{log.name}: the file is empty.")
    matches = _sniff(sample)
    if not matches[0][0].clear and matches[0][0].score < _READABLE:
        late = _sniff(log.marked())
        matches = late if late[0][0].clear else matches
    best, reader = matches[0]
    if best.clear:
        _refuse_two(log, [m for m in matches if m[0].clear])
        # Of formats that are equally clear the one with more rows is meant; the others are noise in between.
        return max((m for m in matches if m[0].clear), key=lambda m: m[0].rows)[1]
    if best.score >= _READABLE:
        return reader
    raise InputError(_nobody(log, best, reader))


def is_foreign_table(address: str) -> bool:
    """Whether a file with a table's ending needs the reader of a trainer or tracker, not that of our own tables."""
    try:
        log = Log.at(address)
        if address.lower().endswith((".jsonl", ".ndjson")) and not isinstance(find_reader(log), Table):
            return True
        return Table().is_foreign(log.start())
    except InputError:
        return False


def _sniff(sample: Sample) -> list[tuple[Match, Reader]]:
    return sorted(((reader.sniff(sample), reader) for reader in READERS), key=lambda m: -m[0].score)


def _refuse_two(log: Log, clear: list[tuple[Match, Reader]]) -> None:
    by_rows = sorted(clear, key=lambda m: -m[0].rows)
    if len(by_rows) > 1 and by_rows[1][0].rows >= max(1, _SHARE * by_rows[0][0].rows):
        first, second = by_rows[0][1], by_rows[1][1]
        raise InputError(
            f"{log.name}: two formats in one file, {first.name} ({by_rows[0][0].rows} rows seen) and {second.name} "
            f"({by_rows[1][0].rows}); say --format {first.name} or --format {second.name}, or split the file."
        )


def _nobody(log: Log, best: Match, reader: Reader) -> str:
    if best.other or (isinstance(reader, Table) and log.part.lower().endswith(TABLE_SUFFIXES)):
        return f"{log.name}: {best.why}."
    looked = "; ".join(f"{r.name}: {r.looks_for}" for r in READERS)
    closest = f"closest is {reader.name}: {best.why}" if best.score > 0 else "nothing in it comes close to any of them"
    return f"{log.name}: no known log format; {closest}. Looked for {looked}. Say --format if it is one of these."
