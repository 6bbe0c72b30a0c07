# SPDX-License-Identifier: MIT
"""Configurations that are made from what runs: valid, largest first, and matching it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from hmd.config import loads
from hmd.config.generate import generate, running_services
from hmd.daemon.checks import matches
from hmd.linux.topology import Node, Topology
from tests.unit.linux.conftest import FakeProc

MIB_PAGES = (1 << 20) // 4096
TOPOLOGY = Topology(
    (Node(0, (0,), 8 << 30, (10, 20), 0), Node(1, (), 16 << 30, (20, 10), 1)),
)


def machine(folder: Path) -> FakeProc:
    proc = FakeProc(folder)
    unit = "0::/system.slice/system-postgresql.slice/postgresql@15-main.service\n"
    proc.add(10, exe="/usr/lib/postgresql/15/bin/postgres", cgroup=unit, rss_pages=300 * MIB_PAGES)
    proc.add(11, exe="/usr/lib/postgresql/15/bin/postgres", cgroup=unit, rss_pages=20 * MIB_PAGES)
    proc.add(12, exe="/usr/lib/postgresql/15/bin/postgres", cgroup=unit, rss_pages=MIB_PAGES)
    mine = "0::/user.slice/user-1000.slice/session-3.scope\n"
    proc.add(20, exe='/home/u/my [odd] "app', cgroup=mine, rss_pages=900 * MIB_PAGES)
    proc.add(30, exe="/bin/small", cgroup=mine, rss_pages=40 * MIB_PAGES)
    proc.add(40, exe="/bin/a", cgroup="0::/system.slice/hmd.service\n", rss_pages=999 * MIB_PAGES)
    return proc


def test_generated_configuration_names_largest_services(tmp_path: Path) -> None:
    services = running_services(machine(tmp_path).root)
    text = generate(TOPOLOGY, ["damon", "faults"], services, 8)
    config = loads(text)
    assert [(t.name, t.exe, t.unit) for t in config.targets] == [
        ("my-odd-app", ('my [[]odd] "app',), ()),
        ("postgresql-15-main", (), ("postgresql@15-main.service",)),
    ]
    assert config.migrate.dry_run
    for part in ("2 processes, 320 MiB", "node 0 (8192 MiB) | node 1 (16384 MiB)", "damon, faults"):
        assert part in text


def test_child_that_runs_another_program_is_a_target_that_matches(tmp_path: Path) -> None:
    proc, uid = FakeProc(tmp_path), tmp_path.stat().st_uid
    proc.add(10, exe="/usr/bin/runner", uid=uid, rss_pages=300 * MIB_PAGES)
    proc.add(11, exe="/usr/bin/worker", parent=10, uid=uid, rss_pages=100 * MIB_PAGES)
    config = loads(generate(TOPOLOGY, ["faults"], running_services(proc.root), 8))
    found = {name: [each.pid for each in sizes] for name, sizes, _ in matches(config, proc.root)}
    assert found == {"runner": [10], "worker": [11]}


def test_container_of_a_run_is_named_by_its_program(tmp_path: Path) -> None:
    """The unit of a container has another name after each start."""
    proc = FakeProc(tmp_path)
    scope = f"0::/system.slice/docker-{'0123456789abcdef' * 4}.scope\n"
    proc.add(10, exe="/usr/bin/redis-server", cgroup=scope, rss_pages=300 * MIB_PAGES)
    (service,) = running_services(proc.root)
    assert service.selectors[0] == 'exe: "redis-server"'


def test_generated_configuration_lists_what_is_beyond_the_limit_as_comment(tmp_path: Path) -> None:
    services = running_services(machine(tmp_path).root)
    text = generate(TOPOLOGY, ["faults"], services, 1)
    assert len(loads(text).targets) == 1
    assert "# smaller: postgresql@15-main, 320 MiB" in text
    one = Topology(TOPOLOGY.nodes[:1])
    empty = generate(one, ["faults"], [], 8)
    assert loads(empty).targets == ()
    assert "hmd needs two to move pages" in empty


def test_generate_and_match_on_this_machine(tmp_path: Path) -> None:
    """What runs here and is large becomes a target, which matches it."""
    program = "import time; m = bytearray(96 << 20); print(flush=True); time.sleep(99)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as large:
        assert large.stdout is not None
        large.stdout.readline()

        def hmd(*words: str) -> str:
            command = [sys.executable, "-m", "hmd", "config", *words]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout

        file = tmp_path / "hmd.yaml"
        file.write_text(hmd("generate", "--targets", "64"))
        found = json.loads(hmd("match", "--json", str(file)))["targets"]
        assert large.pid in {p["pid"] for target in found for p in target["processes"]}
        assert all(bool(t["processes"]) != bool(t["empty_reason"]) for t in found)
        file.write_text(f"targets: [{{name: a, pid: {large.pid}}}, {{name: b, exe: nothing-xyz}}]")
        printed = hmd("match", str(file))
        large.kill()
    assert "a: 1 process, 1" in printed
    assert f"{large.pid} python" in printed
    assert "b: no process has exe 'nothing-xyz'" in printed
