"""Which files to read, and which format each one has: by its content, never by its name.

To add a format: a `Reader` in `data/formats/`, and its name in `READERS`.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from isocompute.core import files
from isocompute.core.errors import InputError
from isocompute.core.recorder import POINTS
from isocompute.data.config import CONFIG_SUFFIXES
from isocompute.data.formats.console_dicts import OpenRLHF, PipelineRL, SkyRL
from isocompute.data.formats.jsonl import PrimeRL, Tinker
from isocompute.data.formats.nemo_rl import NemoRL
from isocompute.data.formats.tensorboard import TensorBoard
from isocompute.data.formats.trackio import Trackio
from isocompute.data.formats.trl import TrlConsole, TrlState
from isocompute.data.formats.verl import VerlConsole, VerlFile, VerlRollouts, is_rollout_dump
from isocompute.data.formats.wandb import WandbOffline
from isocompute.data.rows import Match, Reader
from isocompute.data.source import Log, Sample
from isocompute.data.table import TABLE_SUFFIXES, Table

READERS: tuple[Reader, ...] = (
    *(VerlConsole(), VerlFile(), VerlRollouts(), TrlState(), TrlConsole(), PrimeRL(), OpenRLHF(), SkyRL(), NemoRL()),
    *(PipelineRL(), Tinker(), TensorBoard(), WandbOffline(), Trackio(), Table()),
)


# The format of a file.

_READABLE = 0.45
"""The lowest score of a format that is tried if none matches clearly."""


def reader_named(name: str) -> Reader:
    """The reader of `--format`."""
    for reader in READERS:
        if reader.name == name:
            return reader
    raise InputError(f"--format {name}: not a format; there are {', '.join(r.name for r in READERS)}.")


def reader_of(log: Log) -> Reader:
    """The reader that clearly matches, else the best of the others; an error with the reason if none fits."""
    sample = log.sample()
    if not sample.head.strip():
        raise InputError(f"{log.name}: the file is empty.")
    matches = _matches(log, sample)
    if not matches[0][0].clear and matches[0][0].score < _READABLE:
        late = _matches(log, log.marked())  # the first row comes after the sample
        matches = late if late[0][0].clear else matches
    best, reader = matches[0]
    clear = sorted((m for m in matches if m[0].clear), key=lambda m: -m[0].rows)
    if len(clear) > 1 and clear[1][0].rows >= max(1, 0.05 * clear[0][0].rows):
        (first_match, first), (second_match, second) = clear[:2]
        raise InputError(
            f"{log.name}: two formats in one file, {first.name} ({first_match.rows} rows seen) and {second.name} "
            f"({second_match.rows}); say --format {first.name} or --format {second.name}, or split the file."
        )
    if clear:
        return clear[0][1]
    if best.score >= _READABLE:
        return reader
    if best.other or (isinstance(reader, Table) and log.filename.lower().endswith(TABLE_SUFFIXES)):
        raise InputError(f"{log.name}: {best.why}.")
    known = "; ".join(f"{r.name}: {r.looks_for}" for r in READERS)
    closest = f"closest is {reader.name}: {best.why}" if best.score > 0 else "nothing in it comes close to any of them"
    raise InputError(
        f"{log.name}: no known log format; {closest}. Looked for {known}. Say --format if it is one of these."
    )


def is_foreign_table(address: str) -> bool:
    """Whether a table file needs a reader for logs because its columns are not ours."""
    try:
        log = Log.at(address)
        if address.lower().endswith((".jsonl", ".ndjson")) and not isinstance(reader_of(log), Table):
            return True
        return Table().is_foreign(log.start())
    except InputError:
        return False


def _matches(log: Log, sample: Sample) -> list[tuple[Match, Reader]]:
    """How well each reader matches, best first. A file that another reader clearly matches is not tried as a table."""
    text = b"\n".join([sample.head, *sample.lines])
    *others, table = READERS
    found = [(reader.sniff(sample), reader) for reader in others if any(mark in text for mark in reader.marks)]
    if log.filename.lower().endswith(TABLE_SUFFIXES) or not any(match.clear for match, _ in found):
        found.append((table.sniff(sample), table))
    return sorted(found, key=lambda match: -match[0].score)


# The files to read.

_DEPTH = 8
_STATE = "trainer_state.json"
_MAX_FILES = 100_000
_NOT_LOG_SUFFIXES = {
    ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".onnx", ".npz", ".npy", ".pkl", ".pickle", ".distcp",
    ".model", ".zip", ".tar", ".zst", ".png", ".jpg", ".jpeg", ".gif", ".svg", ".pdf", ".html", ".css", ".js", ".ts",
    ".ico", ".ipynb", ".md", ".rst", ".py", ".pyc", ".sh", ".toml", ".yaml", ".yml", ".ini", ".lock", ".cfg", ".jinja",
    ".c", ".cc", ".cpp", ".h", ".cu", ".so", ".o", ".whl", ".exe", ".mp4", ".wav",
}  # fmt: skip
"""Skipped in folders; a file that the user names is read whatever its name."""
_NOT_LOG_NAMES = {
    "tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json", "special_tokens_map.json",
    "vocab.json", "merges.txt", "added_tokens.json", "adapter_config.json", "preprocessor_config.json", "args.json",
    "training_args.json", "hparams.json", "model.safetensors.index.json", "requirements.txt", "README.txt", "LICENSE",
    "license.txt", "run.json", "import.json", "pass_rates.jsonl", "wandb-metadata.json", "wandb-summary.json",
    "debug-internal.log",
}  # fmt: skip
_GENERIC_NAMES = {
    "metrics", "trainer_state", "train", "training", "log", "logs", "console", "output", "stdout", "stderr", "run",
    "nohup", "history", "wandb-history", "points", "export",
}  # fmt: skip
"""Uninformative file names; such a run is named after its folder."""
_ENDINGS = (".metrics.jsonl", "_trainer_state.json", ".trainer_state.json", ".csv.gz", ".log.gz", ".jsonl.gz")


@dataclass(frozen=True)
class ImportSource:
    """One thing to import: a log, several files that are one run, or a run folder."""

    logs: tuple[Log, ...]
    name: str
    """The run's name, if the log has none."""
    named_by_user: bool
    """A file that the user names must be readable; a file found in a folder may be something else."""
    run_folder: Path | None = None


def find(paths: Sequence[str]) -> Iterator[ImportSource]:
    """Everything to read, in order, each file once: paths, folders, globs, `-` for standard input."""
    seen: set[str] = set()
    for path in paths:
        for found in _find(path):
            key = found.logs[0].name if found.logs else str(found.run_folder)
            key = os.path.realpath(key) if not files.is_remote(key) and key != "-" else key
            if key not in seen:
                seen.add(key)
                yield found


def _find(address: str) -> Iterator[ImportSource]:
    if address == "-":
        yield ImportSource((_standard_input(),), "stdin", True)
        return
    if files.is_remote(address):
        yield ImportSource((Log.at(address),), _run_name(Path(files.last_part(address))), True)
        return
    path = Path(address)
    try:
        exists = path.exists()
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error}).") from error
    paths = [path] if exists else []
    if not exists and glob.has_magic(address):
        paths = [Path(match) for match in sorted(glob.glob(address, recursive=True))]  # noqa: PTH207
    if not paths:
        raise InputError(f"{address}: no such file or folder.")
    for each in paths:
        if each.is_dir():
            yield from _find_in_folder(each, each, _DEPTH)
        else:
            yield ImportSource((Log.at(str(each)),), _run_name(each), exists)


def _find_in_folder(path: Path, top: Path, depth: int) -> Iterator[ImportSource]:
    """Logs below a folder. In a W&B folder, only the transaction log: the other files repeat it."""
    try:
        entries = sorted(path.iterdir(), key=lambda entry: _natural_order(entry.name))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}).") from error
    plain = [e for e in entries if e.is_file() and not e.name.startswith(".")]
    folders = [e for e in entries if e.is_dir() and not e.name.startswith(".") and not e.is_symlink()]
    if any(e.name == POINTS for e in plain):
        yield ImportSource((), path.name or path.resolve().name, True, run_folder=path)
        return
    if len(plain) > _MAX_FILES:
        raise InputError(f"{path}: more than {_MAX_FILES} files; name the logs.")
    name = path.resolve().name if path == top else "/".join(path.relative_to(top).parts)
    wandb = [e for e in plain if e.suffix == ".wandb"]
    if wandb:
        yield from (ImportSource((Log.at(str(e)),), name, False) for e in wandb)
        return
    groups = _one_run_groups(plain, folders)
    for group in groups:
        yield ImportSource(tuple(Log.at(str(e)) for e in group), name, False)
    grouped = {e for group in groups for e in group}
    for entry in plain:
        if entry not in grouped and _may_be_log(entry):
            yield ImportSource((Log.at(str(entry)),), _run_name(entry), False)
    for entry in folders if depth else []:
        if not (entry.name.startswith("checkpoint-") and (entry / _STATE).is_file()):
            yield from _find_in_folder(entry, top, depth - 1)


def _one_run_groups(plain: list[Path], folders: list[Path]) -> list[list[Path]]:
    """Groups of files that form one run: a folder's event files, its rollout dumps, the last of its checkpoints."""
    states = [e / _STATE for e in folders if e.name.startswith("checkpoint-") and (e / _STATE).is_file()]
    if any(e.name == _STATE for e in plain):
        states = []  # the folder's own file also has the whole history
    events = [e for e in plain if "tfevents" in e.name]
    dumps = [e for e in plain if is_rollout_dump(e.name)]
    return [group for group in (events, dumps, states[-1:]) if group]


def _may_be_log(path: Path) -> bool:
    name = path.name
    return not (
        name in _NOT_LOG_NAMES
        or (name == "debug.log" and path.with_name("debug-internal.log").exists())  # W&B's own
        or path.suffix.lower() in _NOT_LOG_SUFFIXES
        or name.endswith(CONFIG_SUFFIXES)
        or path.stat().st_size == 0
    )


def _run_name(path: Path) -> str:
    """A file's name without its suffix; its folder's name if that is uninformative."""
    name = path.name
    stem = next((name.removesuffix(e) for e in _ENDINGS if name.endswith(e) and name != e), name)
    if stem != name:
        return stem
    stem = name.rsplit(".", 1)[0] if "." in name[1:] else name
    if stem.lower() in _GENERIC_NAMES or "tfevents" in stem or stem.isdigit() or path.suffix == ".wandb":
        parent = path.absolute().parent
        while parent.name in ("files", "logs", "log") or parent.name.startswith("checkpoint-"):
            parent = parent.parent
        return parent.name or stem
    return stem


def _natural_order(name: str) -> list[tuple[bool, int, str]]:
    """A sort key that puts `checkpoint-100` after `checkpoint-20`."""
    pieces = re.findall(r"[0-9]+|[^0-9]", name)
    return [(True, int(p[:30]), "") if p[0] in "0123456789" else (False, 0, p) for p in pieces]


def _standard_input() -> Log:
    """Standard input as a temporary file, which can be sampled before it is read and is deleted with the log."""
    copy = tempfile.NamedTemporaryFile(prefix="isocompute-", suffix=".log")  # noqa: SIM115 - the log keeps it open
    shutil.copyfileobj(sys.stdin.buffer, copy)
    copy.flush()
    return Log(Path(copy.name), "-", keep_alive=copy)
