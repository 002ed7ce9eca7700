"""Python-like text as data, without evaluating anything: printed dicts, `np.float64(…)`, `tensor(…)`, `Namespace(…)`.

`ast.literal_eval` stops at the first `inf`, `PosixPath('x')` or `<object>` of a printed config; this reader keeps such
a value as text and goes on. One pass over the tokens, no backtracking, a bound on the depth.
"""

from __future__ import annotations

import math
import re
from typing import Any

__all__ = ["LiteralError", "as_float", "as_number", "balanced_end", "flatten", "parse"]

_DEPTH = 60
_MOST_TOKENS = 50_000
"""Of one literal: a row of metrics has some thousand."""
_TOKEN = re.compile(
    r"""
    (?P<mark>[{}\[\](),:=])
  | (?P<text>[rbuRBU]{0,2}(?:'[^'\\]*(?:\\.[^'\\]*)*'|"[^"\\]*(?:\\.[^"\\]*)*"))
  | (?P<bare>[^\s{}\[\](),:='"]+)
  | (?P<stray>['"])
    """,
    re.VERBOSE | re.DOTALL,
)
_WORDS: dict[str, Any] = {"None": None, "null": None, "True": True, "true": True, "False": False, "false": False}
_ESCAPE = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U(000[0-9a-fA-F]{5}|0010[0-9a-fA-F]{4})|(.))", re.DOTALL
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\n": ""}
_NUMBER = re.compile(
    r"[-+]?(?:\d[\d_]*(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|nan|inf|infinity)", re.IGNORECASE
)
_LONGEST_NUMBER = 300
"""Characters of a number's text, wrapping and all; anything longer is something else."""
_WRAPPED = re.compile(r"[A-Za-z_][\w.]*\(\s*(?P<inside>[^(),]*)[^()]*\)")


class LiteralError(ValueError):
    """The text is no literal, or one that is nested too deeply."""


def as_number(value: Any) -> float | None:
    """A finite number out of a value or its text; None without one."""
    number = as_float(value)
    return number if number is not None and math.isfinite(number) else None


def as_float(value: Any) -> float | None:
    """What a value or its text is as a number (`'0.25'`, `np.float64(0.25)`, `tensor(nan)`); None for others."""
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
    """A nested mapping as one flat one: `{'a': {'b': 1}}` gives `a/b`."""
    out: dict[str, Any] = {}
    if depth < _DEPTH:
        for key, inner in value.items():
            name = f"{prefix}{key}"
            if isinstance(inner, dict):
                out |= flatten(inner, f"{name}{separator}", separator, depth + 1)
            else:
                out[name] = inner
    return out


def balanced_end(depth: int, text: str) -> int:
    """The depth of open brackets after a piece of text, brackets in quoted strings aside; -1 once it fell to 0."""
    for token in _TOKEN.finditer(text):
        mark = token["mark"]
        if mark in ("{", "[", "("):
            depth += 1
        elif mark in ("}", "]", ")"):
            depth -= 1
            if depth <= 0:
                return -1
    return depth


def parse(text: str, start: int = 0) -> Any:
    """The literal that begins at `start`; whatever follows it is left alone."""
    return _Parser(text, start).value(0)


class _Parser:
    def __init__(self, text: str, start: int) -> None:
        self._tokens = _TOKEN.finditer(text, start)
        self._next: tuple[str, str] | None = None
        self._left = _MOST_TOKENS
        self._step()

    def _step(self) -> tuple[str, str]:
        """Take the token under the cursor."""
        self._left -= 1
        if self._left < 0:
            raise LiteralError("too long")
        taken = self._next or ("end", "")
        match = next(self._tokens, None)
        self._next = ("end", "") if match is None else (str(match.lastgroup), match[str(match.lastgroup)])
        return taken

    def _at(self, *marks: str) -> bool:
        return self._next is not None and self._next[0] == "mark" and self._next[1] in marks

    def value(self, depth: int, stop: str = "") -> Any:
        """The value under the cursor; `stop` is the mark that ends a bare word there."""
        if depth > _DEPTH:
            raise LiteralError("nested too deeply")
        kind, text = self._step()
        if kind == "text":
            out: Any = _unquote(text)
            while self._next is not None and self._next[0] == "text":  # a folded string: 'one' 'two'
                out += _unquote(self._step()[1])
            return out
        if kind == "bare":
            if self._at("("):
                self._step()
                return self._call(depth)
            return self._bare(text, stop)
        if kind == "mark" and text == "{":
            return self._mapping(depth)
        if kind == "mark" and text in "[(":
            return self._items("]" if text == "[" else ")", depth)
        raise LiteralError(f"unexpected {text or 'end'!r}")

    def _bare(self, text: str, stop: str) -> Any:
        """A word or a number; further words up to the next comma or bracket belong to it (`<object at 0x7f>`)."""
        words = [text]
        while self._next is not None and (self._next[0] in ("bare", "text") or self._at(":", "=")):
            if stop and self._at(stop) and not text.startswith("<"):
                break
            words.append(self._step()[1])
        whole = " ".join(words)
        return _WORDS[whole] if whole in _WORDS else _scalar(whole)

    def _mapping(self, depth: int) -> dict[str, Any]:
        out: dict[str, Any] = {}
        while not self._at("}"):
            key = self.value(depth + 1, ":")
            if not self._at(":"):
                raise LiteralError("a key without a value")
            self._step()
            out[str(key)] = self.value(depth + 1)
            self._comma("}")
        self._step()
        return out

    def _items(self, close: str, depth: int) -> list[Any]:
        out = []
        while not self._at(close):
            out.append(self.value(depth + 1))
            self._comma(close)
        self._step()
        return out

    def _call(self, depth: int) -> Any:
        """`f(x)` is x, `f(a=1, b=2)` is a mapping."""
        plain, named = [], {}
        while not self._at(")"):
            first = self.value(depth + 1, "=")
            if self._at("="):
                self._step()
                named[str(first)] = self.value(depth + 1)
            else:
                plain.append(first)
            self._comma(")")
        self._step()
        return plain[0] if plain else named

    def _comma(self, close: str) -> None:
        if self._at(","):
            self._step()
        elif not self._at(close):
            raise LiteralError(f"no {close!r}")


def _scalar(text: str) -> Any:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text


def _unquote(text: str) -> str:
    start = min(i for i in (text.find("'"), text.find('"')) if i >= 0)
    body = text[start + 1 : -1]
    return _ESCAPE.sub(_character, body) if "\\" in body else body


def _character(escape: re.Match[str]) -> str:
    code = escape[1] or escape[2] or escape[3]
    return chr(int(code, 16)) if code else _ESCAPES.get(escape[4], escape[4])
