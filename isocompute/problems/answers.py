r"""The final answer in a text, and whether two answers are the same: no algebra, no dependency.

A text's answer is what stands in its last `\boxed{…}`, else in its last `<answer>…</answer>`, else after its last
`####` (GSM8K), else after its last `answer:` or `answer is`. Where none of these is there, the `exact` verifier takes
the last number of the response.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from isocompute.problems.model import Problem

__all__ = ["ExactVerifier", "final_answer", "marked_answer", "same_answer", "tidy"]

_BOXED = re.compile(r"\\(?:boxed|fbox)\s*\{")
_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)
_SPOKEN = re.compile(r"answer\s*(?:is\s*:?|:)[*_\s]*([^\n]+)", re.IGNORECASE)
_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:\s*/\s*\d+)?|[-+]?\.\d+")
_PLAIN_NUMBER = re.compile(r"([-+]? ?(?:\d+(?:\.\d*)?|\.\d+))(?: ?/ ?(0*[1-9]\d*))?(?: ([a-z]{2}[a-z ]*))?")
_WRAPPED = re.compile(r"\\(?:text|mathrm|textbf|mathbf|mbox)\{([^{}]*)\}")
_LONGEST = 100


def final_answer(text: str) -> str | None:
    r"""What a text marks as its answer; None where it marks nothing.

    >>> final_answer("so 6 * 7 = 42.\n#### 42")
    '42'
    >>> final_answer(r"Hence \boxed{\frac{1}{2}}.")
    '\\frac{1}{2}'
    """
    marked = marked_answer(text)
    if marked is not None:
        return marked
    spoken = _SPOKEN.findall(text)
    return str(spoken[-1]).strip() if spoken else None


def marked_answer(text: str) -> str | None:
    """The same, but only what stands in a box, between tags or after `####`: not what the prose says."""
    boxed = _last_boxed(text)
    if boxed is not None:
        return boxed
    tagged = _TAGGED.findall(text)
    if tagged:
        return str(tagged[-1]).strip()
    return text.rsplit("####", 1)[1].strip().split("\n", 1)[0].strip() if "####" in text else None


def _last_boxed(text: str) -> str | None:
    """The content of the last box whose braces close."""
    for start in reversed([match.end() for match in _BOXED.finditer(text)]):
        depth = 1
        for end in range(start, len(text)):
            depth += (text[end] == "{") - (text[end] == "}")
            if depth == 0:
                return text[start:end].strip()
    return None


def tidy(answer: str) -> str:
    r"""An answer without what carries no meaning: `$`, spacing, `\text{}`, thousands commas, a final full stop.

    >>> tidy("$1,234.$"), tidy(r"\text{ Monday}")
    ('1234', 'monday')
    """
    text = _WRAPPED.sub(r"\1", answer.strip().strip("*_ "))
    for mark in ("\\$", "$", "\\!", "\\,", "\\;", "\\left", "\\right", "\\%", "%"):
        text = text.replace(mark, "")
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    return " ".join(text.split()).rstrip(".").strip().lower()


def same_answer(a: str, b: str) -> bool:
    """Whether two answers are the same text or the same number; one of them may have a unit.

    >>> same_answer("0.5", "1/2"), same_answer("1,000 apples", "1000.0"), same_answer("5", "15")
    (True, True, False)
    """
    a, b = tidy(a), tidy(b)
    if a == b:
        return a != ""
    (x, unit), (y, other) = _number(a), _number(b)
    return x is not None and x == y and not (unit and other)


def _number(text: str) -> tuple[Fraction | None, str]:
    """The number that a tidied answer is, and its unit."""
    found = _PLAIN_NUMBER.fullmatch(text) if len(text) <= _LONGEST else None
    if found is None:
        return None, ""
    top, bottom, unit = found.groups(default="")
    return Fraction(top.replace(" ", "")) / Fraction(bottom or 1), unit


@dataclass(frozen=True)
class ExactVerifier:
    """1 where the response's final answer, else its last number, is the problem's answer as text or as a number."""

    name: str = "exact"

    def __call__(self, problem: Problem, response: str) -> float:
        """The reward of a response."""
        answer = final_answer(response)
        if answer is None:
            answer = (_NUMBER.findall(response) or [""])[-1]
        return float(same_answer(answer, problem.answer))
