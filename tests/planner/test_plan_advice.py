"""A plan's advice on data and recipe: difficulty, zero variance, learning rates, warnings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import isocompute
from isocompute import InputError
from isocompute.core.allocation import Allocation
from isocompute.core.metrics import zero_variance_share
from isocompute.planner.decide import plan_to_json
from isocompute.planner.recipe import advise_recipe
from isocompute.planner.request import parse_anchor
from isocompute.planner.warnings import classify, run_warnings


@given(st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1)), min_size=1, max_size=20), st.integers(2, 64))
def test_zero_variance_is_the_binomials_two_ends(rates: list[float], n: int) -> None:
    rates_P = np.array(rates)
    expected = np.mean(stats.binom.pmf(0, n, rates_P) + stats.binom.pmf(n, n, rates_P))
    assert zero_variance_share(rates_P, n) == pytest.approx(expected, abs=1e-9)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=50))
def test_bands_cover_every_problem_once(rates: list[float]) -> None:
    mix = classify(np.array(rates))
    assert sum(mix.shares[band] for band in ("hard", "between", "easy", "very_easy")) == pytest.approx(1.0)
    assert mix.shares["unsolved"] <= mix.shares["hard"]


def test_recipes_follow_difficulty_batch_and_updates() -> None:
    easy = advise_recipe(allocation=Allocation(32, 32, 500), difficulty="easy")
    hard = advise_recipe(allocation=Allocation(32, 32, 500), difficulty="hard")
    assert easy.recipe.kl_coef > 0 == hard.recipe.kl_coef
    assert easy.learning_rate == pytest.approx(1e-6)
    short = advise_recipe(allocation=Allocation(32, 32, 12), difficulty="easy", anchor=parse_anchor("2e-6@256"))
    assert short.recipe.warmup_steps == 3
    assert short.learning_rate == pytest.approx(4e-6)
    for line in (*easy.lines, *hard.lines):
        assert line.reason and "2603.12151" in line.source


def test_scalerls_recipe_cites_where_the_paper_has_it() -> None:
    """The law's source is its table of fits, which holds no recipe; an anchor is the user's, its rule IsoCompute's."""
    plan = isocompute.plan(budget="8000h", law="scalerl/8b", replicates=60)
    lines = {line.setting: line for line in plan.recipe.lines}
    assert {"learning_rate", "warmup_steps", "kl_coef, entropy_coef", "temperature, top_p", "tis_cap"} <= set(lines)
    assert not [line for line in lines.values() if "table of fits" in line.source]
    cited = {name: line for name, line in lines.items() if name != "temperature, top_p"}
    assert all("2510.13786, " in line.source for line in cited.values())
    assert "our choice" in lines["temperature, top_p"].reason, "the paper's is in none of our sources"
    assert "appendix A.3" in lines["learning_rate"].source and lines["learning_rate"].value == "5e-07"
    assert (lines["kl_coef, entropy_coef"].value, lines["tis_cap"].value) == ("0, 0", "off")
    given = isocompute.plan(budget="8000h", law="scalerl/8b", replicates=60, lr_reference="1e-6@1024").recipe.lines[0]
    assert "your anchor" in given.reason and "2603.12151" in given.source


@pytest.mark.parametrize("text", ["1e-6", "@1024", "0@8", "1e-6@0", "1e-6@8.5", "a@b", "nan@8"])
def test_wrong_anchors(text: str) -> None:
    with pytest.raises(InputError, match="1e-6@1024"):
        parse_anchor(text)


def test_a_learning_rate_that_is_no_number_is_refused() -> None:
    with pytest.raises(InputError, match=r"--lr-reference 1e\+308@1: the learning rate at a batch of .* is not finite"):
        isocompute.plan(budget="2e6", law="isocompute/bp32-easy", replicates=100, lr_reference="1e308@1")


def test_a_first_guess_says_that_it_is_one_and_a_foreign_base_is_named() -> None:
    """The base of figure 6's easy set is .43; a set at .9 is another."""
    easy = isocompute.plan(budget=2e6, law="isocompute/bp32-easy", pass_rates=[0.42, 0.44], replicates=60)
    other = isocompute.plan(budget=2e6, law="isocompute/bp32-easy", pass_rates=[0.9, 0.9], replicates=60)
    assert "base_differs" not in {w.code for w in easy.warnings}
    assert "base_differs" in {w.code for w in other.warnings}
    result = plan_to_json(other)["mix"]["zero_variance"]
    assert result == pytest.approx(0.9**256 + 0.1**256)


def test_pass_rates_are_the_set_that_epochs_are_counted_over() -> None:
    """32 problems a batch: 244 updates over 40 problems are 195 passes."""
    plan = isocompute.plan(budget=2e6, law="isocompute/bp32-easy", pass_rates=[0.4] * 40, replicates=60)
    (message,) = (w.message for w in plan.warnings if w.code == "many_epochs")
    assert message.startswith(f"{32 * plan.allocation.update_steps / 40:,.0f} passes over 40 problems")


@pytest.mark.parametrize(
    ("problems", "allocation", "code"),
    [
        (400, (32, 64, 48), ""),  # 246 of each
        (400, (32, 64, 60), "overfitting"),  # 5 passes, 307 of each
        (400, (32, 256, 244), "overfitting"),  # 20 passes, 5,000 of each
        (400, (32, 512, 12), "under_one_epoch"),  # each is seen once at most, so none is learnt by heart
        (1_000, (32, 8, 3_000), "overfitting"),
        (6_000, (32, 256, 488), ""),  # the paper's 4M
        (6_000, (32, 8, 15_600), ""),  # the same with n = 8: 83 passes
        (6_000, (32, 256, 1_000), "overfitting"),  # 8M, further than anybody looked
        (6_000, (32, 4, 20_000), "many_epochs"),  # 107 passes
        (100_000, (32, 32, 15_625), ""),  # 16M rollouts that did not overfit
    ],
)
def test_overfitting_goes_by_how_few_problems_are_seen_how_often(
    problems: int, allocation: tuple[int, int, int], code: str
) -> None:
    warned = run_warnings(Allocation(*allocation), problems=problems, warmup_steps=1)
    found = [w for w in warned if w.code in ("overfitting", "many_epochs", "under_one_epoch")]
    assert [w.code for w in found] == ([code] if code else [])


def test_passes_over_the_set_are_told_where_its_size_is_known() -> None:
    known = isocompute.plan(budget=2e6, law="isocompute/bp32-easy", problems=6000, replicates=60)
    result = plan_to_json(known)
    assert result["epochs"] == pytest.approx(32 * 244 / 6000)
    for other in result["alternatives"]:
        assert other["epochs"] == pytest.approx(32 * other["update_steps"] / 6000)
    assert not {"overfitting", "many_epochs", "under_one_epoch"} & {w.code for w in known.warnings}
    unknown = plan_to_json(isocompute.plan(budget=2e6, law="isocompute/bp32-easy", replicates=60))
    assert [unknown["epochs"], *(other["epochs"] for other in unknown["alternatives"])] == [None] * 5


def test_n_that_the_law_does_not_know_are_named() -> None:
    def messages(*wanted: int) -> list[str]:
        plan = isocompute.plan(
            budget="2e6", law="isocompute/bp32-easy", replicates=100, rollouts_per_problem=list(wanted)
        )
        return [w.message for w in plan.warnings if w.code == "n_not_in_law"]

    (result,) = messages(16, 32)
    assert "n = 16 of --n was left out" in result and "it has n = 8, 32, 128, 256, 512" in result
    assert messages(8, 32) == []


def test_a_difficulty_that_the_pass_rates_contradict_is_told() -> None:
    def codes(difficulty: str | None) -> list[str]:
        plan = isocompute.plan(
            budget="2e6",
            law="isocompute/bp32-easy",
            replicates=100,
            difficulty=difficulty,
            pass_rates=[0.0] * 9 + [0.5],
        )
        return [w.code for w in plan.warnings]

    assert "difficulty_contradicts" in codes("easy")
    assert "difficulty_contradicts" not in codes("hard") + codes(None)


def test_zeros_of_few_samples_are_told_from_problems_that_nobody_solves() -> None:
    """Two in three problems with no success in 16 samples and one with one: some 2% of the samples are right."""
    seen = isocompute.plan(
        budget=2e6, law="isocompute/bp32-hard", pass_rates=[0.0, 0.0, 0.0625] * 100, rollouts_per_problem=8
    )
    (message,) = (w.message for w in seen.warnings if w.code == "zero_variance")
    shares = seen.zero_variance
    assert shares is not None
    assert shares[0] == pytest.approx(2 / 3 + 0.9375**8 / 3, abs=0.001) and shares[1] < shares[0]
    assert f"{shares[0]:.0%} of groups" in message and f"{shares[1]:.0%} by those behind them: 16 samples" in message
    assert message.endswith("n = 32 would bring it under a half"), "by the measured rates no n would"
    result = plan_to_json(seen)["mix"]
    assert (result["zero_variance"], result["zero_variance_behind"]) == shares


def test_exact_rates_are_taken_as_they_are() -> None:
    rates = [0.001 + 0.00001 * i for i in range(100)]
    exact = isocompute.plan(budget=2e6, law="isocompute/bp32-hard", pass_rates=rates, rollouts_per_problem=8)
    assert exact.zero_variance is not None and exact.zero_variance[0] == exact.zero_variance[1]
    (message,) = (w.message for w in exact.warnings if w.code == "zero_variance")
    assert "behind" not in message and message.endswith("would bring it under a half")
