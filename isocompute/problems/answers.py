r"""Finds the final answer in a text and compares answers, without algebra or further libraries.

A text's answer is the content of its last `\boxed{…}`, else in its last `<answer>…</answer>`, else after its last
`####` (GSM8K), else after its last `answer:` or `answer is`. The `exact` verifier falls back on the last number.

Every search here takes time linear in the text, since a collapsed policy may repeat one token to the end.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from isocompute.problems.problem_set import Problem, each_once

LONGEST_RESPONSE = 200_000
"""Verifiers read this many characters at the end of a response."""
_BRACE = re.compile(r"(?P<box>\\(?:boxed|fbox)\s*+)?\{|\}")
_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)
_SPOKEN = re.compile(r"answer[*_\s]*+(?:is\s*+:?+|:)[*_\s]*+([^\n]+)", re.IGNORECASE)
_MATHS_SIGNS = re.compile(r"\\?\$|\\[()\[\]]")
_NUMBER = re.compile(r"[-+−]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:\s*/\s*\d+)?|[-+−]?\.\d+")
_PLAIN_NUMBER = re.compile(r"([-+]? ?(?:\d+(?:\.\d*)?|\.\d+))(?: ?/ ?(0*[1-9]\d*))?(?: ([a-z]{2}[a-z ]*))?")
_LATEX_COMMA = re.compile(r",\\! ?|\{,\}(?=\d{3}(?!\d))")
_THOUSANDS = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:,\d{3})+(?!\d)")
_LISTING = re.compile(r"[()\[\]]|\\\{|,(?! )")
_WRAPPED = re.compile(r"\\(?:text|mathrm|textbf|mathbf|mbox)\{([^{}]*)\}")
_EXPLAINS = re.compile(r",? (?:as|because|hence|since|so|therefore|thus|which)\b|[.;!?] ", re.IGNORECASE)
_INTRODUCES = re.compile(r"(?:[^\W\d_]{2,}(?:['’]s)?[ ,:]+)*(?:[^\W\d_]+ ?= ?)?[€£]?")
_ASIDE = re.compile(r"\(([a-z ]+)\)", re.IGNORECASE)
_WORD = re.compile(r"[^\W\d_]+")
_LONGEST_NUMBER = 100


# The answer in a text


def final_answer(text: str) -> str | None:
    r"""The answer that a text states, without its markup; None if it states none.

    >>> final_answer("so 6 * 7 = 42.\n#### 42")
    '42'
    >>> final_answer(r"Hence \boxed{\frac{1}{2}}.")
    '\\frac{1}{2}'
    >>> final_answer("The answer is **7**.")
    '7'
    """
    stated = stated_answer(text)
    return None if stated is None else plain(stated)


def stated_answer(text: str) -> str | None:
    """`final_answer` with its markup."""
    marked = marked_answer(text)
    if marked is not None:
        return marked
    spoken = _SPOKEN.findall(text)
    return str(spoken[-1]).strip() if spoken else None


def marked_answer(text: str) -> str | None:
    """The answer in a box, between tags or after `####`, but not in prose."""
    boxed = _last_boxed(text)
    if boxed is not None:
        return boxed
    start: int | None = None
    tagged: str | None = None
    for tag in _TAG.finditer(text):
        if not tag[1]:
            start = tag.end()
        elif start is not None:
            tagged, start = text[start : tag.start()].strip(), None
    if tagged is not None:
        return tagged
    return text.rsplit("####", 1)[1].strip().split("\n", 1)[0].strip() if "####" in text else None


def _last_boxed(text: str) -> str | None:
    """The content of the last box whose braces close."""
    opened: list[tuple[int, bool]] = []
    last = (-1, -1)
    for brace in _BRACE.finditer(text):
        if brace[0] != "}":
            opened.append((brace.end(), brace["box"] is not None))
        elif opened:
            start, is_box = opened.pop()
            if is_box:
                last = max(last, (start, brace.start()))
    start, end = last
    return None if start < 0 else text[start:end].strip()


# Comparing answers


def plain(answer: str) -> str:
    r"""An answer without the markup around it: `$`, `\(`, emphasis, a final full stop; `−` becomes `-`.

    >>> plain(r"\(7\)."), plain("−14282**."), plain("$.5$")
    ('7', '-14282', '.5')
    """
    return _MATHS_SIGNS.sub("", answer).replace("−", "-").lstrip("*_` ").rstrip("*_`. ")


def tidy(answer: str) -> str:
    r"""An answer in lower case without markup, spacing, `\text{}`, thousands commas and a final full stop.

    >>> tidy("$1,234.$"), tidy(r"\text{ Monday}"), tidy("(1,234)")
    ('1234', 'monday', '(1,234)')
    """
    text = _LATEX_COMMA.sub("", _WRAPPED.sub(r"\1", plain(answer.strip())))
    for mark in ("\\!", "\\,", "\\;", "\\left", "\\right", "\\%", "%"):
        text = text.replace(mark, "")
    joined = _THOUSANDS.sub(lambda number: number[0].replace(",", ""), text)
    if not _LISTING.search(joined):  # between brackets, or beside a comma without a space, commas separate items
        text = joined
    return " ".join(text.split()).rstrip(".").strip().lower()


def same_answer(a: str, b: str) -> bool:
    """Whether two answers are the same text or the same number; one of them may have a unit.

    >>> same_answer("0.5", "1/2"), same_answer("1,000 apples", "1000.0"), same_answer("5", "5 million")
    (True, True, False)
    """
    a, b = tidy(a), tidy(b)
    if a == b:
        return a != ""
    (x, unit), (y, other) = _number(a), _number(b)
    return x is not None and x == y and not (unit and other) and _is_unit(unit + other)


def another_amount(a: str, b: str) -> bool:
    """Whether two answers start with the same number, but words after one change it: 12 and 12 thousand."""
    (x, unit), (y, other) = _number(tidy(a)), _number(tidy(b))
    return x is not None and x == y and unit != other and (_changes_number(unit) or _changes_number(other))


def _number(text: str) -> tuple[Fraction | None, str]:
    """The number that a tidied answer starts with, and the words after it."""
    found = _PLAIN_NUMBER.fullmatch(text) if len(text) <= _LONGEST_NUMBER else None
    if found is None:
        return None, ""
    top, bottom, unit = found.groups(default="")
    return Fraction(top.replace(" ", "")) / Fraction(bottom or 1), unit


def _only_number(answer: str) -> str:
    """The only number in an answer's first clause, with its unit; empty if there are several or it is negated.

    >>> _only_number("x = 42, so 2 are left"), _only_number("18 (eggs)"), _only_number("2 or 3"), _only_number("not 42")
    ('42', '18  eggs', '', '')
    """
    clause = _EXPLAINS.split(" ".join(answer.split()), maxsplit=1)[0]
    numbers = list(_NUMBER.finditer(clause))
    if len(numbers) != 1:
        return ""
    start = numbers[0].start()
    before = clause[:start]
    denied = not _DENYING.isdisjoint(_words(before))
    return "" if denied or not _INTRODUCES.fullmatch(before) else _ASIDE.sub(r" \1", clause[start:])


# Words next to a number. No list of units is complete. Words after a number therefore count as a unit or as the rest of
# a sentence (`21 more than James`), unless they are known to change the number.


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_NUMERALS = _set(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety"
)
# Alone after a number, or before `of`: `2 thirds`, but `12 third graders`.
_FRACTIONS = _set(
    "half halves third thirds fourth fourths fifth fifths sixth sixths seventh sevenths eighth eighths ninth ninths "
    "tenth tenths hundredth hundredths thousandth thousandths millionth millionths"
)
# Directly after a number: `5 million`, `5 squared`, but `5 cm squared`.
_MULTIPLES = _set(
    "hundred hundreds thousand thousands million millions billion billions trillion trillions quadrillion dozen dozens "
    "lakh lakhs crore crores pi sqrt squared cubed factorial choose divided minus mod modulo multiplied plus raised"
)
# If another number or a variable follows: `5 and a half`, `3 times x`, but `3 times a week`.
_JOINING = _set("and base by out over point times to")
_ARTICLES = _set("a an of the")
_PLACING = _set("after before during every for from per with within")
_FUNCTIONS = _set("sin cos tan cot csc log exp abc xyz")
# Before a number: `not 42`, `twice 21`, `less than 5`.
_DENYING = (_NUMERALS | _FRACTIONS | _MULTIPLES | (_JOINING - {"to"}) | _FUNCTIONS) | _set(
    "above almost below between but cannot close cube double either except false fewer from greater if incorrect "
    "larger least less most near nearly negative neither never no nor not of or over power root smaller square than "
    "triple twice under unless unlikely up without wrong"
)
# Words of two letters that are not a product of variables such as `xy`.
_SHORT = _set(
    "ac am an as at bc be by cc cl cm cu dl dm do ev ft gb gm go ha he hr hz if in is it kb kg kj km kn kr kv kw lb ma "
    "mb mg mi ml mm mo ms mv mw nm no ns of on oz pa pm pt qt rs so sq st tb to up us we wk yd yr"
)


def _changes_number(text: str) -> bool:
    """Whether the words after a number make it another number or several.

    >>> [_changes_number(text) for text in ("million", "or more", "and a half", "times x")]
    [True, True, True, True]
    >>> [_changes_number(text) for text in ("cm squared", "third graders", "times a week", "more than two of them")]
    [False, False, False, False]
    """
    words = _words(text)
    if not words:
        return False
    first, rest = words[0], [word for word in words[1:] if word not in _ARTICLES]
    if first in _FRACTIONS:
        return words[1:2] in ([], ["of"])
    if first in _MULTIPLES or (first in _JOINING and _starts_a_number(rest)):
        return True
    if len(words) == 3 and words[1] in _NUMERALS and first not in _NUMERALS | _SHORT | _PLACING:
        return True  # `5 feet six inches`
    after_or = [words[i + 1 :] for i, word in enumerate(words) if word == "or"]
    return any(_starts_a_number(more) or more[:1] in (["more"], ["less"], ["fewer"], ["greater"]) for more in after_or)


def _starts_a_number(words: list[str]) -> bool:
    return bool(words) and (words[0] in _NUMERALS | _FRACTIONS | _MULTIPLES or len(words[0]) == 1)


def _is_unit(text: str) -> bool:
    """Whether a number keeps its value with these words after it.

    >>> [_is_unit(text) for text in ("dollars", "cm", "on the third day", "", "xy", "dozen")]
    [True, True, True, True, False, False]
    """
    words = _words(text)
    if not words:
        return True
    product = len(words[0]) == 2 and words[0] not in _SHORT
    return not (product or words[0] in _FUNCTIONS or _changes_number(text))


@dataclass(frozen=True)
class ExactVerifier:
    """Gives 1 if the response's final answer, else its last number, equals the answer as text or as a number.

    If the final answer is a sentence, its only number counts: `x = 42`, or `42 because 6 * 7 = 42`.
    """

    name: str = "exact"

    def __call__(self, problem: Problem, responses: Sequence[str]) -> list[float]:
        """The reward of each response."""
        return each_once(responses, lambda distinct: [self._score(problem.answer, text) for text in distinct])

    def _score(self, answer: str, response: str) -> float:
        text = response[-LONGEST_RESPONSE:]
        found = final_answer(text)
        candidates = _NUMBER.findall(text)[-1:] if found is None else [found, _only_number(found)]
        return float(any(same_answer(candidate, answer) for candidate in candidates))
