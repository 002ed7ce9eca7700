"""The chart of `isocompute fit --chart`: reward against compute, and n*(C) beside it."""

from __future__ import annotations

from typing import Any

import altair as alt

from isocompute.law.law import Law
from isocompute.report.charts.competition import of_tradeoff, reward_panel, shades_of
from isocompute.report.charts.optimum import optimum_panel

__all__ = ["law_chart"]

_BANDS = 12
"""More bands than these would hide each other."""


def law_chart(law: Law) -> Any:
    """The two figures of a study side by side, all settings competing."""
    contest = of_tradeoff("Reward against compute; thick grey: the frontier", law, law.joint)
    reward = reward_panel(contest, shades=shades_of(contest.fits), bands=len(contest.fits) <= _BANDS)
    if law.joint.rollouts is None:
        return reward
    tried = [float(fit.setting[1] or 0) for fit in law.joint.fits]
    best = optimum_panel(law.joint.rollouts, title="Best rollouts per problem", tried=tried, unit=law.unit)
    return alt.hconcat(reward, best, spacing=40).resolve_scale(color="independent", shape="independent")
