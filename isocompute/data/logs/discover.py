"""From what the user names to the logs to read: files, folders, globs, `-` for standard input."""

from __future__ import annotations

import glob
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from isocompute.core import files
from isocompute.core.errors import InputError
from isocompute.data.folder import POINTS
from isocompute.data.formats.verl_rollouts import is_dump_name
from isocompute.data.logs.siblings import SUFFIXES
from isocompute.data.logs.source import Log

__all__ = ["Found", "find"]

_DEPTH = 8
_STATE = "trainer_state.json"
_MOST_FILES = 100_000
_NO_LOGS = {
    ".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".onnx", ".npz", ".npy", ".pkl", ".pickle", ".distcp",
    ".model", ".zip", ".tar", ".zst", ".png", ".jpg", ".jpeg", ".gif", ".svg", ".pdf", ".html", ".css", ".js", ".ts",
    ".ico", ".ipynb", ".md", ".rst", ".py", ".pyc", ".sh", ".toml", ".yaml", ".yml", ".ini", ".lock", ".cfg", ".jinja",
    ".c", ".cc", ".cpp", ".h", ".cu", ".so", ".o", ".whl", ".exe", ".mp4", ".wav",
}  # fmt: skip
"""Endings that are passed over in a folder; a file that the user names is looked at whatever it is called."""
_NO_FILES = {
    "tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json", "special_tokens_map.json",
    "vocab.json", "merges.txt", "added_tokens.json", "adapter_config.json", "preprocessor_config.json", "args.json",
    "training_args.json", "hparams.json", "model.safetensors.index.json", "requirements.txt", "README.txt", "LICENSE",
    "license.txt", "run.json", "import.json", "pass_rates.jsonl", "wandb-metadata.json", "wandb-summary.json",
    "debug-internal.log",
}  # fmt: skip


@dataclass(frozen=True)
class Found:
    """One thing to import: a log, or several files that are one run together."""

    logs: tuple[Log, ...]
    name: str
    """What the run is called, if the log does not name it."""
    chosen: bool
    """Named by the user, so that it must be readable; a file met in a folder may be something else."""
    run_folder: Path | None = None
    """A run folder of ours."""


def find(paths: Sequence[str]) -> Iterator[Found]:
    """Everything to read, in order; nothing twice."""
    seen: set[str] = set()
    for given in paths:
        for found in _one(given):
            key = found.logs[0].name if found.logs else str(found.run_folder)
            key = os.path.realpath(key) if not files.is_remote(key) and key != "-" else key
            if key not in seen:
                seen.add(key)
                yield found


def _one(given: str) -> Iterator[Found]:
    if given == "-":
        yield Found((_standard_input(),), "stdin", True)
        return
    if files.is_remote(given):
        yield Found((Log.at(given),), _stem(Path(files.last_part(given))), True)
        return
    path = Path(given)
    if _there(path):
        yield from _below(path, chosen=True)
        return
    matches = sorted(glob.glob(given, recursive=True)) if glob.has_magic(given) else []  # noqa: PTH207
    if not matches:
        raise InputError(f"{given}: no such file or folder.")
    for match in matches:
        yield from _below(Path(match), chosen=False)


def _below(path: Path, *, chosen: bool) -> Iterator[Found]:
    """A file, or everything in a folder."""
    if path.is_dir():
        yield from _folder(path, path, _DEPTH)
    else:
        yield Found((Log.at(str(path)),), _stem(path), chosen)


def _there(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error}).") from error


def _folder(path: Path, top: Path, depth: int) -> Iterator[Found]:
    """Logs below a folder. A W&B folder holds one log, what else is in it says the same again."""
    try:
        entries = sorted(path.iterdir(), key=lambda p: _natural(p.name))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}).") from error
    plain = [e for e in entries if e.is_file() and not e.name.startswith(".")]
    folders = [e for e in entries if e.is_dir() and not e.name.startswith(".") and not e.is_symlink()]
    if any(e.name == POINTS for e in plain):
        yield Found((), path.name or path.resolve().name, True, run_folder=path)
        return
    if len(plain) > _MOST_FILES:
        raise InputError(f"{path}: more than {_MOST_FILES} files; name the logs.")
    name = path.resolve().name if path == top else "/".join(path.relative_to(top).parts)
    wandb = [e for e in plain if e.suffix == ".wandb"]
    if wandb:
        yield from (Found((Log.at(str(e)),), name, False) for e in wandb)
        return
    groups = _groups(plain, folders)
    for group in groups:
        yield Found(tuple(Log.at(str(e)) for e in group), name, False)
    grouped = {e for group in groups for e in group}
    for entry in plain:
        if entry not in grouped and _may_be_log(entry):
            yield Found((Log.at(str(entry)),), _stem(entry), False)
    for entry in folders if depth else []:
        if not (entry.name.startswith("checkpoint-") and (entry / _STATE).is_file()):
            yield from _folder(entry, top, depth - 1)


def _groups(plain: list[Path], folders: list[Path]) -> list[list[Path]]:
    """Files that are one run together: a folder's event files, its rollout dumps, the last of its checkpoints."""
    states = [e / _STATE for e in folders if e.name.startswith("checkpoint-") and (e / _STATE).is_file()]
    if any(e.name == _STATE for e in plain):
        states = []  # the folder's own holds the whole history too
    events = [e for e in plain if "tfevents" in e.name]
    dumps = [e for e in plain if is_dump_name(e.name)]
    return [group for group in (events, dumps, states[-1:]) if group]


def _may_be_log(path: Path) -> bool:
    name = path.name
    return not (
        name in _NO_FILES
        or (name == "debug.log" and path.with_name("debug-internal.log").exists())  # W&B's own
        or path.suffix.lower() in _NO_LOGS
        or name.endswith(SUFFIXES)
        or path.stat().st_size == 0
    )


_GENERIC = {
    "metrics",
    "trainer_state",
    "train",
    "training",
    "log",
    "logs",
    "console",
    "output",
    "stdout",
    "stderr",
    "run",
    "nohup",
    "history",
    "wandb-history",
    "points",
    "export",
}
_ENDINGS = (".metrics.jsonl", "_trainer_state.json", ".trainer_state.json", ".csv.gz", ".log.gz", ".jsonl.gz")


def _stem(path: Path) -> str:
    """A file's name without its ending; the folder's where the file's says nothing."""
    name = path.name
    stem = next((name.removesuffix(e) for e in _ENDINGS if name.endswith(e) and name != e), name)
    if stem != name:
        return stem
    stem = name.rsplit(".", 1)[0] if "." in name[1:] else name
    if stem.lower() in _GENERIC or "tfevents" in stem or stem.isdigit() or path.suffix == ".wandb":
        parent = path.absolute().parent
        while parent.name in ("files", "logs", "log") or parent.name.startswith("checkpoint-"):
            parent = parent.parent
        return parent.name or stem
    return stem


def _natural(name: str) -> tuple[object, ...]:
    """`checkpoint-100` after `checkpoint-20`."""
    out: list[object] = []
    digits = ""
    for c in name + "\0":
        if c.isascii() and c.isdigit():
            digits += c
        else:
            if digits:
                out.append((1, int(digits[:30]), ""))
                digits = ""
            out.append((0, 0, c))
    return tuple(out)


def _standard_input() -> Log:
    """Standard input, kept on disk: it is looked at before it is read. The file goes when the log does."""
    held = tempfile.NamedTemporaryFile(prefix="isocompute-", suffix=".log")  # noqa: SIM115 - the log holds it
    shutil.copyfileobj(sys.stdin.buffer, held)
    held.flush()
    log = Log(Path(held.name), "-")
    log.held = held
    return log
