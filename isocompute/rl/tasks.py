"""Problem sets prepared for a model: the token ids of the prompts, and graders of responses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from isocompute.core.errors import InputError, first_wrong
from isocompute.problems.chain import DEFAULT_SIZE, LEVELS, Chains, distinct_chains, parse_chain, vocabulary
from isocompute.problems.problem_set import Problem, ProblemSet, draw
from isocompute.problems.reward import REWARD_SECONDS
from isocompute.rl.lengths import uninterrupted_budget
from isocompute.rl.model.checkpoint import check_vocabulary, context_length, read_tokenizer
from isocompute.rl.prompts import RESERVED, Prompts, Template

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_HELD_OUT = 7_000_003
"""Seed of the validation problems, so that they are the same for every training set."""
_EXAMPLES = 7_000_009
"""Seed of the few-shot examples."""
_RESERVED = ("", "train", "validation", "val")
"""Names that a set cannot have, since metrics use them."""
_OF_TEXT = (
    *("question", "answer", "verifier", "reward", "reward_seconds"),
    *("template", "chat_template", "instruction", "few_shot", "stop"),
)
"""Fields of `[problems]` that apply only to text problems."""
_TEXT_BUDGET = 512
"""Default response budget of text problems, in tokens."""
_TEXT_PHRASE = "\n\nNo time is left to think; the answer follows.\n</think>"
_CHAIN_PHRASE = "="


# The `[problems]` table


class ProblemsSpec(BaseModel):
    """The `[problems]` table of the language-model engine."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    set: str | None = Field(default=None, description="name of the set in a study; 'easy' alone means chain:easy")
    source: str | None = Field(default=None, description="chain:LEVEL, gym:TASK, hf:NAME, or a file of problems")
    sources: dict[str, str] = Field(
        default={}, description="instead of source: several sets to train on together, name = source, each with curves"
    )
    size: int | None = Field(default=None, ge=1, description="training problems (of each source); all if not set")
    validation: int = Field(default=256, ge=1, description="validation problems (of each source), held out")
    validation_source: str | None = Field(default=None, description="another set to validate on")
    out_of_distribution: dict[str, str] = Field(default={}, description="further sets to evaluate on, name = source")
    seed: int = Field(default=0, ge=0, description="of the draw of problems")
    max_new_tokens: int | None = Field(default=None, ge=1, description="response budget; for chain as long as it takes")
    question: str | None = Field(default=None, description="column of the question")
    answer: str | None = Field(default=None, description="column of the answer")
    verifier: str | None = Field(default=None, description="math or exact")
    reward: str | None = Field(default=None, description="instead of verifier: FILE.py:FUNCTION, a function of yours")
    reward_seconds: float = Field(
        default=REWARD_SECONDS, gt=0, le=86_400, description="most wall time of the function for a group of responses"
    )
    template: Template = Field(
        default="auto", description="whether prompts go through the tokenizer's chat template; auto: where it has one"
    )
    chat_template: dict[str, Any] = Field(
        default={}, description="arguments of the chat template, such as enable_thinking = false"
    )
    instruction: str = Field(default="", description="text after every question")
    few_shot: int = Field(
        default=0, ge=0, description="examples with answers before every question; not in training or validation"
    )
    stop: list[Annotated[str, Field(min_length=1)]] = Field(
        default=[], description="texts that end a response, besides the model's stop tokens"
    )

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> ProblemsSpec:
        """From a table; errors name the field."""
        try:
            spec = cls(**table)
        except ValidationError as error:
            where, why = first_wrong(error, fields=cls.model_fields)
            raise InputError(f"problems.{where}: {why}.") from error
        spec._refuse_taken_names()
        if spec.sources:
            taken = [name for name in ("source", "validation_source") if getattr(spec, name) is not None]
            if taken:
                raise InputError(f"problems.{taken[0]}: sources says where the problems come from; leave one out.")
        elif spec.source is None:
            if spec.set is not None and spec.set not in LEVELS:
                raise InputError(f"problems.source: say where '{spec.set}' comes from: chain:easy, gym:TASK or a file.")
            spec = spec.model_copy(update={"source": f"chain:{spec.set or 'easy'}"})
        spec._refuse_what_chains_ignore()
        spec._refuse_contradictions()
        return spec

    @property
    def all_sources(self) -> list[str]:
        """Where training, held-out and out-of-distribution problems come from."""
        single = [source for source in (self.source, self.validation_source) if source is not None]
        return [*single, *self.sources.values(), *self.out_of_distribution.values()]

    def _refuse_what_chains_ignore(self) -> None:
        """Refuse text fields for chains, which have no columns or template and bring their own verifier."""
        ignored = [name for name in _OF_TEXT if getattr(self, name) != type(self).model_fields[name].default]
        if ignored and all(source.startswith("chain:") for source in self.all_sources):
            raise InputError(f"problems.{ignored[0]}: chains are made of tokens and have no use for it; leave it out.")

    def _refuse_contradictions(self) -> None:
        if self.reward is not None and self.verifier is not None:
            raise InputError("problems.verifier: problems.reward already says how to grade responses; leave one out.")
        if self.chat_template and self.template == "plain":
            raise InputError("problems.chat_template: template = 'plain' uses no chat template; leave one out.")
        own = [name for name in self.chat_template if name in RESERVED]
        if own:
            raise InputError(f"problems.chat_template: '{own[0]}' is set by the engine; leave it out.")

    def _refuse_taken_names(self) -> None:
        """Refuse set names that clash: the name is the prefix of the set's metrics."""
        for table, also in (("sources", {}), ("out_of_distribution", self.sources)):
            taken = [name for name in getattr(self, table) if name in _RESERVED or name in also]
            if taken:
                raise InputError(f"problems.{table}: '{taken[0]}' is the name of another set; give it another name.")


# Tasks


class Grader(Protocol):
    """Grades the responses to a problem of a task."""

    @property
    def cheap(self) -> bool:
        """Whether grading takes microseconds, so that a thread would cost more than it saves."""
        ...

    def __call__(self, problem: int, responses: Sequence[Sequence[int]], stopped: Sequence[bool]) -> list[float]:
        """Rewards of the responses to the problem of this index.

        A response is its token ids, the stop token included; `stopped` says which ended by themselves.
        """
        ...


@dataclass(frozen=True)
class Task:
    """Problems with tokenized prompts and a grader."""

    name: str
    ids: Sequence[str]
    prompts: Sequence[Sequence[int]]
    grade: Grader
    text: Callable[[Sequence[int]], str]
    """Decodes the token ids of a response, special tokens included."""
    questions: Sequence[str]

    def __len__(self) -> int:
        return len(self.prompts)


@dataclass(frozen=True)
class Tasks:
    """The training, validation and out-of-distribution problems of a run."""

    train: Task
    validation: Task
    out_of_distribution: Mapping[str, Task]
    max_new_tokens: int
    phrase: str = ""
    """Default phrase of a forced interruption."""
    subsets: Mapping[str, slice] = field(default_factory=dict)
    """With several sources: the slice of validation problems of each."""
    stop_strings: Sequence[str] = ()
    """Texts that end a response, besides the model's stop tokens."""

    @property
    def measured(self) -> dict[str, Task]:
        """The tasks to evaluate, by the prefix of their metrics."""
        return {"": self.validation, **{f"{name}/": task for name, task in self.out_of_distribution.items()}}


def make_tasks(spec: ProblemsSpec, folder: Path, *, controlled: bool = False) -> Tasks:
    """The tasks of a run, checked against the model's vocabulary and context.

    `controlled` says that the recipe interrupts or penalises long responses. The default budget of chains is then long
    enough for complete responses to be neither interrupted nor penalised.
    """
    if spec.sources:
        tasks = _joined_tasks(spec, folder, controlled=controlled)
    elif spec.source is not None and _is_chain(spec.source):
        tasks = _chain_tasks(spec, folder, controlled=controlled)
    else:
        tasks = _text_tasks(spec, folder)
    for task in (tasks.train, tasks.validation, *tasks.out_of_distribution.values()):
        _check_room(task, tasks.max_new_tokens, folder)
    return replace(tasks, stop_strings=tuple(spec.stop))


def whole_task(spec: ProblemsSpec, folder: Path) -> tuple[Task, int]:
    """All problems of a source as one task, with none held out, and the response budget; used to measure a model."""
    assert spec.source is not None
    if _is_chain(spec.source):
        chains = distinct_chains(parse_chain(spec.source), spec.size or DEFAULT_SIZE, seed=spec.seed)
        task, budget = _chain_task("all", chains, folder), _chain_budget(spec, [chains])
    else:
        problems = _load_text(spec, spec.source, spec.size, seed=spec.seed)
        task, budget = _text_task("all", problems, _prompts(spec, folder)), _text_budget(spec)
    _check_room(task, budget, folder)
    return task, budget


def _is_chain(source: str) -> bool:
    return source.partition(":")[0] == "chain"


def _check_room(task: Task, max_new_tokens: int, folder: Path) -> None:
    if not len(task):
        raise InputError(f"problems: {task.name} holds no problems.")
    check_vocabulary({i for prompt in task.prompts for i in prompt}, folder, f"problems: prompts of {task.name}")
    room = context_length(folder)
    longest = max(range(len(task)), key=lambda i: len(task.prompts[i]))
    prompt = len(task.prompts[longest])
    if prompt + max_new_tokens > room:
        fix = f"lower problems.max_new_tokens to {room - prompt}" if room > prompt else "use fewer few-shot examples"
        raise InputError(
            f"problems: {task.name}, problem {task.ids[longest]}: {prompt} tokens and {max_new_tokens} new ones do not "
            f"fit the model's context of {room}; {fix}, or leave the problem out."
        )


# Several sources


def _joined_tasks(spec: ProblemsSpec, folder: Path, *, controlled: bool) -> Tasks:
    """Tasks of several sources trained on together; the validation problems are ordered by source."""
    alone = {
        name: make_tasks(spec.model_copy(update={"source": source, "sources": {}}), folder, controlled=controlled)
        for name, source in spec.sources.items()
    }
    ends = np.cumsum([len(tasks.validation) for tasks in alone.values()]).tolist()
    first = next(iter(alone.values()))
    # A held-out problem of one source may be a training problem of another.
    held_out = [task for tasks in alone.values() for task in tasks.measured.values()]
    measured = {_words(question) for task in held_out for question in task.questions}
    return Tasks(
        _join("train", {name: tasks.train for name, tasks in alone.items()}, without=measured),
        _join("validation", {name: tasks.validation for name, tasks in alone.items()}),
        first.out_of_distribution,
        max(tasks.max_new_tokens for tasks in alone.values()),
        first.phrase,
        {name: slice(end - len(alone[name].validation), end) for name, end in zip(alone, ends, strict=True)},
    )


def _join(name: str, tasks: Mapping[str, Task], *, without: Set[str] = frozenset()) -> Task:
    """The problems of several sources as one task, without these questions; ids start with the source's name."""
    places = [
        (source, i)
        for source, task in tasks.items()
        for i, question in enumerate(task.questions)
        if _words(question) not in without
    ]
    return Task(
        name,
        [f"{source}/{tasks[source].ids[i]}" for source, i in places],
        [tasks[source].prompts[i] for source, i in places],
        JoinedGrader([(tasks[source].grade, i) for source, i in places]),
        next(iter(tasks.values())).text,
        [tasks[source].questions[i] for source, i in places],
    )


class JoinedGrader:
    """Grades problems of several tasks: each by its own task's grader, under its index there."""

    def __init__(self, places: Sequence[tuple[Grader, int]]) -> None:
        self.places = places
        self.cheap = all(grade.cheap for grade, _ in places)

    def __call__(self, problem: int, responses: Sequence[Sequence[int]], stopped: Sequence[bool]) -> list[float]:
        """Ask the grader of the problem's task."""
        grade, index = self.places[problem]
        return grade(index, responses, stopped)


def _words(question: str) -> str:
    return " ".join(question.split())


# Chains


def _chain_tasks(spec: ProblemsSpec, folder: Path, *, controlled: bool) -> Tasks:
    assert spec.source is not None
    validation = distinct_chains(parse_chain(spec.validation_source or spec.source), spec.validation, seed=_HELD_OUT)
    outside = {
        name: distinct_chains(parse_chain(source), spec.validation, seed=_HELD_OUT)
        for name, source in spec.out_of_distribution.items()
    }
    held_out = [validation, *outside.values()]
    train = distinct_chains(parse_chain(spec.source), spec.size or DEFAULT_SIZE, seed=spec.seed, without=held_out)
    return Tasks(
        _chain_task("train", train, folder),
        _chain_task("validation", validation, folder),
        {name: _chain_task(name, chains, folder) for name, chains in outside.items()},
        _chain_budget(spec, [train, *held_out], controlled=controlled),
        _CHAIN_PHRASE,
    )


def _chain_task(name: str, chains: Chains, folder: Path) -> Task:
    tokenizer, modulus = read_tokenizer(folder), chains.spec.modulus
    ids = {word: tokenizer.token_to_id(word) for word in vocabulary(modulus)}
    unknown = [word for word, token in ids.items() if token is None]
    if unknown:
        raise InputError(
            f"problems: {name}: the tokenizer of {folder.name} has no word '{unknown[0]}'; chain modulo {modulus} "
            f"needs a model of its own: isocompute lm pretrain FOLDER --problems 'chain:all?modulus={modulus}'."
        )
    check_vocabulary([i for i in ids.values() if i is not None], folder, str(folder / "tokenizer.json"))
    questions = [chains.question(i) for i in range(len(chains))]
    prompts = [tokenizer.encode(question).ids for question in questions]
    number_ids = np.array([ids[str(number)] for number in range(modulus)])
    grade = ChainGrader(number_ids[chains.answers_P].tolist())
    return Task(name, [f"chain-{i}" for i in range(len(chains))], prompts, grade, _decoder(tokenizer), questions)


class ChainGrader:
    """Gives 1 if the response stops by itself and its last number is the answer."""

    cheap = True

    def __init__(self, answers: Sequence[int]) -> None:
        self.answers = answers
        """Token of each problem's answer."""

    def __call__(self, problem: int, responses: Sequence[Sequence[int]], stopped: Sequence[bool]) -> list[float]:
        """Compare the last number of each response with the answer."""
        answer = self.answers[problem]
        return [
            float(stops and len(response) > 1 and response[-2] == answer)
            for response, stops in zip(responses, stopped, strict=True)
        ]


def _chain_budget(spec: ProblemsSpec, sets: Sequence[Chains], *, controlled: bool = False) -> int:
    longest = max(int(chains.steps_P.max()) for chains in sets) + 1  # all results and the stop token
    return spec.max_new_tokens or (uninterrupted_budget(longest) if controlled else longest + 2)


# Text


def _text_tasks(spec: ProblemsSpec, folder: Path) -> Tasks:
    assert spec.source is not None
    own = spec.validation_source is None
    # Generators make only the problems needed; files are read whole, so that every size has the same validation set.
    needed = spec.size and spec.size + spec.few_shot + spec.validation * own
    generated = needed if spec.source.startswith("gym:") else None
    whole = _load_text(spec, spec.source, generated, seed=spec.seed)
    if spec.validation_source is not None:
        validation = _load_text(spec, spec.validation_source, spec.validation, seed=_HELD_OUT)
    else:
        validation = replace(whole, problems=draw(whole.problems, spec.validation, seed=_HELD_OUT))
    outside = {
        name: _load_text(spec, source, spec.validation, seed=_HELD_OUT)
        for name, source in spec.out_of_distribution.items()
    }
    left = _without(whole, [problem for part in (validation, *outside.values()) for problem in part.problems])
    if len(left) < (spec.size or 1) + spec.few_shot:
        examples = f" and {spec.few_shot} are examples" if spec.few_shot else ""
        raise InputError(
            f"problems: {spec.source} has {len(whole)} problems; {max(0, len(left) - spec.few_shot)} are left to train "
            f"on when {spec.validation} are held out{examples}; lower problems.size or problems.validation."
        )
    shots = draw(left.problems, spec.few_shot, seed=_EXAMPLES)
    left = _without(left, shots)
    train = left if spec.size is None else replace(left, problems=draw(left.problems, spec.size, seed=spec.seed))
    encode = _prompts(spec, folder, shots)
    return Tasks(
        _text_task("train", train, encode),
        _text_task("validation", validation, encode),
        {name: _text_task(name, problems, encode) for name, problems in outside.items()},
        _text_budget(spec),
        _TEXT_PHRASE,
    )


def _prompts(spec: ProblemsSpec, folder: Path, examples: Sequence[Problem] = ()) -> Prompts:
    return Prompts(
        folder,
        template=spec.template,
        arguments=spec.chat_template,
        instruction=spec.instruction,
        examples=examples,
    )


def _text_budget(spec: ProblemsSpec) -> int:
    return spec.max_new_tokens or _TEXT_BUDGET


def _load_text(spec: ProblemsSpec, source: str, size: int | None, *, seed: int) -> ProblemSet:
    from isocompute.problems.load import load_problems

    return load_problems(
        source,
        size=size,
        seed=seed,
        question=spec.question,
        answer=spec.answer,
        verifier=spec.verifier,
        reward=spec.reward,
        reward_seconds=spec.reward_seconds,
    )


def _without(whole: ProblemSet, held_out: Iterable[Problem]) -> ProblemSet:
    """The problems whose question is not held out; ids cannot be compared, since each file has its own."""
    taken = {_words(problem.question) for problem in held_out}
    return replace(whole, problems=tuple(p for p in whole.problems if _words(p.question) not in taken))


def _text_task(name: str, problems: ProblemSet, encode: Prompts) -> Task:
    return Task(
        name,
        [problem.id for problem in problems.problems],
        [encode(problem) for problem in problems.problems],
        TextGrader(problems, encode.tokenizer),
        _decoder(encode.tokenizer),
        [problem.question for problem in problems.problems],
    )


class TextGrader:
    """Decodes responses and grades their text."""

    cheap = False

    def __init__(self, problems: ProblemSet, tokenizer: Tokenizer) -> None:
        self.problems, self.tokenizer = problems, tokenizer

    def __call__(self, problem: int, responses: Sequence[Sequence[int]], stopped: Sequence[bool]) -> list[float]:  # noqa: ARG002
        """Ask the verifier; a response that was cut off counts as it is."""
        texts = self.tokenizer.decode_batch([list(response) for response in responses], skip_special_tokens=True)
        return self.problems.grade(self.problems.problems[problem], texts)


def _decoder(tokenizer: Tokenizer) -> Callable[[Sequence[int]], str]:
    return lambda ids: tokenizer.decode(list(ids), skip_special_tokens=False)
