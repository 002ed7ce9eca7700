"""Words beside a number: which only name what is counted (`5 dollars`), and which make it another number (`5 million`).

No list of all units can be complete, so a unit is any word that is not known to change the number. Words of two letters
are more often products of variables (`5 xy`) than units: of these only the listed ones are units.
"""

from __future__ import annotations

import re

__all__ = ["change", "doubt", "is_unit"]

_WORD = re.compile(r"[^\W\d_]+")


def _split(text: str) -> list[str]:
    return _WORD.findall(text.lower())


_ANYWHERE = frozenset(
    _split("""
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred hundreds thousand thousands million
    millions billion billions trillion trillions quadrillion dozen dozens lakh lakhs crore crores half halves third
    thirds quarter fourth fourths fifth fifths sixth sixths seventh sevenths eighth eighths ninth ninths tenth tenths
    hundredth hundredths thousandth thousandths millionth millionths pi root sqrt or than
    """)
)
_NEXT = frozenset(
    _split("""
    and at base but by choose cubed divided except factorial if minus mod modulo multiplied not out over plus point
    power raised remainder score squared times to unless when
    """)
)
"""As the first word behind a number; further on they belong to a unit, as in `5 cm squared` or `5 pens and pencils`."""
_BEFORE = frozenset(
    _split("""
    above almost below between cannot close cube double either fewer from least less most near nearly negative neither
    never no nor of square triple twice under up without
    """)
)
_DOUBTS = (_ANYWHERE | _NEXT | _BEFORE) - {"to"}  # as in `equal to`
_MATHS = frozenset(_split("sin cos tan cot sec csc log exp abc xyz"))
_SHORT = frozenset(
    _split("""
    ac am an cc cl cm cu dl dm ev ft gb gm ha hr hz in kb kg kj km kn kr kv kw lb ma mb mg mi ml mm mo ms mv mw nm ns of
    oz pa pm pt qt rs sq st tb wk yd yr
    """)
)


def change(text: str) -> bool:
    """Whether words behind a number make it another one, or more than one.

    >>> change("million"), change("or more"), change("cm squared"), change("times"), change("times x")
    (True, True, False, False, True)
    """
    words = _split(text)
    if not words or words == ["times"]:  # how often
        return False
    return words[0] in _NEXT or not _ANYWHERE.isdisjoint(words)


def is_unit(text: str) -> bool:
    """Whether words behind a number only say what it counts; no words do not change it either.

    >>> is_unit("dollars"), is_unit("cm"), is_unit("xy"), is_unit("dozen")
    (True, True, False, False)
    """
    words = _split(text)
    if not words:
        return True
    unknown = len(words[0]) == 2 and words[0] not in _SHORT
    return not (unknown or words[0] in _MATHS or change(text))


def doubt(text: str) -> bool:
    """Whether words in front of a number deny or change it: `not 42`, `twice 21`, `less than 5`."""
    return not _DOUBTS.isdisjoint(_split(text))
