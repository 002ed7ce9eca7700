"""The simulator end to end: determinism, resuming, learning, the bandit of appendix H, interference, regimes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from isocompute.core.errors import InputError
from isocompute.core.recipe import make_recipe
from isocompute.core.recorder import CHECKPOINT, FINISHED
from isocompute.data import RunWriter, load
from isocompute.problems.problem_set import ProblemSampler
from isocompute.sim import SimEngine
from isocompute.sim.policy import Policy, evaluate
from isocompute.sim.world import WorldSpec, log_softmax, make_world, softmax
from tests.sim.helpers import SMALL, Patient, StopAfter, cell, run


def test_same_cell_same_bytes(tmp_path: Path) -> None:
    run(tmp_path / "a", cell())
    run(tmp_path / "b", cell())
    run(tmp_path / "c", cell(seed=1))
    first, second, other = ((tmp_path / x / "points.jsonl").read_bytes() for x in "abc")
    assert first == second != other


def test_a_cell_that_fails_closes_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Patient):
        def advanced(self, rollouts: int) -> None:
            raise RuntimeError(f"the display is gone after {rollouts}")

    closed, close = [], RunWriter.close

    def closing(writer: RunWriter) -> None:
        closed.append(writer)
        close(writer)

    monkeypatch.setattr(RunWriter, "close", closing)
    with pytest.raises(RuntimeError, match="the display is gone"):
        run(tmp_path / "a", cell(), Broken())
    assert len(closed) == 1


@pytest.mark.parametrize("recipe", [{"name": "isocompute-easy"}, {"name": "cispo", "no_positive_resampling": 0.9}])
def test_resumed_cells_are_identical(tmp_path: Path, recipe: dict) -> None:
    spec = cell(steps=700, recipe=recipe, problems={"interference": 0.7})
    run(tmp_path / "whole", spec)
    for _ in range(20):
        run(tmp_path / "pieces", spec, StopAfter(1))
        if (tmp_path / "pieces" / FINISHED).exists():
            break
        assert (tmp_path / "pieces" / CHECKPOINT).exists()
    assert not (tmp_path / "pieces" / CHECKPOINT).exists()
    whole, pieces = ((tmp_path / x / "points.jsonl").read_bytes() for x in ("whole", "pieces"))
    assert whole == pieces


def test_a_cell_that_is_resumed_before_its_last_problem_retires_is_identical(tmp_path: Path) -> None:
    """Its last point is off the evaluation grid: no update before it was watched for `interference`."""
    spec = cell(bp=2, n=4, steps=5000, problems={"size": 150}, recipe={"name": "grpo", "no_positive_resampling": 0.5})
    whole = run(tmp_path / "whole", spec)
    last, before = whole[-1]["step"], whole[-2]["step"]
    assert whole[-1]["retired"] == 150 and last < 5000
    assert "interference" in whole[-2] and "interference" not in whole[-1]
    looks = before // 128 + 2  # the first look after the last evaluation of the grid
    assert before < 128 * (looks - 1) < last
    run(tmp_path / "pieces", spec, StopAfter(looks - 1))
    assert (tmp_path / "pieces" / CHECKPOINT).exists()
    assert run(tmp_path / "pieces", spec) == whole


def test_points_after_the_checkpoint_are_made_again(tmp_path: Path) -> None:
    spec = cell(steps=700)
    run(tmp_path / "whole", spec)
    run(tmp_path / "cut", spec, StopAfter(2))
    with (tmp_path / "cut" / "points.jsonl").open("ab") as file:
        file.write(b'{"step": 400, "rollouts": 1, "avg@4": 0.1}\n{"step": 4')
    run(tmp_path / "cut", spec)
    assert (tmp_path / "cut" / "points.jsonl").read_bytes() == (tmp_path / "whole" / "points.jsonl").read_bytes()


@pytest.mark.parametrize("name", ["isocompute-easy", "grpo", "dr-grpo", "dapo", "gspo", "cispo", "reinforce"])
def test_every_recipe_learns(tmp_path: Path, name: str) -> None:
    extra = {"updates_per_batch": 2} if name in ("dapo", "cispo") else {}
    points = run(tmp_path, cell(steps=400, recipe={"name": name, **extra}))
    assert points[-1]["exact/avg@4"] > points[0]["exact/avg@4"] + 0.08
    assert points[-1]["train/exact"] > points[0]["train/exact"] + 0.15
    assert [p["step"] for p in points] == sorted({p["step"] for p in points})
    assert points[-1]["rollouts"] == 400 * 16 * 8


def test_points_hold_what_the_docs_say(tmp_path: Path) -> None:
    control = Patient()
    points = run(tmp_path, cell(evaluation={"points": 6, "samples": 400, "k": [1, 4]}), control)
    last = points[-1]
    for k in (1, 4):
        for name in ("avg", "best", "worst"):
            assert last[f"{name}@{k}"] == pytest.approx(last[f"exact/{name}@{k}"], abs=0.02)
            assert f"ood/{name}@{k}" in last
    assert last["exact/worst@4"] <= last["exact/avg@4"] <= last["exact/best@4"]
    assert last["exact/best@1"] == pytest.approx(last["exact/avg@1"]) == pytest.approx(last["exact/worst@1"])
    assert sum(last["train/pass_rates"]) == 300
    assert points[0]["kl"] == 0.0 < last["kl"]
    assert 0 <= last["zero_variance"] <= 1 and last["entropy"] < points[0]["entropy"]
    assert control.rollouts == last["rollouts"]
    (loaded,) = load(tmp_path)
    assert loaded.settings.problems_per_batch == 16 and loaded.settings.recipe is not None
    assert "train/pass_rates" not in loaded.metrics


def test_rollouts_are_free(tmp_path: Path) -> None:
    """A batch with n = 100,000 is one draw a problem: it runs at all, and counts every rollout."""
    points = run(tmp_path, cell(n=100_000, steps=5))
    assert points[-1]["rollouts"] == 5 * 16 * 100_000


def test_one_problem_is_the_bandit_of_appendix_h(tmp_path: Path) -> None:
    """E[suboptimality at step t] = O(A / (n t) + B / t) for a tabular softmax policy with plain gradient steps.

    `interference = 0` makes every problem a bandit of its own, so 1,024 problems in one batch are 1,024 repetitions.
    """
    table = {
        "size": 1024,
        "validation": 1,
        "out_of_distribution": 0,
        "features": 1,
        "responses": 4,
        "interference": 0.0,
    }
    table |= {"sharpness": 1.0, "alignment": 1.0, "noise": 0.3}
    recipe = {"name": "reinforce", "optimizer": "sgd", "learning_rate": 1024.0, "lr_scaling": "constant"}
    recipe |= {"warmup_steps": 0, "grad_clip": None}
    inverse, left = [], []
    for n in (2, 4, 8, 16, 64):
        points = run(tmp_path / f"{n}", cell(bp=1024, n=n, steps=1000, problems=table, recipe=recipe))
        late = [p for p in points if p["step"] >= 200]
        scaled = [(1.0 - p["train/exact"]) * p["step"] for p in late]
        assert max(scaled) / min(scaled) < 1.08  # the 1/t law
        inverse.append(1 / n)
        left.append(scaled[-1])
    slope, constant = np.polyfit(inverse, left, 1)
    fitted = np.polyval([slope, constant], inverse)
    assert slope > 0.5 and constant > 0.5  # A / n and B, both there
    assert 1 - np.var(left - fitted) / np.var(left) > 0.95


def test_a_single_problem_trains(tmp_path: Path) -> None:
    table = {"size": 1, "interference": 0.0}
    points = run(tmp_path, cell(bp=1, n=16, steps=800, problems=table, recipe={"name": "reinforce"}))
    assert points[-1]["train/exact"] > 0.9


def test_interference_is_what_the_knob_says(tmp_path: Path) -> None:
    seen = []
    for share in (0.0, 0.3, 1.0):
        points = run(tmp_path / f"{share}", cell(steps=60, problems={"interference": share}))
        seen.append(np.median([p["interference"] for p in points if "interference" in p]))
    assert seen[0] == 0.0 < seen[1] < seen[2]


def test_no_transfer_without_shared_features(tmp_path: Path) -> None:
    points = run(tmp_path, cell(steps=400, problems={"interference": 0.0}))
    assert points[-1]["train/exact"] > points[0]["train/exact"] + 0.1
    assert points[-1]["exact/avg@4"] == points[0]["exact/avg@4"]


def test_larger_groups_leave_fewer_problems_behind(tmp_path: Path) -> None:
    """IsoCompute figure 11: at matched compute a larger n has fewer problems with pass rate about 0."""
    shares = []
    for n in (4, 64):
        points = run(
            tmp_path / f"{n}",
            cell(n=n, steps=40_960 // n, problems={"set": "hard", "features": 4}, recipe={"name": "isocompute-hard"}),
        )
        shares.append(points[-1]["train/zero_pass"])
    assert shares[1] < shares[0]


def test_two_regimes_on_purpose(tmp_path: Path) -> None:
    """Fresh data: the smaller n wins. A small set with answers the features cannot express: the larger n wins late."""

    def final(name: str, n: int, problems: dict) -> float:
        spec = cell(bp=32, n=n, steps=400_000 // (32 * n), problems={"features": 32, "validation": 600, **problems})
        return run(tmp_path / f"{name}{n}", spec)[-1]["exact/avg@4"]

    fresh = {"size": 20_000, "noise": 0.0}
    scarce = {"size": 150, "noise": 0.7}
    assert final("fresh", 8, fresh) > final("fresh", 256, fresh) + 0.02
    assert final("scarce", 256, scarce) > final("scarce", 8, scarce) + 0.01


def test_n_matters_to_a_policy_that_is_held_to_its_base(tmp_path: Path) -> None:
    """The paper's figure 6 in small: with a strong KL term small groups level off, without one they do not."""

    def final(n: int, kl: float) -> float:
        recipe, problems = {"name": "isocompute-hard", "kl_coef": kl}, {"set": "hard", "size": 4000, "validation": 600}
        spec = cell(bp=32, n=n, steps=300_000 // (32 * n), problems=problems, recipe=recipe)
        return run(tmp_path / f"{n}-{kl}", spec)[-1]["exact/avg@4"]

    held, free = (final(32, kl) - final(8, kl) for kl in (0.3, 0.0))
    assert held > 0.03 and free < -0.01


def test_decoupled_baseline_counts_all_rollouts(tmp_path: Path) -> None:
    points = run(tmp_path, cell(steps=50, recipe={"name": "grpo", "baseline_rollouts": 32}))
    assert points[-1]["rollouts"] == 50 * 16 * 32


def test_a_run_that_retires_every_problem_says_so(tmp_path: Path) -> None:
    spec = cell(steps=4000, problems={"size": 40}, recipe={"name": "grpo", "no_positive_resampling": 0.01})
    last = run(tmp_path, spec)[-1]
    summary = json.loads((tmp_path / FINISHED).read_text())
    assert last["retired"] == 40 and summary["rollouts"] == last["rollouts"] < spec.compute
    assert summary["ended"].startswith(f"every problem is retired after {last['step']} of 4000 updates")


def test_base_probabilities_too_small_for_a_number_have_a_divergence(tmp_path: Path) -> None:
    recipe = {"name": "grpo", "kl_coef": 0.1, "learning_rate": 20.0}
    points = run(tmp_path, cell(steps=20, problems={"sharpness": 150.0, "set": "all"}, recipe=recipe))
    assert points[0]["kl"] == 0.0 < points[-1]["kl"]


def test_a_divergence_that_is_no_number_is_not_zero() -> None:
    world = make_world(WorldSpec.of(SMALL))
    policy = Policy(world.spec, len(world.train), make_recipe({"name": "grpo"}))
    unknown_PK = np.full_like(world.train.base_PK, np.nan)
    point = evaluate(policy, world, unknown_PK, samples=4, ks=[4], rng=np.random.default_rng(0))
    assert np.isnan(point["kl"])


def test_log_softmax_is_the_logarithm_of_softmax() -> None:
    logits = np.random.default_rng(0).standard_normal((50, 8)) * 5
    np.testing.assert_allclose(log_softmax(logits), np.log(softmax(logits)), rtol=1e-12, atol=1e-13)


def test_the_engine_knows_what_its_points_will_hold(tmp_path: Path) -> None:
    spec = cell(steps=20, evaluation={"points": 3, "k": [1, 4]})
    known, last = SimEngine().measures(spec), run(tmp_path, spec)[-1]
    assert set(last) - {"step", "rollouts", "train/pass_rates"} <= known.metrics
    assert {name for name in known.metrics if not name.endswith("/error")} <= {*last, "interference"}
    assert known.units == {"rollouts", "steps"}


def test_solved_problems_are_retired_for_good(tmp_path: Path) -> None:
    spec = cell(steps=3000, problems={"size": 40, "noise": 0.0}, recipe={"name": "grpo", "no_positive_resampling": 0.6})
    control = Patient()
    points = run(tmp_path, spec, control)
    retired = [p["retired"] for p in points]
    assert retired == sorted(retired)
    assert retired[-1] > 0
    assert json.loads((tmp_path / FINISHED).read_text())["rollouts"] == control.rollouts
    # Batches shrink when few problems are left: what is counted is what was sampled.
    assert control.rollouts == points[-1]["rollouts"] <= points[-1]["step"] * 16 * 8


def test_a_run_with_nothing_left_ends_with_a_last_point(tmp_path: Path) -> None:
    spec = cell(
        bp=16,
        steps=5000,
        problems={"set": "very_easy", "size": 24, "noise": 0.0},
        recipe={"name": "grpo", "no_positive_resampling": 0.5},
    )
    points = run(tmp_path, spec)
    assert points[-1]["retired"] == 24
    assert points[-1]["step"] < 5000
    assert points[-1]["rollouts"] < points[-1]["step"] * 16 * 8
    assert (tmp_path / FINISHED).exists()


def test_sampler_visits_every_problem_once_an_epoch() -> None:
    rng = np.random.default_rng(0)
    sampler = ProblemSampler(10, None)
    drawn = np.concatenate([sampler.draw(4, rng) for _ in range(10)])
    assert (np.bincount(drawn, minlength=10) == 4).all()
    again = ProblemSampler(10, None)
    for _ in range(20):
        batch = again.draw(7, rng)
        assert len(np.unique(batch)) == 7


@pytest.mark.parametrize("percent", range(1, 101))
def test_a_pass_rate_of_so_many_in_a_hundred_is_reached_by_them(percent: int) -> None:
    """.55 × 100 is 55.00000000000001 to a computer: 55 of 100 reach .55 all the same, and 54 do not."""
    sampler = ProblemSampler(2, percent / 100)
    sampler.record(np.array([0, 1]), np.array([percent, percent - 1]), 100)
    assert sampler.active_P.tolist() == [False, True]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"bp": 400}, "more than the 300 problems"),
        ({"n": 1}, "at least 2"),
        ({"recipe": {"name": "grpo", "baseline_rollouts": 4}}, "recipe.baseline_rollouts"),
        ({"evaluation": {"k": [32]}}, "evaluation.k"),
        ({"evaluation": {"points": 1}}, "evaluation.points"),
        ({"problems": {"sharpness": float("inf")}}, "problems.sharpness: .*finite"),
        ({"recipe": {"name": "cispo", "pipeline_steps": 2}}, "recipe.pipeline_steps: 2 needs engine = 'lm'"),
        ({"recipe": {"name": "cispo", "off_policy_steps": 2}}, "recipe.off_policy_steps: 2 needs engine = 'lm'"),
        ({"recipe": {"name": "grpo", "length_control": "penalty"}}, "recipe.length_control: 'penalty' needs engine"),
        ({"recipe": {"name": "dapo", "zero_variance_filter": "refill"}}, "recipe.zero_variance_filter: 'refill' needs"),
    ],
)
def test_impossible_cells_are_refused(changes: dict, text: str) -> None:
    with pytest.raises(InputError, match=text):
        SimEngine().check(cell(**changes))
