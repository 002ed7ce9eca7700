"""veRL's rollout dumps, `{dir}/{step}.jsonl`: one sampled response a line; pass rates of each problem over time."""

from __future__ import annotations

import hashlib
import re
from pathlib import PurePath
from typing import Any, ClassVar

from isocompute.data.formats.jsonl import objects
from isocompute.data.logs.base import NO_MATCH, Match
from isocompute.data.logs.collect import Rows, Sink
from isocompute.data.logs.literals import as_number
from isocompute.data.logs.source import Log, Sample

__all__ = ["VerlRollouts", "is_dump_name"]

_IDS = ("problem_id", "id", "index", "task_id", "question_id")  # not `uid`: veRL draws a new one every step
_VALIDATION = re.compile(r"val|eval|test")
_CORRECT = 0.5


def is_dump_name(name: str) -> bool:
    """Whether a file is named as a dump is, by its step."""
    return re.fullmatch(r"\d+\.jsonl", name) is not None


class VerlRollouts:
    """`trainer.rollout_data_dir` and `trainer.validation_data_dir`; the files of one folder are one run."""

    name: ClassVar[str] = "verl-rollouts"
    looks_for: ClassVar[str] = "JSON lines with 'input', 'output' and 'score'"

    def sniff(self, sample: Sample) -> Match:
        """A response with its score."""
        rows = sum(1 for row in sample.objects if {"input", "output", "score"} <= set(row))
        return Match(0.95, rows) if rows else NO_MATCH

    def read(self, log: Log, sink: Sink) -> None:
        """Counts for each problem, and for each step the mean score and the share of problems without variance."""
        rows = sink.run()
        stem = PurePath(log.part).stem
        groups: dict[int, dict[str, list[float]]] = {}
        for value in objects(log):
            score = _score(value) if value else None
            if value is None or score is None or "input" not in value:
                rows.skipped_lines += 1
                continue
            step = as_number(value.get("step"))
            if step is None:
                step = float(stem) if stem.isdigit() else None
            if step is None or not 0 <= step < 2**53:
                rows.skipped_lines += 1
                continue
            groups.setdefault(int(step), {}).setdefault(_problem(value), []).append(score)
        held_out = _VALIDATION.search(PurePath(log.name).parent.name.lower()) is not None
        if held_out:
            rows.pass_rates_set = "validation"
        for step, scores in groups.items():
            _point(rows, step, scores, held_out)


def _score(row: dict[str, Any]) -> float | None:
    """Whether the response is right: `acc`, which some write as true or false, else `score`."""
    for key in ("acc", "score"):
        value = row.get(key)
        number = float(value) if isinstance(value, bool) else as_number(value)
        if number is not None:
            return number
    return None


def _problem(row: dict[str, Any]) -> str:
    """The problem's id; where the dump has none, a hash of the prompt, which is the same in every step."""
    for key in _IDS:
        if isinstance(row.get(key), str | int) and not isinstance(row[key], bool):
            return str(row[key])
    extra = row.get("extra_info")
    if isinstance(extra, dict) and isinstance(extra.get("index"), str | int):
        return str(extra["index"])
    return hashlib.blake2b(str(row["input"]).encode(errors="replace"), digest_size=8).hexdigest()


def _point(rows: Rows, step: int, scores: dict[str, list[float]], held_out: bool) -> None:
    values = [s for group in scores.values() for s in group]
    same = sum(1 for group in scores.values() if min(group) == max(group))
    sizes = {len(group) for group in scores.values()}
    n = sizes.pop() if len(sizes) == 1 else None
    mean = f"avg@{n or 1}" if held_out else "train/avg"
    point = {mean: sum(values) / len(values), "problems": len(scores), "samples": len(values)}
    if len(values) > len(scores) and not held_out:
        point["zero_variance"] = same / len(scores)
    rows.add_mapping(step, point)
    for problem, group in scores.items():
        rows.pass_rates[step, problem] = [sum(s > _CORRECT for s in group), len(group)]
    if not held_out:
        for key, seen in (("problems_per_batch", len(scores)), ("rollouts_per_problem", n)):
            if rows.settings.setdefault(key, seen) != seen:  # what every dump agrees on is the batch
                rows.settings[key] = None
