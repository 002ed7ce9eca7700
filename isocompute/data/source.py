"""A log as bytes, local or remote; samples of it; and parsers for the values in its text.

Values are read without evaluating anything: numbers, printed dicts, `np.float64(…)`, `tensor(…)`. `ast.literal_eval`
refuses `inf`, `PosixPath('x')` or `<object>` in a printed dict; `parse` keeps them as text.
"""

from __future__ import annotations

import ast
import codecs
import gzip
import io
import json
import math
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from isocompute.core import files
from isocompute.core.errors import InputError, quiet
from isocompute.trainers.config_files import strip

_DEPTH = 60
_LONGEST = 1 << 20
_TOKEN = re.compile(r"(?P<text>'[^'\\]*(?:\\.[^'\\]*)*'|\"[^\"\\]*(?:\\.[^\"\\]*)*\")|(?P<mark>[{}\[\]()])", re.DOTALL)
_OBJECT = re.compile(r"('[^'\\]*(?:\\.[^'\\]*)*'|\"[^\"\\]*(?:\\.[^\"\\]*)*\")|<[^<>{}'\"]{0,200}>", re.DOTALL)
"""A string, or an object's default text, such as `<object at 0x7f>`."""
_WORDS = {"null": None, "true": True, "false": False, "nan": math.nan, "inf": math.inf}
_NUMBER = re.compile(
    r"[-+]?(?:\d[\d_]*(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf|infinity)", re.IGNORECASE
)
_LONGEST_NUMBER = 300
"""Characters of a number's text with its wrapper."""
_WRAPPED = re.compile(r"[A-Za-z_][\w.]*\(\s*(?P<inside>[^(),]*)[^()]*\)")


class LiteralError(ValueError):
    """The text is not a literal, or one that is too long or nested too deeply."""


def as_number(value: Any) -> float | None:
    """A finite number from a value or its text, else None."""
    number = as_float(value)
    return number if number is not None and math.isfinite(number) else None


def as_float(value: Any) -> float | None:
    """A number from a value or its text (`'0.25'`, `np.float64(0.25)`, `tensor(nan)`), else None."""
    if isinstance(value, str):
        if len(value) > _LONGEST_NUMBER:
            return None
        text = value.strip()
        wrapped = _WRAPPED.fullmatch(text) if text.endswith(")") else None
        if wrapped:
            text = wrapped["inside"].strip()
        if not _NUMBER.fullmatch(text):
            return None
        value = text.replace("_", "")
    elif isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def flatten(value: Any, prefix: str = "", separator: str = "/", depth: int = 0) -> dict[str, Any]:
    """Flatten a nested mapping: `{'a': {'b': 1}}` gives `{'a/b': 1}`."""
    out: dict[str, Any] = {}
    if depth < _DEPTH:
        for key, inner in value.items():
            name = f"{prefix}{key}"
            if isinstance(inner, dict):
                out |= flatten(inner, f"{name}{separator}", separator, depth + 1)
            else:
                out[name] = inner
    return out


def depth_after(depth: int, text: str) -> int:
    """The depth of open brackets after a piece of text, without those in strings; -1 once all are closed."""
    return _walk(depth, text)[0]


def _walk(depth: int, text: str) -> tuple[int, int]:
    """The depth after the text and its length; once all brackets are closed, -1 and where the last one closes."""
    for token in _TOKEN.finditer(text):
        mark = token["mark"]
        if mark and mark in "{[(":
            depth += 1
        elif mark:
            depth -= 1
            if depth <= 0:
                return -1, token.end()
    return depth, len(text)


def parse(text: str) -> Any:
    """The printed value at the start of a text; other output may follow it.

    >>> parse("{'a': np.float64(0.5), 'b': [inf]} done")
    {'a': 0.5, 'b': [inf]}
    """
    text = text[: _walk(0, text)[1]].strip()
    if not text or len(text) > _LONGEST:
        raise LiteralError("empty or too long")
    text = _OBJECT.sub(lambda match: match[1] or repr(match[0]), text)
    try:
        with quiet():  # warnings of invalid escapes
            return _value(ast.parse(text, mode="eval").body, 0)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError) as error:
        raise LiteralError(str(error)) from error


def _value(node: ast.expr, depth: int) -> Any:
    """The value of a syntax tree; a call is its first argument, or a mapping of its named ones."""
    if depth > _DEPTH:
        raise LiteralError("nested too deeply")
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Dict) and all(node.keys):
        keys = [str(_value(key, depth + 1)) for key in node.keys if key is not None]
        return dict(zip(keys, (_value(value, depth + 1) for value in node.values), strict=True))
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return [_value(item, depth + 1) for item in node.elts]
    if isinstance(node, ast.Name):
        return _WORDS.get(node.id, node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        operand = _value(node.operand, depth + 1)
        if isinstance(operand, int | float):
            return -operand if isinstance(node.op, ast.USub) else operand
    if isinstance(node, ast.Call):
        if node.args:
            return _value(node.args[0], depth + 1)
        return {str(each.arg): _value(each.value, depth + 1) for each in node.keywords}
    return ast.unparse(node)


# Logs and samples of them.

_BLOCK = 1 << 22
_LONGEST_LINE = 1 << 23
"""Longer lines are skipped: no trainer writes a metrics line of eight million characters."""
_WINDOW = 1 << 16
_WINDOWS = 24
_HEAD = 1 << 19
_MARKS = (b"step:", b"tep ", b"{'", b'{"', b"ompleted steps", b"Reward:")
_MAX_MARKED = 5000


@dataclass(frozen=True)
class Sample:
    """What a reader judges a file by: its first bytes, and lines from all over it."""

    name: str
    head: bytes
    lines: list[bytes]
    """Whole lines, cleaned: all of a small file; head, tail and windows in between of a large one."""
    log: Log

    @cached_property
    def objects(self) -> list[dict[str, object]]:
        """The lines that are JSON objects, up to a thousand."""
        out: list[dict[str, object]] = []
        for line in self.lines:
            if line.lstrip()[:1] == b"{":
                try:
                    value = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(value, dict):
                    out.append(value)
                    if len(out) == 1000:
                        break
        return out


@dataclass
class Log:
    """One file to import: by its path, or by its bytes if it is remote."""

    path: Path | None
    name: str
    """The file's address in messages."""
    data: bytes | None = None
    keep_alive: object = field(default=None, repr=False)
    """What must live as long as the log, such as the temporary file of a stream."""
    skipped_lines: int = field(default=0, init=False)
    """Lines that are too long, or rows of a table that cannot be read."""

    @classmethod
    def at(cls, address: str) -> Log:
        """A local path or a remote address."""
        if files.is_remote(address):
            return cls(None, address, files.read_bytes(address))
        return cls(Path(address), address)

    @property
    def filename(self) -> str:
        """The file's own name."""
        return files.last_part(self.name)

    def raw(self) -> BinaryIO:
        """The bytes as they are on disk."""
        if self.data is not None:
            return io.BytesIO(self.data)
        assert self.path is not None
        try:
            return self.path.open("rb")
        except (OSError, ValueError) as error:
            raise InputError(f"{self.name}: cannot be read ({_why(error)}).") from error

    def whole(self, most: int = 1 << 31) -> bytes:
        """All bytes, decompressed; for formats that cannot be read in pieces."""
        out = bytearray()
        for block in self.blocks():
            out += block
            if len(out) > most:
                raise InputError(f"{self.name}: larger than {most >> 20} MB, too large for its format.")
        return bytes(out)

    def blocks(self, start: int = 0, most: int | None = None) -> Iterator[bytes]:
        """Pieces of the text as UTF-8, decompressed; bytes that are not UTF-8 stay as they are."""
        with self.raw() as file:
            stream, encoding = _opened(file)
            if start:
                stream.seek(start)
            decode = codecs.getincrementaldecoder(encoding)("replace") if encoding else None
            left = most
            while left is None or left > 0:
                try:
                    block = stream.read(_BLOCK if left is None else min(_BLOCK, left))
                except (OSError, EOFError, zlib.error) as error:
                    if isinstance(error, EOFError | zlib.error | gzip.BadGzipFile):
                        return  # a compressed file that is torn or still being written: what was read is used
                    raise InputError(f"{self.name}: cannot be read ({_why(error)}).") from error
                if not block:
                    return
                if left is not None:
                    left -= len(block)
                yield decode.decode(block).encode("utf-8", "replace") if decode else block

    def lines(self, start: int = 0, most: int | None = None) -> Iterator[bytes]:
        """Lines without their ends. A carriage return ends a line too: progress bars write nothing else."""
        rest = b""
        skipping = False
        first = start == 0
        for block in self.blocks(start, most):
            if first:
                block = block.removeprefix(codecs.BOM_UTF8)  # noqa: PLW2901 - the block, less its mark
                first = False
            if b"\r" in block:
                block = block.replace(b"\r", b"\n")  # noqa: PLW2901 - the block, as lines
            parts = (rest + block).split(b"\n")
            rest = parts.pop()
            if skipping and parts:
                parts = parts[1:]
                skipping = False
            if len(rest) > _LONGEST_LINE or skipping:
                self.skipped_lines += not skipping
                rest, skipping = b"", True
            yield from parts
        if rest:
            yield rest

    def start(self) -> Sample:
        """The first half megabyte."""
        head = b"".join(self.blocks(most=_HEAD))
        return Sample(self.filename, head, [strip(line) for line in self.lines(most=_HEAD)], self)

    def sample(self) -> Sample:
        """Lines from the whole file, without reading all of it."""
        start, size = self.start(), self._size()
        if size is None or size <= _HEAD:
            return start
        lines = start.lines
        if len(lines) > 1:
            lines.pop()  # cut by the window
        places = [_HEAD + i * max(1, (size - _HEAD - _WINDOW) // _WINDOWS) for i in range(_WINDOWS)]
        for place in sorted({*places, max(_HEAD, size - 4 * _WINDOW)}):
            most = _WINDOW if place < size - 4 * _WINDOW else 4 * _WINDOW
            window = [strip(line) for line in self.lines(place, most)]
            lines += window[1:] if place + most >= size else window[1:-1]
        return Sample(self.filename, start.head, lines, self)

    def marked(self) -> Sample:
        """Lines of the whole file that may contain metrics, for a log whose first row comes late."""
        marked = (line for line in self.lines() if any(mark in line for mark in _MARKS))
        lines = [strip(line) for line in islice(marked, _MAX_MARKED)]
        return Sample(self.filename, b"", lines, self)

    def _size(self) -> int | None:
        """The size in bytes; None for a log without random access, whose samples are its start."""
        with self.raw() as file:
            stream, encoding = _opened(file)
            if stream is not file or encoding:
                return None
            return file.seek(0, io.SEEK_END)


def _opened(file: BinaryIO) -> tuple[BinaryIO, str | None]:
    """The stream to read from, and its encoding if that is not UTF-8."""
    start = file.read(4)
    file.seek(0)
    stream: BinaryIO = file
    if start[:2] == b"\x1f\x8b":
        stream = gzip.GzipFile(fileobj=file)  # type: ignore[assignment]  # a stream of bytes too
        try:
            start = stream.read(4)
            stream.seek(0)
        except (OSError, EOFError, zlib.error):
            return file, None
    if start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return stream, "utf-16"
    if len(start) == 4 and start[1] == start[3] == 0 and start[0] and start[2]:
        return stream, "utf-16-le"
    return stream, None


def _why(error: BaseException) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error) or type(error).__name__
