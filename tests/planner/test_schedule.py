"""Schedules along the frontier, and runs whose n grows: exact compute, the learning rate, resuming."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

import isocompute.sweep
from isocompute.core.allocation import Allocation
from isocompute.core.errors import InputError
from isocompute.data import load
from isocompute.planner.api import plan, stages
from isocompute.planner.candidates import Constraints
from isocompute.planner.published import published
from isocompute.planner.schedule import schedule
from isocompute.sim import engine as sim
from isocompute.sim.growth import growth
from isocompute.sweep.base import FINISHED
from tests.planner.made_up import write_timed
from tests.sim.helpers import StopAfter, cell, run

EASY, HARD, JOINT = (published(f"isocompute/{name}") for name in ("bp32-easy", "bp32-hard", "joint-easy"))


def test_changes_are_where_the_paper_draws_them() -> None:
    """Figure 6 at Bp = 32: easy 8→32 at .25–.27M, 32→128 at .81–.85M, 128→256 at 1.27M, 256→512 at 2.69M; hard 8→128 at
    .76M.
    """
    easy = schedule(law=EASY, budget=4e6, problems_per_batch=32)
    assert [s.rollouts_per_problem for s in easy.stages] == [8, 32, 128, 256, 512]
    assert [c for c, _ in easy.changes] == pytest.approx([0.26e6, 0.83e6, 1.27e6, 2.69e6], rel=0.05)
    hard = schedule(law=HARD, budget=4e6, problems_per_batch=32)
    assert [n for _, n in hard.changes] == [128]
    assert hard.changes[0][0] == pytest.approx(0.76e6, rel=0.05)
    assert len(schedule(law=EASY, budget=2e5, problems_per_batch=32).stages) == 1


# Figure 6 refitted as ceiling - depth · exp(-C / scale), C in millions.
CURVES = {
    8: (0.5827, 0.1500, 0.2230),
    32: (0.5953, 0.1892, 0.2220),
    128: (0.6184, 0.1666, 0.4535),
    256: (0.6542, 0.1807, 0.9254),
    512: (0.7094, 0.2852, 1.8200),
}


def test_changes_are_where_the_curves_cross() -> None:
    """Roots of figure 6's curves, to the members' 1% and the update that a change waits for."""
    found = schedule(law=EASY, budget=4e6, problems_per_batch=32)
    ns = [8, 32, 128, 256, 512]
    for (small, large), (change, n), low, high in zip(
        pairwise(ns), found.changes, (0.1, 0.5, 0.9, 2.0), (0.6, 1.2, 1.8, 3.5), strict=True
    ):

        def lead(c: float, small: int = small, large: int = large) -> float:
            values = [CURVES[k][0] - CURVES[k][1] * np.exp(-c / CURVES[k][2]) for k in (large, small)]
            return float(values[0] - values[1])

        root = 1e6 * optimize.brentq(lead, low, high)
        assert n == large
        assert change == pytest.approx(root, rel=0.01)


def test_a_plan_s_schedule_keeps_to_its_constraints() -> None:
    def made(**held: Any) -> Any:
        return stages(plan(budget=4e6, law="isocompute/bp32-easy", replicates=200, **held))

    bounded = made(max_batch=4096)
    assert [s.rollouts_per_problem for s in bounded.stages] == [8, 32, 128]
    assert all(32 * s.rollouts_per_problem % 2048 == 0 for s in made(gpus=2048).stages)
    assert [s.rollouts_per_problem for s in made(rollouts_per_problem=[8, 256]).stages] == [8, 256]
    table = json.loads(json.dumps(bounded.to_json()))
    assert table["changes"] == [[s["rollouts_from"], s["rollouts_per_problem"]] for s in table["stages"][1:]]
    rates = [s["learning_rate"] for s in table["stages"]]
    assert rates == pytest.approx([1e-6 * (b / 1024) ** 0.5 for b in (256, 1024, 4096)])  # √B from 1e-6 at 1,024
    for law, held in (("joint-easy", {"batch_size": 8192}), ("batch8192-easy", {})):
        with pytest.raises(InputError, match="n cannot grow while Bp and B are held"):
            stages(plan(budget=2e6, law=f"isocompute/{law}", replicates=20, **held))
    between = stages(plan(budget=2e6, law="isocompute/joint-easy", replicates=100, problems_per_batch=48))
    assert between.problems_per_batch == 48 and len(between.stages) > 2


def test_a_schedule_makes_the_least_updates_that_are_asked_for() -> None:
    """Along the frontier 4M rollouts are 1,888 updates; the largest n go until those left make enough."""

    def made(least: int) -> Any:
        return stages(plan(budget=4e6, law="isocompute/bp32-easy", replicates=100, min_updates=least))

    free = made(1)
    assert made(free.update_steps).stages == free.stages  # the stages together, not each of them
    last = [free.stages[-1].rollouts_per_problem]
    for least in (free.update_steps + 1, 2500, 7000, 15_625):
        found = made(least)
        assert found.update_steps >= least
        assert found.compute <= 4e6 < found.compute + 32 * found.stages[0].rollouts_per_problem
        last.append(found.stages[-1].rollouts_per_problem)
    assert last == [512, 256, 32, 8, 8]


def test_a_schedule_of_hours_makes_the_least_updates(tmp_path: Path) -> None:
    """Where an update of n = 8 takes as long as one of n = 32, the least updates that the plan makes can be made."""
    write_timed(tmp_path, {8: 2.0, 32: 6.0, 128: 16.0, 512: 20.0})
    options: dict[str, Any] = {"law": "isocompute/bp32-easy", "timed_runs": tmp_path, "replicates": 60}
    most = plan(budget="200h", rollouts_per_problem=[8], **options).allocation.update_steps
    found = stages(plan(budget="200h", min_updates=most, **options))
    assert found.update_steps == most and [s.rollouts_per_problem for s in found.stages] == [8]


@settings(max_examples=40)
@given(
    law=st.sampled_from([EASY, HARD, JOINT]),
    budget=st.floats(3e3, 1e7),
    bp=st.sampled_from([16, 32, 48, 64]),
    allowed=st.sets(st.sampled_from([8, 16, 32, 64, 128, 256, 512]), min_size=1),
)
def test_stages_are_whole_and_spend_the_budget(law: Any, budget: float, bp: int, allowed: set[int]) -> None:
    known = {n for _, n in law.model.settings()}
    allowed = {n for n in allowed if n in known} or {8}
    if law is JOINT:
        bp = max(bp, 32)
    if budget < bp * min(allowed):
        return
    made = schedule(
        law=law, budget=budget, problems_per_batch=bp, constraints=Constraints(rollouts_per_problem=tuple(allowed))
    )
    ns = [s.rollouts_per_problem for s in made.stages]
    assert ns == sorted(set(ns)) and set(ns) <= allowed
    whole = int(budget * (1 + 1e-12))  # a hair short of a rollout is one, as in a plan
    assert made.compute <= whole < made.compute + bp * ns[0]
    assert all(s.update_steps >= 1 for s in made.stages)
    # The simulator makes of the recipe's field exactly these stages.
    ran = growth(Allocation(bp, ns[0], whole // (bp * ns[0])), [(c, n) for c, n in made.changes])
    assert ran.rollouts_per_problem_S == tuple(ns)
    assert ran.before_S == tuple(s.rollouts_from for s in made.stages)
    assert (ran.update_steps, ran.compute) == (made.update_steps, made.compute)
    assert json.loads(json.dumps(made.to_json()))["compute"] == made.compute


def test_bad_input() -> None:
    with pytest.raises(InputError, match="less than one batch of 32 × 8"):
        schedule(law=EASY, budget=100, problems_per_batch=32)
    with pytest.raises(InputError, match=r"problems_per_batch = 7: the law has Bp = 32, 64"):
        schedule(law=JOINT, budget=1e6, problems_per_batch=7)
    with pytest.raises(InputError, match="answers for 4 to 256"):
        schedule(law=EASY, budget=1e6, problems_per_batch=512)
    with pytest.raises(InputError, match="no n of the law keeps to --max-batch 128"):
        schedule(law=EASY, budget=1e6, problems_per_batch=32, constraints=Constraints(max_batch=128))
    with pytest.raises(InputError, match=r"--min-updates 4000: the budget pays for 3,906 .* say --min-updates 3906"):
        schedule(law=EASY, budget=1e6, problems_per_batch=32, constraints=Constraints(min_updates=4000))
    engine = sim.SimEngine()
    wrong: list[tuple[Any, str]] = [
        ([[2000, 16], [1000, 32]], "rising order"),
        ([[0, 16]], "greater than 0"),
        ([[1000, 1]], "no group to compare with"),
        ([[38_000, 64]], "n = 64 begins at 38,016 rollouts and has no room for an update of 1,024 up to 38,400"),
        ([[90_000, 64]], "no room"),
    ]
    for changes, message in wrong:
        with pytest.raises(InputError, match=message):
            engine.check(cell(recipe={"name": "grpo", "schedule": changes}))
    with pytest.raises(InputError, match="n cannot change under baseline_rollouts"):
        engine.check(cell(recipe={"name": "grpo", "schedule": [[9000, 16]], "baseline_rollouts": 32}))


GROWING = {"name": "grpo", "schedule": [[10_000, 32], [60_000, 128]]}


def test_compute_is_counted_exactly(tmp_path: Path) -> None:
    spec = cell(n=8, steps=1200, recipe=GROWING)
    points = run(tmp_path, spec)
    stages = growth(spec, [(10_000, 32), (60_000, 128)])
    # 79 updates of 128 pass 10,000; 98 of 512 pass 60,000; 45 of 2,048 fit what is left of 153,600.
    assert (stages.first_S, stages.before_S) == ((0, 79, 177), (0, 10_112, 60_288))
    assert (points[-1]["step"], points[-1]["rollouts"]) == (stages.update_steps, stages.compute) == (222, 152_448)
    assert [p["rollouts"] for p in points if p["step"] <= 79] == [128 * p["step"] for p in points if p["step"] <= 79]
    assert points[-1]["rollouts"] <= spec.compute < points[-1]["rollouts"] + 16 * 128
    (loaded,) = load(tmp_path)
    assert loaded.settings.rollouts_per_problem is None and loaded.settings.update_steps == 222
    assert loaded.settings.recipe is not None and loaded.settings.recipe["schedule"] == [[10_000, 32], [60_000, 128]]


def test_a_change_to_the_same_n_changes_nothing(tmp_path: Path) -> None:
    run(tmp_path / "fixed", cell(n=8, steps=640))
    run(tmp_path / "changed", cell(n=8, steps=640, recipe={"name": "grpo", "schedule": [[20_480, 8]]}))
    fixed, changed = ((tmp_path / x / "points.jsonl").read_bytes() for x in ("fixed", "changed"))
    assert fixed == changed


def test_the_learning_rate_follows_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def spy(recipe: Any, *, batch_size: int, step: int) -> float:
        seen.append(batch_size)
        return plain(recipe, batch_size=batch_size, step=step)

    plain = sim.learning_rate
    monkeypatch.setattr(sim, "learning_rate", spy)
    run(tmp_path, cell(n=8, steps=1200, recipe=GROWING))
    assert seen == [16 * 8] * 79 + [16 * 32] * 98 + [16 * 128] * 45


def test_resumed_runs_are_identical(tmp_path: Path) -> None:
    spec = cell(n=4, steps=4800, recipe={"name": "isocompute-easy", "schedule": [[20_000, 8], [100_000, 32]]})
    run(tmp_path / "whole", spec)
    for _ in range(20):
        run(tmp_path / "pieces", spec, StopAfter(1))
        if (tmp_path / "pieces" / FINISHED).exists():
            break
    whole, pieces = ((tmp_path / x / "points.jsonl").read_bytes() for x in ("whole", "pieces"))
    assert whole == pieces


def test_a_study_runs_a_schedule(tmp_path: Path) -> None:
    spec = tmp_path / "study.toml"
    spec.write_text(
        'engine = "sim"\nseeds = [0, 1]\n'
        "problems = {size = 200, features = 8, responses = 8, validation = 50, out_of_distribution = 0}\n"
        'recipe = {name = "grpo", schedule = [[5e3, 16], [2e4, 64]]}\n'
        "grid = {problems_per_batch = [8], rollouts_per_problem = [4]}\n"
        "budget = {rollouts = 5e4}\nevaluation = {points = 8}\n"
    )
    result = isocompute.sweep.run(spec=spec, out=tmp_path / "out", workers=1)
    assert result.finished == 2 and not result.failed
    for made in load(tmp_path / "out"):
        last = made.points["rollouts"][-1]
        assert last <= 50_000 < last + 8 * 64
        assert made.points["step"][-1] == made.settings.update_steps


def test_stages_are_paid_at_their_own_price(tmp_path: Path) -> None:
    """8 rollouts a problem are made ten times slower than 512: their stages take their share of the hours."""
    rates = {8: 2.0, 32: 6.0, 128: 16.0, 512: 20.0}
    write_timed(tmp_path, rates)
    options: dict[str, Any] = {"law": "isocompute/bp32-easy", "timed_runs": tmp_path, "replicates": 100}
    for budget, price in (("200h", None), ("$800", 2.0)):
        made = plan(budget=budget, price_per_gpu_hour=price, **options)
        found = stages(made)
        hours = {n: made.prices.rates(32, n).gpu_hours_per_rollout or 0.0 for n in (8, 32, 128, 256, 512)}
        spent = sum(s.update_steps * 32 * s.rollouts_per_problem * hours[s.rollouts_per_problem] for s in found.stages)
        first = 32 * found.stages[0].rollouts_per_problem * hours[found.stages[0].rollouts_per_problem]
        most = made.budget.amount / (price or 1.0)
        assert most - first < spent <= most and len(found.stages) > 2


def test_changes_of_a_law_in_tokens_come_sooner_where_responses_are_longer() -> None:
    """The same law, twice the tokens a rollout: n grows at half the rollouts."""
    made = [plan(budget=4e6, law="isocompute/bp32-easy-tokens", response_tokens=t, replicates=60) for t in (500, 1000)]
    first, second = (stages(one).stages for one in made)
    assert len(first) > 1
    assert [s.rollouts_per_problem for s in second][: len(first)] == [s.rollouts_per_problem for s in first]
    assert second[0].update_steps == pytest.approx(first[0].update_steps / 2, rel=0.05)
