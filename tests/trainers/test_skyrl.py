"""SkyRL: settings without which an exported script does not start."""

from __future__ import annotations

from isocompute.trainers import export_plan
from isocompute.trainers.config_files import parse_config as parse


def test_a_run_starts_without_an_account_at_wandb() -> None:
    """SkyRL logs to W&B unless told otherwise, and asserts WANDB_API_KEY before it does anything."""
    made = export_plan(trainer="skyrl", plan={"Bp": 32, "n": 8, "M": 100})
    assert parse(made.files[0].text).settings["trainer.logger"] == "console"
    (text,) = [note.message for note in made.notes if note.code == "logger"]
    assert "trainer.logger=wandb" in text and "WANDB_API_KEY" in text
