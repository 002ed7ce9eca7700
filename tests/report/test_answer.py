"""How sure an answer is: what one seed cannot tell apart, and runs that are not to be held against each other."""

from __future__ import annotations

import pytest

from isocompute.data import Run, RunSettings
from isocompute.law.comparison import compare
from isocompute.report.answer import Answer, answer_card, answers
from isocompute.report.evidence import Evidence
from tests.report.made_up import evidence, missing, run, study, truth


def pair(lead: float, *, seeds: int = 1) -> Evidence:
    """n = 8 and n = 32 whose curves differ by a constant lead."""

    def value(compute: float, _bp: int, n: int) -> float:
        return truth(compute, 32, 8) + (lead if n == 32 else 0.0)

    runs = []
    for n in (8, 32):
        for seed in range(seeds):
            one = run(32, n, name=f"{n}-{seed}", metrics={"avg@4": value})
            runs.append(Run(one.name, one.settings.model_copy(update={"seed": seed}), one.points))
    return evidence(runs)


def only(known: Evidence) -> Answer:
    (answer,) = answers(known)
    return answer


def test_one_seed_tells_no_more_apart_than_compare() -> None:
    known = pair(0.006)
    small, large = (known.curves[f"{n}-0"] for n in (8, 32))
    assert compare([large], [small], replicates=60).higher == "same"
    answer = only(known)
    assert answer.plan is not None
    assert 0.5 < (answer.plan.chosen.ranked.probability_best or 0.0) < 0.95
    assert answer.headline.startswith("Use 32 problems × 32 rollouts")  # nothing that ties with it is cheaper
    assert "2 of 2 allocations tie within" in answer.expectation


def test_a_lead_beyond_the_error_stands_out() -> None:
    answer = only(pair(0.05))
    assert answer.headline.startswith("Use 32 problems × 32 rollouts")
    assert "32 × 32 leads by .0" in answer.expectation and "tie" not in answer.expectation


def test_runs_without_a_curve_are_not_counted() -> None:
    runs = study()
    answer = only(evidence([*runs, Run("short", runs[0].settings, runs[0].points.head(2))]))
    assert (answer.runs, answer.left_out, answer.to_json()["runs"]) == (3, 1, 3)
    assert "3 of 4 runs" in answer_card(answer)


def unnamed(scale: float, **settings: str) -> Run:
    one = run(32, 8, metrics={"avg@4": lambda c, _bp, n: scale * truth(c, 32, n)}, noise=0.002 * scale)
    return Run(f"run-{scale:g}", RunSettings(**settings), one.points)


@pytest.mark.parametrize("scale", [100.0, 20.0])
def test_runs_on_different_scales_that_do_not_say_what_they_are(scale: float) -> None:
    known = evidence([unnamed(1.0), unnamed(scale)])
    assert "runs that name their problem set and model" in missing("recipes", known)
    answer = only(known)
    assert (answer.best, answer.outlook) == (None, None)
    assert "Best so far" not in answer.headline
    assert "different scales" in (answer.why_not or "")
    assert "cannot be compared" in answer.expectation


def test_runs_on_one_scale_or_of_one_set_are_compared() -> None:
    assert only(evidence([unnamed(1.0), unnamed(0.5)])).best == "run-1"
    said = only(evidence([unnamed(1.0, model="m"), unnamed(100.0, model="m")]))
    assert said.best == "run-100"
