"""From a source to a `ProblemSet`: a file, a reasoning-gym task, a `datasets` set or built-in chains."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from pathlib import Path

from isocompute.core.errors import InputError
from isocompute.problems.answers import ExactVerifier
from isocompute.problems.columns import problems_of
from isocompute.problems.grader import MathVerifier, needs
from isocompute.problems.model import ProblemSet, ProblemWarning, Verifier, draw, without_duplicates
from isocompute.problems.tables import SUFFIXES, Row, lookup, read_rows

__all__ = ["VERIFIERS", "load_problems"]

VERIFIERS = ("math", "exact")
_SPLITS = ("train", "test", "validation", "valid", "val", "dev", "eval")


def load_problems(
    source: str,
    *,
    size: int | None = None,
    seed: int = 0,
    question: str | None = None,
    answer: str | None = None,
    verifier: str | None = None,
    pass_rate: str | None = None,
) -> ProblemSet:
    """Read or generate a problem set.

    `source` is a path to a .jsonl, .json, .csv or .parquet file, `gym:TASK?key=value`, `hf:NAME:CONFIG:SPLIT` or
    `chain:LEVEL`. `size` takes that many problems by the hash of their question. `question`, `answer` and `pass_rate`
    name columns that are not found by themselves. `verifier` is `math`, `exact` or a `gym:` source; files written by
    `isocompute split` say which one they need.
    """
    if size is not None and size < 1:
        raise InputError(f"size = {size}: ask for at least one problem.")
    kind = source.partition(":")[0]
    if kind in ("gym", "chain"):
        if verifier or question or answer or pass_rate:
            raise InputError(f"{source}: columns and verifiers are for files; this source has its own.")
        if kind == "gym":
            from isocompute.problems.gym import load_gym

            return load_gym(source, size=size, seed=seed)
        from isocompute.problems.chain import load_chain

        return load_chain(source, size=size, seed=seed)
    rows = _hf_rows(source) if kind == "hf" else _file_rows(source)
    problems = problems_of(rows, path=source, question=question, answer=answer, pass_rate=pass_rate)
    unique, duplicates = without_duplicates(problems, name=source)
    if size is not None:
        if size > len(unique):
            raise InputError(f"{source}: has {len(unique)} different problems, not {size}; ask for fewer.")
        unique = draw(unique, size, seed=seed)
    return ProblemSet(name=source, problems=unique, verify=_verifier(verifier, rows, source), duplicates=duplicates)


def _file_rows(source: str) -> list[Row]:
    if not Path(source).exists():
        raise InputError(
            f"{source}: no such file; give a {', '.join(SUFFIXES)} file, gym:TASK, hf:NAME:CONFIG:SPLIT or chain:LEVEL."
        )
    return read_rows(source)


def _hf_rows(source: str) -> list[Row]:
    """`hf:NAME`, `hf:NAME:SPLIT`, `hf:NAME:CONFIG`, `hf:NAME:CONFIG:SPLIT`; a local folder is a name too."""
    needs("datasets", what=source)
    import datasets

    name, *more = source.removeprefix("hf:").split(":")
    if not name or len(more) > 2:
        raise InputError(f"{source}: write hf:NAME, hf:NAME:SPLIT or hf:NAME:CONFIG:SPLIT.")
    if len(more) == 1:
        more = ["", more[0]] if more[0] in _SPLITS else [more[0], ""]
    config, split = more or ("", "")
    bars = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        table = datasets.load_dataset(name, config or None, split=split or "train")
    except Exception as error:  # network, missing set, unknown split: the library raises many kinds
        reason = str(error).strip().split("\n", 1)[0] or type(error).__name__
        raise InputError(f"{source}: datasets cannot load it ({reason}).") from error
    finally:
        if not bars:
            datasets.enable_progress_bars()
    return [Row(f"{source}, row {i + 1}", row) for i, row in enumerate(table)]


def _verifier(name: str | None, rows: list[Row], source: str) -> Verifier:
    if name is None:
        said = {str(found) for row in rows if (found := lookup(row.values, "verifier"))}
        if len(said) > 1:
            raise InputError(
                f"{source}: its rows name {len(said)} verifiers ({', '.join(sorted(said)[:3])}); name one."
            )
        name = said.pop() if said else None
    if name is None:
        if find_spec("math_verify") is not None:
            return MathVerifier()
        warnings.warn(
            f"{source}: math-verify is not installed, so answers are compared as text and numbers "
            "(pip install 'isocompute[problems]', or say verifier='exact').",
            ProblemWarning,
            stacklevel=3,
        )
        return ExactVerifier()
    if name == "exact":
        return ExactVerifier()
    if name == "math":
        needs("math_verify", what="verifier 'math'")
        return MathVerifier()
    if name.startswith("gym:"):
        from isocompute.problems.gym import parse_gym

        needs("reasoning_gym", what=name)
        return parse_gym(name)
    raise InputError(f"{source}: no verifier is named '{name}'; there are {', '.join(VERIFIERS)} and gym:TASK.")
