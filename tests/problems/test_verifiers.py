"""Rewards of responses: right and wrong ones, hostile ones, in threads and in worker processes."""

from __future__ import annotations

import json
import multiprocessing
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isocompute.core.errors import InputError
from isocompute.problems import Problem, graders, load_problems
from isocompute.problems.answers import LONGEST_RESPONSE, ExactVerifier, final_answer, same_answer
from isocompute.problems.graders import MathVerifier, parse_gym
from isocompute.problems.problem_set import Verifier

EXACT, MATH = ExactVerifier(), MathVerifier()


def problem(answer: str) -> Problem:
    return Problem("1", "?", answer)


def score(verifier: Verifier, answer: str, response: str) -> float:
    (reward,) = verifier(problem(answer), [response])
    return reward


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"first \boxed{1}, then \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"\boxed{2} and an open \boxed{3", "2"),
        ("<answer> 7 </answer>", "7"),
        ("12 apples\n#### 1,200\n", "1,200"),
        ("The answer is: 5.", "5"),
        ("The answer is **-14282**.", "-14282"),
        (r"The answer is \(7\).", "7"),
        ("**Answer**: .5", ".5"),
        ("The answer is −5", "-5"),
        ("<answer>1 <Answer>2</ANSWER> 3</answer>", "2"),
        (r"\boxed{1 \boxed {2}} } \fbox{{3}", "2"),
        ("**Answer:** 42", "42"),
        ("nothing here", None),
        ("", None),
    ],
)
def test_final_answer(text: str, answer: str | None) -> None:
    assert final_answer(text) == answer


@pytest.mark.parametrize(
    "text",
    [
        "\\boxed{" * 300_000,
        "\\boxed{}" * 300_000,
        "<answer>" * 300_000,
        "</answer>" * 300_000,
        "answer is" + "\n" * 300_000,
        "answer is 5" + " " * 300_000 + "5 ",
        "answer is " + "ab " * 300_000 + "5",
    ],
    ids=lambda text: text[:12],
)
def test_a_repeated_token_takes_linear_time(text: str) -> None:
    """In quadratic time each of these takes minutes, if not hours."""
    final_answer(text)
    assert score(EXACT, "18", text[:LONGEST_RESPONSE]) == 0


def test_only_the_end_of_a_response_is_read() -> None:
    assert score(EXACT, "42", "42" + " " * LONGEST_RESPONSE) == 0
    assert score(EXACT, "42", " " * LONGEST_RESPONSE + "42") == 1


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("5", "5 million", False),
        ("5", "5 pi", False),
        ("3", "3 dozen", False),
        ("12", r"12 \text{ thousand}", False),
        ("3", r"3 \text{ or more}", False),
        ("5", "5 and a half", False),
        ("5", "5 feet six inches", False),
        ("5", "5 squared", False),
        ("5", "5 times x", False),
        ("5", "5 xy", False),
        ("5", "5 sin x", False),
        ("5", "5 dollars", True),
        ("12", "12 apples", True),
        ("3", "3 cm", True),
        ("3", "3 cm squared", True),
        ("3", "3 square units", True),
        ("3", "3 times", True),
        ("50", "50 percent", True),
        ("5 million", "5 million", True),
        ("-5", "−5", True),
        ("(1,234)", "(1234)", False),
        ("[1,234]", "[1234]", False),
        ("1,234, 5", "1234, 5", True),
        ("1,234,5", "1234,5", False),
        ("1,000, 2,000", "1000, 2000", True),
        (r"\frac{2,009}{4}", r"\frac{2009}{4}", True),
        (r"2,500\sqrt{3}", r"2500\sqrt{3}", True),
        (r"\{1,234\}", r"\{1234\}", False),
        ("3{,}4", "34", False),
        ("21", "21 more candies than James", True),
        ("250", "250 customers on the third day", True),
        ("76", "76 cakes during the three days", True),
        ("3", "3 times as many", True),
        ("12", "12 third graders", True),
        ("42", "42 by symmetry", True),
        ("10", "10 and we are done", True),
        ("2", "2 thirds", False),
        ("5", "5 to six", False),
        ("0,500", "500", False),
        ("1,234", "1234", True),
        ("1,234,567 apples", "1234567", True),
        ("x = 1,234", "x = 1234", True),
        (r"\frac{12}{5,\!525}", r"\frac{12}{5525}", True),
        (r"11,\! 111,\! 100", "11111100", True),
        ("(1{,}234)", "(1234)", True),
    ],
)
def test_same_answer(a: str, b: str, same: bool) -> None:
    assert same_answer(a, b) == same_answer(b, a) == same


@pytest.mark.parametrize(
    ("answer", "response", "reward"),
    [
        ("42", "6 * 7 = 42", 1),
        ("42", "#### 42.0", 1),
        ("1200", "it costs $1,200.", 1),
        ("42", "42 or rather 43", 0),
        ("42", r"\boxed{41}, not 42", 0),
        ("-3", "x = -3", 1),
        ("1/2", "the answer is 0.5", 1),
        ("Monday", r"\boxed{\text{Monday}}", 1),
        ("5", "15", 0),
        ("5", "", 0),
        ("18", "#### 18 dollars", 1),
        ("18 dollars", "so 18", 1),
        ("18 minutes", "#### 18 hours", 0),
        ("2", r"\boxed{(1, 2)}", 0),
        ("5", r"\boxed{5x}", 0),
        ("7", "The answer is **7**.", 1),
        ("7", r"The answer is \(7\).", 1),
        ("-5", "The answer is −5", 1),
        ("-5", "so x = −5", 1),
        ("18", "The answer is 18 (eggs).", 1),
        ("42", "**Answer:** x = 42", 1),
        ("42", "The answer is 42, so we are done.", 1),
        ("42", "The answer is 42 because 6*7=42.", 1),
        ("42", "The answer is 42. Indeed, 6 * 7 = 42.", 1),
        ("42", "The answer is equal to 42.", 1),
        ("18", "Answer: Janet's hens earn $18 every day.", 1),
        ("42", "The answer is not 42 but 43", 0),
        ("42", "The answer is not 42, but less.", 0),
        ("42", "The answer isn't 42", 0),
        ("3", "The answer is between 3 and 5", 0),
        ("3", "The answer is between 3 and five", 0),
        ("2", "The answer is 2 or 3", 0),
        ("3", "The answer is 3, 4 and 5", 0),
        ("5", "The answer is 5 million, so we are rich", 0),
        ("5", "The answer is less than 5", 0),
        ("5", "The answer is negative 5", 0),
        ("5", "The answer is x > 5", 0),
        ("-5", "The answer is x -5", 0),
        ("5", "The answer is x^5", 0),
        ("16", "The answer is the square root of 16", 0),
        ("18 minutes", "The answer is 18 hours, as I said.", 0),
        ("1234", "The answer is (1,234)", 0),
    ],
)
def test_exact(answer: str, response: str, reward: float) -> None:
    assert score(EXACT, answer, response) == reward


@given(st.text(max_size=200), st.text(max_size=50))
def test_exact_never_raises(response: str, answer: str) -> None:
    assert score(EXACT, answer, response) in (0.0, 1.0)


@given(st.fractions(), st.integers(1, 50))
def test_equal_numbers_are_equal(number: Fraction, factor: int) -> None:
    top, bottom = number.numerator, number.denominator
    assert same_answer(f"{top}/{bottom}", f"{top * factor}/{bottom * factor}")
    assert not same_answer(f"{top}/{bottom}", f"{top + bottom}/{bottom}")


@pytest.mark.parametrize(
    ("answer", "response", "reward"),
    [
        (r"\frac{1}{2}", r"so \boxed{0.5}", 1),
        (r"\sqrt{193}", r"$d = \sqrt{144+49}$, that is \boxed{\sqrt{193}}", 1),
        (r"\sqrt{8}", r"\boxed{2\sqrt{2}}", 1),
        ("18", "#### 18 dollars", 1),
        ("2", r"\boxed{(1, 2)}", 0),
        ("18", "She makes $18 a day. The answer is 18 dollars.", 1),
        ("(1,2)", r"\boxed{(1, 2)}", 1),
        ("x^2+2x+1", r"\boxed{(x+1)^2}", 1),
        ("18", r"\boxed{19}", 0),
        (r"\text{Monday}", r"\boxed{\text{Tuesday}}", 0),
        ("12", r"\boxed{12 \text{ thousand}}", 0),
        (r"12 \text{ thousand}", r"\boxed{12}", 0),
        (r"12 \text{ thousand}", r"\boxed{12\text{ thousand}}", 1),
        ("3", r"\boxed{3 \text{ or more}}", 0),
        ("5", r"\boxed{5 million}", 0),
        ("5", "The answer is 5 million.", 0),
        ("5", r"\boxed{5 \text{ apples}}", 1),
        ("(1,234)", r"\boxed{(1234)}", 0),
        ("18", "I do not know", 0),
        ("18", "", 0),
    ],
)
def test_math(answer: str, response: str, reward: float) -> None:
    assert score(MATH, answer, response) == reward


HOSTILE = [
    r"\boxed{9^{9^{9^{9}}}}",
    r"\boxed{" + "(" * 3000 + "1" + ")" * 3000 + "}",
    "\\boxed{\x00\udcff}",
    r"\frac{\frac{\frac{",
    "$" * 1001,
    "{" * 50_000,
]


def test_math_survives_what_models_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graders, "TIMEOUT_SECONDS", 0.5)
    assert [score(MATH, "18", text) for text in HOSTILE] == [0.0] * len(HOSTILE)
    assert MATH(problem("18"), [*HOSTILE, r"\boxed{18}"]) == [0.0] * len(HOSTILE) + [1.0]


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The responses of each request to the grading process."""
    seen: list[list[str]] = []
    ask = graders.request

    def recorded(do: str, **arguments: Any) -> Any:
        if "responses" in arguments:
            seen.append(arguments["responses"])
        return ask(do, **arguments)

    monkeypatch.setattr(graders, "request", recorded)
    return seen


def test_a_group_is_one_request_and_equal_responses_are_graded_once(requests: list[list[str]]) -> None:
    responses = [r"\boxed{18}", "#### 19", r"\boxed{18}", r"\boxed{36/2}", "#### 19"]
    assert MATH(problem("18"), responses) == [1.0, 0.0, 1.0, 1.0, 0.0]
    assert requests == [[r"\boxed{18}", "#### 19", r"\boxed{36/2}"]]
    sums = load_problems("gym:chain_sum", size=2)
    for asked in sums.problems:
        assert sums.grade(asked, ["no", asked.answer, asked.answer]) == [sums.verify(asked, "no"), 1.0, 1.0]
    assert len(requests) == 5


@pytest.mark.parametrize("hangs", [r"\boxed{9^{9^{9^{9}}}}", r"\boxed{9^{9^9}}"])
def test_a_response_that_hangs_costs_only_its_own_reward(
    hangs: str, requests: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graders, "TIMEOUT_SECONDS", 0.5)
    responses = [r"\boxed{18}", hangs, r"\boxed{17}", r"\boxed{\frac{36}{2}}", hangs]
    assert MATH(problem("18"), responses) == [1.0, 0.0, 0.0, 1.0, 0.0]
    assert [len(texts) for texts in requests] == [4, 1, 1, 1, 1]
    assert MATH(problem("18"), [r"\boxed{18}"]) == [1.0]


def test_many_slow_responses_have_the_time_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of processor time is for a response, so the size of its group changes no reward."""
    monkeypatch.setattr(graders, "TIMEOUT_SECONDS", 0.5)
    responses = [rf"\boxed{{{i}+\sin^2(x)+\cos^2(x)}}" for i in range(60)]
    rewards = MATH(problem("18"), responses)
    assert rewards == [float(i == 17) for i in range(60)]


def _in_worker(answers: list[str]) -> list[float]:
    return MATH(problem("1/2"), [rf"\boxed{{{answer}}}" for answer in answers])


def test_math_in_threads_and_processes() -> None:
    answers, rewards = ["0.5", "0.6", r"\frac{2}{4}"], [1.0, 0.0, 1.0]
    assert _in_worker(answers) == rewards
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(_in_worker, [answers] * 3)) == [rewards] * 3
    with multiprocessing.get_context("spawn").Pool(
        1
    ) as pool:  # its workers are daemons: no children by multiprocessing
        assert pool.map(_in_worker, [answers]) == [rewards]


# reasoning-gym


def test_gym() -> None:
    found = load_problems("gym:chain_sum?min_terms=2&max_terms=2", size=20, seed=5)
    first = found.problems[0]
    assert (len(found), first.source, first.id) == (20, "chain_sum", "chain_sum-0")
    for p in found.problems[:5]:
        words = p.question.rstrip(" =").split(": ")[1].replace(" ", "")
        left, right = int(words.replace("-", "+-").split("+")[0]), int(words.replace("-", "+-").split("+")[1])
        assert int(p.answer) == left + right
        assert found.verify(p, f"I think so.\n<answer>{p.answer}</answer>") == 1.0
        assert found.verify(p, "<answer>x</answer>") < 0.1
    assert load_problems("gym:chain_sum?min_terms=2&max_terms=2", size=5, seed=5).problems == found.problems[:5]
    assert load_problems("gym:chain_sum?min_terms=2&max_terms=2", size=5, seed=6).problems != found.problems[:5]


def test_gym_reads_an_answer_with_and_without_its_markup() -> None:
    sums = load_problems("gym:chain_sum", size=1)
    assert sums.verify(sums.problems[0], f"The answer is **{sums.problems[0].answer}**.") == 1.0
    assert sums.verify(sums.problems[0], f"<answer>{sums.problems[0].answer.replace('-', '−')}</answer>") == 1.0
    sentences = load_problems("gym:sentence_reordering", size=5)
    ending = [p for p in sentences.problems if p.answer.endswith(".")]
    assert ending
    assert {sentences.verify(p, f"The answer is {p.answer}") for p in ending} == {1.0}


@pytest.mark.parametrize("task", ["word_ladder", "ransom_note"])
def test_gym_is_the_same_in_every_process(task: str) -> None:
    """These iterate over sets of strings, which Python orders anew in every process unless told otherwise."""
    first = load_problems(f"gym:{task}", size=3).problems
    with ThreadPoolExecutor(1) as other:  # a thread of its own has a grading process of its own
        assert other.submit(load_problems, f"gym:{task}", size=3).result().problems == first


def test_gym_source_reads_back() -> None:
    asked = parse_gym('gym:basic_arithmetic?operators=["%2B","-"]&allow_parentheses=false', size=7, seed=3)
    assert dict(asked.params) == {"operators": ["+", "-"], "allow_parentheses": False}
    assert parse_gym(asked.name) == asked


def test_file_that_names_a_gym_verifier(tmp_path: Path) -> None:
    made = load_problems("gym:chain_sum", size=5)
    path = tmp_path / "a.jsonl"
    name = made.verifier.name  # type: ignore[attr-defined]  # a gym's verifier has one
    rows = [{"id": p.id, "question": p.question, "answer": p.answer, "verifier": name} for p in made.problems[2:4]]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    again = load_problems(str(path))
    assert again.verifier == made.verifier
    assert [again.verify(p, p.answer) for p in again.problems] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("gym:chain_sums", "no task 'chain_sums'; there are chain_sum"),
        ("gym:chain_sum?terms=3", "'terms' is no setting of chain_sum; there are min_terms"),
        ("gym:chain_sum?min_terms=-3", "refuses these settings .*positive"),
        ("gym:chain_sum?min_terms", "NAME=VALUE"),
        ("gym:chain_sum?size=x", "size = 'x' is not a whole number"),
    ],
)
def test_wrong_gym(source: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_problems(source)
