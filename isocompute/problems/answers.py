r"""The final answer in a text, and whether two answers are the same: no algebra, no dependency.

A text's answer is what stands in its last `\boxed{…}`, else in its last `<answer>…</answer>`, else after its last
`####` (GSM8K), else after its last `answer:` or `answer is`. Where none of these is there, the `exact` verifier takes
the last number of the response.

A policy that collapses repeats a token to the end, so every search here takes time in proportion to the text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from isocompute.problems import words
from isocompute.problems.model import Problem

__all__ = [
    "LONGEST_RESPONSE",
    "ExactVerifier",
    "another_amount",
    "final_answer",
    "marked_answer",
    "plain",
    "same_answer",
    "stated_answer",
    "tidy",
]

LONGEST_RESPONSE = 200_000
"""Characters at the end of a response that verifiers read."""
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
_LONGEST_NUMBER = 100


def final_answer(text: str) -> str | None:
    r"""What a text marks as its answer, else what it says it is, without markup; None where it does neither.

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
    """The same as it stands, with its markup."""
    marked = marked_answer(text)
    return _spoken_answer(text) if marked is None else marked


def marked_answer(text: str) -> str | None:
    """The same, but only what stands in a box, between tags or after `####`: not what the prose says."""
    boxed = _last_boxed(text)
    if boxed is not None:
        return boxed
    tagged = _last_tagged(text)
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


def _last_tagged(text: str) -> str | None:
    """The content of the last pair of answer tags."""
    start: int | None = None
    last: str | None = None
    for tag in _TAG.finditer(text):
        if not tag[1]:
            start = tag.end()
        elif start is not None:
            last, start = text[start : tag.start()], None
    return None if last is None else last.strip()


def _spoken_answer(text: str) -> str | None:
    """The rest of the line behind the last `answer is` or `answer:`."""
    spoken = _SPOKEN.findall(text)
    return str(spoken[-1]).strip() if spoken else None


def plain(answer: str) -> str:
    r"""An answer without the markup around it: `$`, `\(`, emphasis, a final full stop; with a minus that is one.

    >>> plain(r"\(7\)."), plain("−14282**."), plain("$.5$")
    ('7', '-14282', '.5')
    """
    return _MATHS_SIGNS.sub("", answer).replace("−", "-").lstrip("*_` ").rstrip("*_`. ")


def tidy(answer: str) -> str:
    r"""An answer without what carries no meaning: markup, spacing, `\text{}`, thousands commas, a final full stop.

    >>> tidy("$1,234.$"), tidy(r"\text{ Monday}"), tidy("(1,234)")
    ('1234', 'monday', '(1,234)')
    """
    text = _LATEX_COMMA.sub("", _WRAPPED.sub(r"\1", plain(answer.strip())))
    for mark in ("\\!", "\\,", "\\;", "\\left", "\\right", "\\%", "%"):
        text = text.replace(mark, "")
    return " ".join(_without_thousands(text).split()).rstrip(".").strip().lower()


def _without_thousands(text: str) -> str:
    """Without the commas in `1,234`. Between brackets, or beside one that separates as closely, they separate too."""
    joined = _THOUSANDS.sub(lambda number: number[0].replace(",", ""), text)
    return text if _LISTING.search(joined) else joined


def same_answer(a: str, b: str) -> bool:
    """Whether two answers are the same text or the same number; one of them may have a unit.

    >>> same_answer("0.5", "1/2"), same_answer("1,000 apples", "1000.0"), same_answer("5", "5 million")
    (True, True, False)
    """
    a, b = tidy(a), tidy(b)
    if a == b:
        return a != ""
    (x, unit), (y, other) = _number(a), _number(b)
    return x is not None and x == y and not (unit and other) and words.is_unit(unit + other)


def another_amount(a: str, b: str) -> bool:
    """Whether two answers start with the same number, but words behind one make it another: 12 and 12 thousand."""
    (x, after), (y, behind) = _number(tidy(a)), _number(tidy(b))
    return x is not None and x == y and after != behind and (words.change(after) or words.change(behind))


def _number(text: str) -> tuple[Fraction | None, str]:
    """The number that a tidied answer is or starts with, and the words behind it."""
    found = _PLAIN_NUMBER.fullmatch(text) if len(text) <= _LONGEST_NUMBER else None
    if found is None:
        return None, ""
    top, bottom, behind = found.groups(default="")
    return Fraction(top.replace(" ", "")) / Fraction(bottom or 1), behind


def _only_number(answer: str) -> str:
    """The one number of an answer's first clause, with its unit; nothing where there are more or where it is denied.

    >>> _only_number("x = 42, so 2 are left"), _only_number("18 (eggs)"), _only_number("2 or 3"), _only_number("not 42")
    ('42', '18  eggs', '', '')
    """
    clause = _EXPLAINS.split(" ".join(answer.split()), maxsplit=1)[0]
    numbers = list(_NUMBER.finditer(clause))
    if len(numbers) != 1:
        return ""
    start = numbers[0].start()
    introduced = _INTRODUCES.fullmatch(clause[:start]) and not words.doubt(clause[:start])
    return _ASIDE.sub(r" \1", clause[start:]) if introduced else ""


@dataclass(frozen=True)
class ExactVerifier:
    """1 where the response's final answer, else its last number, is the problem's answer as text or as a number.

    Of an answer that is a sentence its only number counts: `x = 42`, or `42 because 6 * 7 = 42`.
    """

    name: str = "exact"

    def __call__(self, problem: Problem, response: str) -> float:
        """The reward of a response."""
        text = response[-LONGEST_RESPONSE:]
        found = final_answer(text)
        said = _NUMBER.findall(text)[-1:] if found is None else [found, _only_number(found)]
        return float(any(same_answer(answer, problem.answer) for answer in said))
