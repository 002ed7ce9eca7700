from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isocompute.core.errors import InputError
from isocompute.problems.chain import LEVELS, ChainSpec, distinct_chains, load_chain, make_chains, parse_chain
from isocompute.rl.model.checkpoint import model_folder
from isocompute.rl.tasks import ChainGrader, ProblemsSpec, make_tasks

EOS = 1
PRIMES = [3, 5, 7, 23, 97]


def left_to_right(question: str, modulus: int) -> list[int]:
    """Every result of a chain's text, by Python's own arithmetic."""
    words = question.removesuffix(" =").split()
    value, results = int(words[0]), []
    for operation, operand in zip(words[1::2], words[2::2], strict=True):
        value = {"+": value.__add__, "-": value.__sub__, "*": value.__mul__}[operation](int(operand)) % modulus
        results.append(value)
    return results


@settings(max_examples=30)
@given(st.sampled_from(PRIMES), st.integers(1, 6), st.integers(0, 6), st.integers(0, 2**31))
def test_results_are_those_of_python(modulus: int, shortest: int, more: int, seed: int):
    spec = ChainSpec(modulus=modulus, shortest=shortest, longest=shortest + more)
    chains = make_chains(spec, 20, seed=seed)
    assert chains.steps_P.min() >= shortest and chains.steps_P.max() <= shortest + more
    for i in range(len(chains)):
        question, steps = chains.question(i), int(chains.steps_P[i])
        assert re.fullmatch(r"\d+( [-+*] \d+)+ =", question)
        results = left_to_right(question, modulus)
        assert results == chains.results_PS[i, :steps].tolist()
        assert results[-1] == chains.answers_P[i]
        for padded in (
            chains.results_PS[i, steps:],
            chains.operations_PS[i, steps:],
            chains.operands_PS[i, steps + 1 :],
        ):
            assert (padded == -1).all()


def test_the_text_set_has_the_same_answers():
    chains, text = distinct_chains(parse_chain("chain:easy"), 40, seed=3), load_chain("chain:easy", size=40, seed=3)
    assert [p.question for p in text.problems] == [chains.question(i) for i in range(40)]
    for problem in text.problems:
        trace = left_to_right(problem.question, 23)
        assert problem.answer == str(trace[-1])
        assert text.verify(problem, " ".join(map(str, trace)) + " <eos>") == 1.0
        assert text.verify(problem, f"{(trace[-1] + 1) % 23}") == text.verify(problem, "") == 0.0


@pytest.mark.parametrize(
    ("source", "spec"),
    [
        ("chain", ChainSpec(23, *LEVELS["all"])),
        ("chain:easy", ChainSpec(23, 3, 5)),
        ("chain:7", ChainSpec(23, 7, 7)),
        ("chain:8-10?modulus=97", ChainSpec(97, 8, 10)),
        ("chain:extremely-hard?modulus=5", ChainSpec(5, 14, 16)),
    ],
)
def test_sources(source: str, spec: ChainSpec):
    assert parse_chain(source) == spec


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("chain:medium", r"'medium' is not one of very-easy, easy"),
        ("chain:3-", r"'3-' is not one of"),
        ("chain:-3", r"'-3' is not one of"),
        ("chain:5-3", r"steps 5-3; give the shorter first"),
        ("chain:0-3", r"at least 1"),
        ("chain:easy?modulus=24", r"modulus 24 is not a prime"),
        ("chain:easy?modulus=1", r"modulus 1 is not a prime"),
        ("chain:easy?modulus=x", r"'modulus=x' is not an option"),
        ("chain:easy?steps=4", r"'steps=4' is not an option"),
    ],
)
def test_wrong_sources_are_refused(source: str, message: str):
    with pytest.raises(InputError, match=message) as caught:
        parse_chain(source)
    assert "\n" not in str(caught.value)


def test_no_chain_stands_twice_and_none_is_held_out():
    spec = parse_chain("chain:1?modulus=5")  # 75 chains in all
    held_out = distinct_chains(spec, 20, seed=1)
    chains = distinct_chains(spec, 45, seed=2, without=[held_out])
    questions = {chains.question(i) for i in range(len(chains))}
    assert len(questions) == len(chains) == 45
    assert not questions & {held_out.question(i) for i in range(len(held_out))}
    with pytest.raises(InputError, match="there are not 60 different problems of 1 to 1 steps modulo 5"):
        distinct_chains(spec, 60, seed=2, without=[held_out])


@pytest.mark.parametrize("seed", [0, 1, 7_000_003])
def test_what_is_measured_on_is_never_trained_on(seed: int):
    spec = ProblemsSpec.of(
        {
            "source": "chain:2-3",
            "size": 600,
            "validation": 200,
            "seed": seed,
            "out_of_distribution": {"same": "chain:2-3", "shorter": "chain:1-2"},
        }
    )
    tasks = make_tasks(spec, model_folder("tiny"))
    train = set(map(tuple, tasks.train.prompts))
    assert len(train) == len(tasks.train) == 600
    for task in (tasks.validation, *tasks.out_of_distribution.values()):
        assert len(set(map(tuple, task.prompts))) == len(task) == 200
        assert not train & set(map(tuple, task.prompts))


def test_validation_is_the_same_for_every_training_set():
    def prompts(**changes: object) -> list[list[int]]:
        spec = ProblemsSpec.of({"source": "chain:easy", "size": 50, "validation": 30, **changes})
        return [list(p) for p in make_tasks(spec, model_folder("tiny")).validation.prompts]

    assert prompts() == prompts(seed=5) == prompts(size=80)


def test_the_grader_on_responses_written_by_hand():
    grade = ChainGrader([16, 9])  # token ids of the answers
    cases: list[tuple[int, list[int], float]] = [
        (0, [12, 16, EOS], 1.0),  # right
        (0, [16, EOS], 1.0),  # right without its steps
        (0, [9, EOS], 0.0),  # the other problem's answer
        (1, [9, EOS], 1.0),
        (0, [16, 12, EOS], 0.0),  # right at first, then another number
        (0, [16, 12, 16, EOS], 1.0),  # extra tokens before the answer
        (0, [12, 12, 12, 16], 0.0),  # truncated: it does not end by itself
        (0, [16, 2, EOS], 0.0),  # ends on another word
        (0, [EOS], 0.0),  # nothing at all
        (1, [EOS], 0.0),
    ]
    for problem in (0, 1):
        mine = [(response, reward) for of, response, reward in cases if of == problem]
        stopped = [response[-1] == EOS for response, _ in mine]
        assert grade(problem, [response for response, _ in mine], stopped) == [reward for _, reward in mine]


def test_the_words_of_every_set_must_be_known():
    for changes in (
        {"validation_source": "chain:easy?modulus=29"},
        {"out_of_distribution": {"b": "chain:3?modulus=29"}},
    ):
        spec = ProblemsSpec.of({"source": "chain:easy", "size": 8, "validation": 8, **changes})
        with pytest.raises(InputError, match="has no word '23'; chain modulo 29 needs a model"):
            make_tasks(spec, model_folder("tiny"))
