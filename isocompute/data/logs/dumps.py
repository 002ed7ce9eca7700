"""The configuration that a trainer prints into its own log: a dict over many lines, a command line, YAML, a dataclass.

Logs lose lines, and other processes print in between, so brackets cannot be trusted to match. A pretty-printed dict
says by its indentation what belongs to what: a key belongs to the last one above it that stands further left.
"""

from __future__ import annotations

import re
from typing import Any

from isocompute.data.logs.collect import Rows
from isocompute.data.logs.literals import parse
from isocompute.data.logs.settings import overrides
from isocompute.data.logs.source import strip

__all__ = ["ConfigWatch", "process_of"]

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


def process_of(line: bytes) -> bytes:
    """The prefix that names a process, with its colours: lines with another one are not part of a dump."""
    end = line.find(b"pid=")
    return line[: line.find(b")", end) + 1] if 0 <= end < 200 else b""


class ConfigWatch:
    """Fed with every line before the first metrics, it finds the printed config and command-line overrides."""

    def __init__(self, rows: Rows) -> None:
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
        return parse(word)
    return _WORDS.get(word, word)
