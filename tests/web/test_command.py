"""`isocompute web` as a command."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from isocompute.core.errors import InputError
from isocompute.web.results import Results
from isocompute.web.server import HOST, bind, warm
from tests.conftest import rising, write_points
from tests.sweep.tools import PATIENCE


@pytest.mark.parametrize("name", ["web", "ui"])
def test_it_says_where_it_is_serves_there_and_ends_with_ctrl_c(runs: Path, name: str) -> None:
    command = [sys.executable, "-m", "isocompute", name, str(runs), "--no-browser", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = json.loads(process.stdout.readline())
        assert said["url"].startswith(f"http://{HOST}:")
        with urllib.request.urlopen(said["url"] + "plan", timeout=PATIENCE) as page:
            assert b"<title>isocompute</title>" in page.read()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
    assert "Traceback" not in err


def test_a_port_in_use_is_said_and_another_is_taken_where_none_was_asked_for(runs: Path) -> None:
    first = bind(str(runs))
    port = first.socket.getsockname()[1]
    try:
        with pytest.raises(InputError, match=f"--port {port}: in use"):
            bind(str(runs), port=port)
        second = bind(str(runs))
        assert second.url != first.url
        second.socket.close()
    finally:
        first.socket.close()


def test_it_listens_to_this_machine_only(runs: Path) -> None:
    served = bind(str(runs), port=0)
    assert served.socket.getsockname()[0] == "127.0.0.1"
    served.socket.close()


@pytest.mark.parametrize(("make", "says"), [(True, "no study.toml, no run folder"), (False, "no such file or folder")])
def test_a_folder_that_is_no_study_is_refused(tmp_path: Path, make: bool, says: str) -> None:
    folder = tmp_path / "nothing"
    if make:
        folder.mkdir()
        (folder / "notes.md").write_text("nothing to see")
    with pytest.raises(InputError, match=says):
        bind(str(folder), port=0)


def test_a_study_that_cannot_be_fitted_is_served_all_the_same(tmp_path: Path) -> None:
    write_points(tmp_path / "short", rising()[:2], problems_per_batch=32, rollouts_per_problem=8)
    served = bind(str(tmp_path), port=0)
    with served.socket:
        assert isinstance(served.socket, socket.socket)
        warm(Results(served.source))  # says nothing and raises nothing: the pages say what is missing
