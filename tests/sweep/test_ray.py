"""The Ray runner on a cluster of two nodes in this machine, one of which is killed in the middle."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from isocompute import sweep as study
from isocompute.core.errors import InputError
from tests.sweep.tools import ROOT, files_in, finish, points, start, until, write_spec

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    os.environ["PYTHONPATH"] = str(ROOT)  # the fake engine is found by the nodes' workers
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    # A dead node is noticed within two seconds instead of half a minute.
    health = {
        "health_check_initial_delay_ms": 500,
        "health_check_period_ms": 500,
        "health_check_timeout_ms": 1000,
        "health_check_failure_threshold": 2,
    }
    head = {"num_cpus": 1, "object_store_memory": 100_000_000, "_system_config": health}
    made = Cluster(initialize_head=True, head_node_args=head)
    ray.init(address=made.address, log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()


def test_a_node_dies_in_the_middle(cluster: Any, tmp_path: Path):
    changes = {"budget": {"rollouts": 200}, "engine_options": {"every": 4, "pause": 0.03}}
    spec = write_spec(tmp_path / "study.toml", **changes)
    fast = write_spec(tmp_path / "fast.toml", budget={"rollouts": 200})
    study.run(spec=fast, out=tmp_path / "whole", workers=2)
    doomed = cluster.add_node(num_cpus=2, object_store_memory=100_000_000)
    cluster.wait_for_nodes()
    out = tmp_path / "out"
    found: list[study.Result] = []
    thread = threading.Thread(target=lambda: found.append(study.run(spec=spec, out=out, on="ray")))
    thread.start()
    # Three cells at once fill both nodes, so at least two of them are on the one that dies.
    until(lambda: sum(len(data.splitlines()) >= 6 for data in points(out).values()) == 3)
    cluster.remove_node(doomed, allow_graceful=False)
    thread.join(120)
    assert not thread.is_alive()
    assert (found[0].finished, found[0].failed) == (4, {})
    assert points(out) == points(tmp_path / "whole")
    assert files_in(out) == files_in(tmp_path / "whole")


def test_the_driver_is_stopped_and_killed_and_comes_back(cluster: Any, tmp_path: Path):
    options = {"every": 5, "pause": 0.03, "crash": ["2x4-s0"]}
    spec = write_spec(tmp_path / "study.toml", seeds=[0], budget={"rollouts": 300}, engine_options=options)
    whole, out = tmp_path / "whole", tmp_path / "out"
    study.run(spec=spec, out=whole, workers=2)
    for number in (signal.SIGINT, signal.SIGKILL):
        before = points(out) if out.exists() else {}
        process = start("run", spec, "--out", out, "--on", f"ray={cluster.address}")
        until(lambda before=before: out.exists() and points(out) != before)
        process.send_signal(number)
        code, _, err = finish(process)
        assert (code, "Traceback" in err) == (130 if number == signal.SIGINT else -9, False), err
        assert {s.state for s in study.status(folder=out)} & {"stopped", "waiting", "running"}
    result = study.run(spec=spec, out=out, on="ray")
    assert (result.finished, result.failed) == (1, {"2x4-s0": "ZeroDivisionError: told to crash"})
    assert points(out) == points(whole)
    assert files_in(out) == files_in(whole)
    address = f"file://{tmp_path}/remote"
    assert study.run(spec=write_spec(spec, seeds=[0]), out=address, on="ray").finished == 2
    write_spec(spec, resources={"gpus": 8})
    with pytest.raises(InputError, match="a cell asks for 8 GPUs; no node of the cluster has more than 0"):
        study.run(spec=spec, out=tmp_path / "large", on="ray")
