"""Reward functions in a user's file: what they are given, and what is said when they fail."""

from __future__ import annotations

import json
import resource
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from isocompute.core.errors import InputError
from isocompute.problems import ProblemSet, load_problems
from isocompute.problems.reward import RewardError, RewardFunction

Load = Callable[..., ProblemSet]
ROWS = [{"question": f"what is {i} + 1?", "answer": str(i + 1), "id": f"p{i}", "level": i % 3} for i in range(6)]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Problems rewarded by the function `score` of this code."""

    def made(code: str, *, rows: list[dict[str, Any]] = ROWS, function: str = "score", **options: Any) -> ProblemSet:
        (tmp_path / "set.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (tmp_path / "my_rewards.py").write_text(textwrap.dedent(code))
        reward = f"{tmp_path / 'my_rewards.py'}:{function}"
        return load_problems(str(tmp_path / "set.jsonl"), reward=reward, **options)

    return made


def test_a_function_has_lists_of_prompts_responses_answers_and_columns(load: Load) -> None:
    made = load(
        """
        def score(prompts, responses, answers, **columns):
            assert set(columns) == {"id", "level", "tags"}, columns
            rows = zip(prompts, responses, answers, columns["id"], columns["level"], columns["tags"], strict=True)
            return [
                float(prompt == "1 + 1?" and response == answer and (i, level, tags) == ("p", 2, {"a": [None, 1.5]}))
                for prompt, response, answer, i, level, tags in rows
            ]
    """,
        rows=[{"question": "1 + 1?", "answer": "2", "id": "p", "level": 2, "tags": {"a": [None, 1.5]}}],
    )
    assert made.grade(made.problems[0], ["2", "3", "2"]) == [1.0, 0.0, 1.0]


def test_a_function_leaves_out_what_it_has_no_use_for(load: Load) -> None:
    made = load("""
        def score(responses, level, scale=0.5):
            return [scale * x for x in level]
    """)
    assert [made.grade(problem, ["a", "b"]) for problem in made.problems[:3]] == [[0.0, 0.0], [0.5, 0.5], [1.0, 1.0]]


def test_responses_of_a_group_may_be_compared(load: Load) -> None:
    """Equal responses reach a function as often as they were given; numbers of any library come back."""
    made = load("""
        import numpy as np
        def score(responses):
            return np.array([1 / responses.count(response) for response in responses], dtype=np.float32)
    """)
    assert made.grade(made.problems[0], ["a", "b", "a"]) == [0.5, 1.0, 0.5]
    assert made.verify(made.problems[0], "a") == 1.0


def test_a_file_imports_its_neighbours_and_has_a_name_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "neighbour.py").write_text("def right(a, b): return [float(x == y) for x, y in zip(a, b)]")
    (tmp_path / "json.py").write_text(
        "from neighbour import right\ndef score(responses, answers): return right(responses, answers)"
    )
    made = load_problems("gym:chain_sum", size=3, reward=f"{tmp_path / 'json.py'}:score")
    answers = [problem.answer for problem in made.problems]
    assert [made.grade(problem, [answers[0], "x"])[0] for problem in made.problems] == [1.0, 0.0, 0.0]


def test_a_function_has_the_memory_of_the_machine(load: Load) -> None:
    made = load("""
        import resource
        def score(responses):
            return [resource.getrlimit(resource.RLIMIT_AS)[0]] * len(responses)
    """)
    assert made.verify(made.problems[0], "x") == resource.getrlimit(resource.RLIMIT_AS)[0]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def score(responses): raise ValueError('no such unit')", "raises ValueError in line 1 (no such unit)"),
        ("def score(responses):\n    return len(3)", "raises TypeError in line 2 (object of type 'int' has no len())"),
        ("def score(responses): raise SystemExit(3)", "raises SystemExit in line 1 (3)"),
        ("def score(responses): pass", "returns NoneType, not a list of numbers"),
        ("def score(responses): return 1.0", "returns float, not a list of numbers"),
        ("def score(responses): return [1.0]", "returns a list of another length than the responses (1 for 3)"),
        ("def score(responses): return [0, None, 1]", "returns a reward that is not a finite number (None)"),
        ("def score(responses): return [0, 'x', 1]", "returns a reward that is not a finite number ('x')"),
        ("def score(responses): return [0, float('nan'), 1]", "returns a reward that is not a finite number (nan)"),
        ("def score(responses): return [0, -float('inf'), 1]", "returns a reward that is not a finite number (-inf)"),
        ("import os\ndef score(responses): os._exit(3)", "ended its process (exit code 3)"),
        (
            "import os, signal\ndef score(responses): os.kill(os.getpid(), signal.SIGKILL)",
            "ended its process (killed by signal 9)",
        ),
    ],
    ids=lambda text: text[-30:],
)
def test_a_function_that_fails(load: Load, code: str, message: str) -> None:
    made = load(code)
    with pytest.raises(RewardError) as caught:
        made.grade(made.problems[2], ["one", "two", "three"])
    named = "two" if "finite" in message else "one"
    assert str(caught.value) == f"my_rewards.py:score {message}; problem p2, response '{named}'"
    assert caught.value.reason.startswith("my_rewards.py:score ")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("raise KeyError(response)", "raises KeyError in line 5 ('bad"),
        ("while True: pass", "does not answer within 1 s (make it faster or raise reward_seconds)"),
    ],
)
def test_the_response_that_fails_is_named(load: Load, bad: str, message: str) -> None:
    """Functions get a whole group, so the response is found by asking about each alone. It is shortened."""
    made = load(
        f"""
        def score(responses):
            for response in responses:
                if response.startswith("bad"):
                    {bad}
            return [0.5] * len(responses)
        """,
        reward_seconds=1,
    )
    with pytest.raises(RewardError) as caught:
        made.grade(made.problems[1], ["good", "bad" * 1000, "worse"])
    assert message in str(caught.value)
    assert str(caught.value).endswith(f"; problem p1, response '{('bad' * 1000)[:200]}…'")
    assert "bad" not in caught.value.reason
    assert made.grade(made.problems[1], ["good", "worse"]) == [0.5, 0.5]


def test_a_function_that_is_slow_on_every_response(load: Load) -> None:
    made = load("import time\ndef score(responses):\n    time.sleep(30)\n", reward_seconds=0.5)
    with pytest.raises(RewardError, match=r"does not answer within 0.5 s .* response 'a'"):
        made.grade(made.problems[0], ["a", "b"])


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        ("my_rewards.py", "write FILE.py:FUNCTION, such as my_rewards.py:score"),
        ("my_rewards:score", "write FILE.py:FUNCTION"),
        ("my_rewards.py:", "write FILE.py:FUNCTION"),
        ("my_rewards.py:two words", "write FILE.py:FUNCTION"),
        ("no_rewards.py:score", "there is no file .*no_rewards.py; paths start at the current folder"),
    ],
)
def test_what_names_no_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reward: str, message: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my_rewards.py").write_text("def score(responses): return [0.0] * len(responses)")
    with pytest.raises(InputError, match=f"reward '{reward}': {message}"):
        load_problems("chain:easy", size=2, reward=reward)
    assert load_problems("chain:easy", size=2, reward="my_rewards.py:score").verifier == RewardFunction(
        str(tmp_path / "my_rewards.py"), "score"
    )


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def other(responses): pass", "the file has no function 'score'; it has other"),
        ("score = 3", "'score' is not a function, but int"),
        (
            "def score(completions): pass",
            r"cannot be called \(missing a required argument: 'completions'\); its arguments may be "
            "prompts, responses, answers, id, level",
        ),
        ("import no_such_library", r"cannot be imported \(ModuleNotFoundError in line 1: No module named"),
        ("def score(:", r"cannot be imported \(SyntaxError: invalid syntax \(my_rewards.py, line 1\)\)"),
        ("raise SystemExit(2)", r"importing the file ended its process \(exit code 2\)"),
    ],
    ids=lambda text: text[:20],
)
def test_a_file_is_looked_at_before_anything_runs(load: Load, code: str, message: str) -> None:
    with pytest.raises(InputError, match=f"set.jsonl: reward '.*my_rewards.py:score': .*{message}") as caught:
        load(code)
    assert "\n" not in str(caught.value)


def test_a_verifier_and_a_reward_contradict(load: Load) -> None:
    with pytest.raises(InputError, match="reward and verifier both say how to grade responses; leave one out"):
        load("def score(responses): pass", verifier="exact")
