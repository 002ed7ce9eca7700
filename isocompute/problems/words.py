"""Words beside a number: which only say what it counts (`5 dollars`), and which make it another number (`5 million`).

No list of all units can be complete, so words behind a number are taken for what it counts, or for the rest of a
sentence (`21 more than James`, `250 on the third day`), unless they are known to change it where they stand.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["change", "doubt", "is_unit"]

_WORD = re.compile(r"[^\W\d_]+")


def _split(text: str) -> list[str]:
    return _WORD.findall(text.lower())


_NUMBERS = frozenset(
    _split("""
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety
    """)
)
_FRACTIONS = frozenset(
    _split("""
    half halves third thirds fourth fourths fifth fifths sixth sixths seventh sevenths eighth eighths ninth ninths tenth
    tenths hundredth hundredths thousandth thousandths millionth millionths
    """)
)
"""Alone behind a number, or before `of`: `2 thirds`, but `12 third graders`."""
_MULTIPLES = frozenset(
    _split("""
    hundred hundreds thousand thousands million millions billion billions trillion trillions quadrillion dozen dozens
    lakh lakhs crore crores pi sqrt squared cubed factorial choose divided minus mod modulo multiplied plus raised
    """)
)
"""Directly behind a number: `5 million`, `5 squared`, but `5 cm squared`."""
_JOINING = frozenset(_split("and base by out over point times to"))
"""Where another number, or a variable, follows: `5 and a half`, `3 times x`, but `3 times a week`."""
_BETWEEN = frozenset(_split("a an of the"))
_PLACING = frozenset(_split("after before during every for from per with within"))
_BEFORE = frozenset(
    _split("""
    above almost below between but cannot close cube double either except false fewer from greater if incorrect larger
    least less most near nearly negative neither never no nor not of or over power root smaller square than triple twice
    under unless unlikely up without wrong
    """)
)
_MATHS = frozenset(_split("sin cos tan cot csc log exp abc xyz"))
_DOUBTS = _NUMBERS | _FRACTIONS | _MULTIPLES | (_JOINING - {"to"}) | _BEFORE | _MATHS  # `equal to` is none
_SHORT = frozenset(
    _split("""
    ac am an as at bc be by cc cl cm cu dl dm do ev ft gb gm go ha he hr hz if in is it kb kg kj km kn kr kv kw lb ma mb
    mg mi ml mm mo ms mv mw nm no ns of on oz pa pm pt qt rs so sq st tb to up us we wk yd yr
    """)
)
"""Words of two letters that are no product of variables, as `xy` is."""


def change(text: str) -> bool:
    """Whether words behind a number make it another one, or more than one.

    >>> change("million"), change("or more"), change("and a half"), change("times x")
    (True, True, True, True)
    >>> change("cm squared"), change("third graders"), change("times a week"), change("more than two of them")
    (False, False, False, False)
    """
    words = _split(text)
    if not words:
        return False
    first, rest = words[0], [word for word in words[1:] if word not in _BETWEEN]
    if first in _FRACTIONS:
        return words[1:2] in ([], ["of"])
    if first in _MULTIPLES or (first in _JOINING and _is_number(rest)):
        return True
    return _has_more(words) or any(_is_more(words[i + 1 :]) for i, word in enumerate(words) if word == "or")


def _has_more(words: Sequence[str]) -> bool:
    """Whether a unit and another number of another unit are all there is: `5 feet six inches`."""
    return len(words) == 3 and words[1] in _NUMBERS and words[0] not in _NUMBERS | _SHORT | _PLACING


def _is_more(words: Sequence[str]) -> bool:
    """Whether what follows `or` is another number: `or more`, `or two`."""
    return _is_number(words) or words[:1] in (["more"], ["less"], ["fewer"], ["greater"])


def _is_number(words: Sequence[str]) -> bool:
    """Whether these begin with a number, or with a variable."""
    return bool(words) and (words[0] in _NUMBERS | _FRACTIONS | _MULTIPLES or len(words[0]) == 1)


def is_unit(text: str) -> bool:
    """Whether words behind a number leave it what it is; no words do.

    >>> is_unit("dollars"), is_unit("cm"), is_unit("on the third day"), is_unit("xy"), is_unit("dozen")
    (True, True, True, False, False)
    """
    words = _split(text)
    if not words:
        return True
    unknown = len(words[0]) == 2 and words[0] not in _SHORT
    return not (unknown or words[0] in _MATHS or change(text))


def doubt(text: str) -> bool:
    """Whether words in front of a number deny or change it: `not 42`, `twice 21`, `less than 5`."""
    return not _DOUBTS.isdisjoint(_split(text))
