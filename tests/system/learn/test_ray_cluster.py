# SPDX-License-Identifier: MIT
"""Training and tuning on a Ray cluster of two worker nodes: results, and what dies meanwhile."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hmd.base.errors import ConfigError, UnreachableError
from hmd.emulate.recordings.misses import MissStream
from tests.unit.learn.conftest import CONFIG
from tests.unit.simulate.conftest import HOT_PAGES, PAGES, hot_set, stream_of

ray = pytest.importorskip("ray", reason="no Ray")

STORE_BYTES = 128 << 20
MISSES = 60_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head without CPUs, and two workers of one each."""
    from ray.cluster_utils import Cluster

    made = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 0, "object_store_memory": STORE_BYTES},
    )
    for _ in range(2):
        made.add_node(num_cpus=1, object_store_memory=STORE_BYTES)
    yield made
    made.shutdown()


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two recorded programs, and a configuration to train on them."""
    folder = tmp_path_factory.mktemp("programs")
    for name, first in (("late", PAGES - HOT_PAGES), ("middle", PAGES // 2)):
        stream_of(hot_set(MISSES, first, first)).write(folder / f"{name}.misses")
    (folder / "train.yaml").write_text(CONFIG)
    return folder


def hmd(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hmd", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def dies_once(stream: MissStream, mark: str) -> int:
    """Kill the worker at the first attempt."""
    if not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return len(stream)


def waits_once(stream: MissStream, mark: str) -> int:
    """Write the id of the node at the first attempt, and do not return."""
    if not Path(mark).exists():
        Path(mark + ".partial").write_text(ray.get_runtime_context().get_node_id())
        Path(mark + ".partial").rename(mark)
        time.sleep(3600)
    return len(stream)


def refuses(stream: MissStream) -> int:
    raise ConfigError(f"{len(stream)} misses are not usable")


def test_training_on_cluster_equals_that_of_local_workers(cluster: Any, programs: Path) -> None:
    found = []
    for name, place in (("here", ["--workers", "2"]), ("there", ["--ray", cluster.address])):
        output = programs / f"{name}.npz"
        run = hmd("train", "--config", programs / "train.yaml", "-o", output, *place)
        assert run.returncode == 0, run.stderr
        found.append(output.read_bytes())
    assert found[0] == found[1]


def test_tuning_on_cluster_equals_that_of_local_jobs(cluster: Any, programs: Path) -> None:
    found = []
    traces = [programs / "late.misses", programs / "middle.misses"]
    for place in (["--workers", "2"], ["--ray", cluster.address]):
        run = hmd("tune", *traces, "--trials", "3", "--json", *place)
        assert run.returncode == 0, run.stderr
        found.append(json.loads(run.stdout))
        assert found[-1].pop("made_by")["settings"]["trials"] == 3
    assert found[0] == found[1]


def test_units_whose_worker_or_node_dies_run_again(
    cluster: Any, programs: Path, tmp_path: Path
) -> None:
    from hmd.simulate.executors import RayCluster

    stream, mark = MissStream.read(programs / "late.misses"), tmp_path / "node"
    with RayCluster(cluster.address) as executor, ThreadPoolExecutor(1) as pool:
        assert executor.run(dies_once, stream, str(tmp_path / "worker")) == len(stream)
        waiting = pool.submit(executor.run, waits_once, stream, str(mark))
        while not mark.exists():
            assert not waiting.done()
            time.sleep(0.05)
        [node] = [each for each in cluster.worker_nodes if each.node_id == mark.read_text()]
        cluster.remove_node(node, allow_graceful=False)
        assert waiting.result(300) == len(stream)
        with pytest.raises(ConfigError, match=f"{len(stream)} misses are not usable"):
            executor.run(refuses, stream)


def test_listener_that_is_no_cluster_is_one_line_within_the_limit() -> None:
    from hmd.simulate.executors import RayCluster

    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        pytest.raises(UnreachableError) as error,
    ):
        RayCluster(f"127.0.0.1:{listener.getsockname()[1]}", answer_s=3)
    assert "does not answer (nothing in 3 s)" in str(error.value)
    assert len(str(error.value).splitlines()) == 1
