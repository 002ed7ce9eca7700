"""`isocompute quickstart`: the whole way from runs to a law on a small made-up sweep, in seconds."""

from __future__ import annotations

from typing import Annotated

import typer

from isocompute.cli import options

__all__ = ["command"]


def command(
    out: Annotated[str, typer.Option(help="Folder for the runs, the law and the charts.")] = "quickstart",
    seed: options.Seed = 0,
) -> None:
    """Make a small sweep with a known answer, find its law, forecast a run, draw both."""
    from pathlib import Path

    import numpy as np

    from isocompute import api
    from isocompute.cli import fit as fit_command
    from isocompute.cli.forecast import _show
    from isocompute.law import curves_of, write_law
    from isocompute.report.charts import forecast_chart, law_chart
    from isocompute.report.style import save
    from isocompute.runs import RunSettings, RunWriter, load

    folder = Path(out)
    rng = np.random.default_rng(seed)
    problems = 32
    typer.echo(f"A made-up sweep: {problems} problems a batch, n = 8 … 1024, four million rollouts each, noise .006")
    for n in (8, 16, 32, 64, 128, 256, 512, 1024):
        settings = RunSettings(
            problems_per_batch=problems, rollouts_per_problem=n, seed=seed, engine="made-up", problems="made-up"
        )
        path = folder / "runs" / f"{problems}x{n}"
        (path / "points.jsonl").unlink(missing_ok=True)
        with RunWriter(path, settings) as writer:
            u = np.log2(n)
            # The ceiling rises with log2 n up to n = 256, and larger n learn later: so n* climbs and levels off.
            ceiling = 0.58 + 0.022 * (u - 3) - 0.0022 * (u - 3) ** 2
            midpoint = 6e4 * n**0.45
            for rollouts in np.unique(np.geomspace(8 * problems * n, 4e6, 40).round().astype(int)):
                value = 0.43 + (ceiling - 0.43) / (1 + (midpoint / rollouts) ** 1.3) + 0.006 * rng.standard_normal()
                writer.append(
                    {
                        "step": int(rollouts // (problems * n)),
                        "rollouts": int(rollouts),
                        "avg@4": round(float(value), 5),
                    }
                )
    runs = load(folder / "runs")
    law = api.fit(runs, seed=seed)
    fit_command.show(law)
    write_law(law, folder / "law.json")
    save(law_chart(law), folder / "law.html")
    save(law_chart(law), folder / "law.png")
    name = f"{problems}x256"
    typer.echo(f"\nForecast of {name} at the end, from its first half:")
    made = api.forecast(load(folder / "runs" / name), to="2x", fit_until=0.5)
    _show(made)
    (curve,), metric, unit = curves_of(load(folder / "runs" / name))
    chart = forecast_chart(curve.until(made.fitted_points), made, metric=metric, unit=unit, later=curve)
    save(chart, folder / "forecast.png")
    typer.echo(f"\nwrote {folder}/runs, law.json, law.html, law.png, forecast.png")
