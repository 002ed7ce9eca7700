"""The configuration that a trainer prints into its own log: a dict over many lines, a command line, YAML, a dataclass.

Logs lose lines, and other processes print in between, so brackets cannot be trusted to match. The indentation of a
pretty-printed dict can: a key belongs to the last one above it that is indented less.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol

from isocompute.trainers.config_files import parse_value

__all__ = ["ConfigWatch", "overrides", "printed_config", "process_of", "strip"]

_VALUE = r"(\[[^\[\]]*\]|\"[^\"]*\"|'[^']*'|[^\s\"',\\]+)"
_SHELL_QUOTE = "'\\''"
"""A quote inside of quotes, as `set -x` prints it."""
_HYDRA = re.compile(r"(?<![\w.])\+{0,2}([A-Za-z_]\w*(?:\.\w+)+)=" + _VALUE)
_ARGPARSE = re.compile(r"(?<![\w-])--([A-Za-z_][\w.-]*)(?:=|[ \t]+(?!--))" + _VALUE)
_LEAVES = (
    rb"train_batch_size|rollout_batch_size|n_samples_per_prompt|num_prompts_per_step|num_generations_per_prompt"
    rb"|groups_per_batch|group_size|num_generations|per_device_train_batch_size|gradient_accumulation_steps"
    rb"|generation_batch_size|steps_per_generation|world_size"
)
"""Keys that mean one thing wherever they stand: read from a line of their own (YAML, a dataclass's text)."""
_LEAF = re.compile(rb"\s*['\"]?(" + _LEAVES + rb")['\"]?\s*[:=]\s*['\"]?(\d{1,12})['\"]?\s*,?\s*[)}]*\s*")
_PAIR = re.compile(rb"['\"]([\w./@+-]{1,100})['\"]: ?(\{(?!\})|\[[^\[\]{}]*\]|'[^']*'|\"[^\"]*\"|[^,{}\[\]()]+)?")
_ARGUMENT = re.compile(rb"(?<![\w.])([A-Za-z_]\w{0,80})=('[^']*'|\"[^\"]*\"|[^\s,()\[\]{}]+)")
_FLAG = re.compile(rb"(?<![\w-])--[A-Za-z_]")
_TELLING = re.compile(rb"batch_size|rollout|samples_per_prompt")
"""Words of a command line that is worth reading."""
_WORDS = {"None": None, "True": True, "False": False}
_LONGEST = 200_000
_COLOUR = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\^_])")
_LOST_ESCAPE = re.compile(rb"\[\d{1,3}(?:;\d{1,3}){0,4}m")
"""What a colour looks like where a copy has lost the escape character."""
# Ray: (TaskRunner pid=123) and (worker pid=123, ip=10.0.0.1); torchrun: [rank0]: and [default0]:.
_PROCESS = re.compile(rb"\s*(?:\([^()\n]{0,120}\bpid=\d+[^()\n]{0,60}\)|\[(?:rank|default)\d+\]:)[ ]?")


class TakesSettings(Protocol):
    """Whatever takes in the settings that are found."""

    def found(self, config: Mapping[str, Any]) -> None:
        """Take in settings; what was found first stands."""


def strip(line: bytes) -> bytes:
    """A line without colours and without the prefix that names a process."""
    if b"\x1b" in line:
        line = _COLOUR.sub(b"", line)
    elif b"[0m" in line:
        line = _LOST_ESCAPE.sub(b"", line)
    if b"pid=" in line or line.startswith(b"[") or line.startswith(b" ["):
        match = _PROCESS.match(line)
        while match:
            line = line[match.end() :]
            match = _PROCESS.match(line)
    return line


def overrides(line: str) -> dict[str, Any]:
    """What a command line in the log sets: `data.train_batch_size=256` (Hydra), `--rollout.batch_size 128`.

    A list is read whole; one that does not end on the line is left to the printed config.
    """
    line = line.replace(_SHELL_QUOTE, "'")
    found = [*_HYDRA.findall(line), *((key.replace("-", "_"), value) for key, value in _ARGPARSE.findall(line))]
    known = {key: value.strip("'\"") for key, value in found if not value.startswith(("$", "--"))}
    return {
        key: parse_value(value) if value.startswith("[") else value
        for key, value in known.items()
        if not value.startswith("[") or value.endswith("]")
    }


def printed_config(text: str) -> dict[str, Any]:
    """The settings that a whole log prints."""
    out: dict[str, Any] = {}

    class First:
        def found(self, config: Mapping[str, Any]) -> None:
            for key, value in config.items():
                out.setdefault(key, value)

    watch = ConfigWatch(First())
    for line in text.splitlines():
        watch.feed(line.encode())
    return out


def process_of(line: bytes) -> bytes:
    """The prefix that names a process, with its colours: lines with another one are not part of a dump."""
    end = line.find(b"pid=")
    return line[: line.find(b")", end) + 1] if 0 <= end < 200 else b""


class ConfigWatch:
    """Fed with every line before the first metrics, it finds the printed config and command-line overrides."""

    def __init__(self, rows: TakesSettings) -> None:
        self._rows = rows
        self._path: list[tuple[int, str]] | None = None
        self._process = b""

    def feed(self, line: bytes) -> None:
        """Look at one raw line."""
        if len(line) > _LONGEST or (b"_" not in line and self._path is None):
            return
        text = strip(line)
        if (b"=" in text or (b"--" in text and _FLAG.search(text))) and _TELLING.search(text):
            self._rows.found(overrides(text.decode(errors="replace")))
        if b"=" in text and (b"Config(" in text or b"Namespace(" in text):
            self._rows.found({k.decode(): _scalar(v) for k, v in _ARGUMENT.findall(text)})
        if len(text) < 300 and (leaf := _LEAF.fullmatch(text)):
            self._rows.found({leaf[1].decode(): int(leaf[2])})
        if text.startswith((b"{'", b'{"')):
            self._path, self._process = [], process_of(line)
        elif self._path is None or not text[:1].isspace() or process_of(line) != self._process:
            return
        self._rows.found(self._pairs(text))

    def _pairs(self, text: bytes) -> dict[str, Any]:
        """The settings on one line of a dump, with their whole path; the path moves on."""
        path = self._path
        assert path is not None
        out: dict[str, Any] = {}
        opened = last = 0
        for match in _PAIR.finditer(text):
            for _ in range(min(opened, text.count(b"}", last, match.start()))):
                path.pop()
                opened -= 1
            last = match.end()
            while path and path[-1][0] >= match.start():
                path.pop()
            key = match[1].decode()
            if match[2] == b"{":
                path.append((match.start(), key))
                opened += 1
            elif match[2]:
                out[".".join([*(k for _, k in path), key])] = _scalar(match[2])
        return out


def _scalar(text: bytes) -> Any:
    word = text.strip().decode(errors="replace")
    if word[:1] in ("'", '"'):
        return word[1:-1]
    if word[:1] == "[":
        return parse_value(word)
    return _WORDS.get(word, word)
