"""A study that was begun when recipe fields had other names resumes under today's."""

from __future__ import annotations

from pathlib import Path

from tests.commands import Call, fails

SPEC = """
engine = "sim"
seeds = [0]
problems = {set = "easy", size = 60}
recipe = {name = "isocompute-easy", FIELD = 512}
grid = {problems_per_batch = [8], rollouts_per_problem = [8]}
budget = {rollouts = 640}
evaluation = {points = 2, samples = 4}
"""


def test_a_study_begun_with_an_older_name_resumes(call: Call, tmp_path: Path) -> None:
    spec, out = tmp_path / "study.toml", tmp_path / "out"
    spec.write_text(SPEC.replace("FIELD", "lr_reference_batch"))
    assert call("study", "run", spec, "--out", out).code == 0
    for name in ("identity.json", "study.toml"):  # as version 0.1 wrote them
        stored = out / name
        stored.write_text(stored.read_text().replace("lr_reference_batch", "lr_batch"))
    assert call("study", "status", out).code == 0
    assert call("study", "run", spec, "--out", out).code == 0
    spec.write_text(SPEC.replace("FIELD", "lr_batch"))
    fails(call("study", "run", spec, "--out", out), "lr_batch is now called lr_reference_batch")
