# SPDX-License-Identifier: MIT
"""The daemon's loop executes drains, pins and moves on a program of this host.

The host has one of the two nodes, so that the kernel refuses moves to the other: these tests check
plans, and those in the guest check moves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hmd.config.load import loads
from hmd.daemon.service import Service
from hmd.daemon.systemd import Notifier
from hmd.metrics.status import DrainStatus
from hmd.metrics.tick_record import TickRecord
from hmd.policy.admin import Pin
from tests.fakes.toucher import Toucher

PAGES = 3000
ABSENT = 120
"""A node that no host has."""


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    nodes = tmp_path / "sys/devices/system/node"
    for node, row in ((0, "10 20"), (ABSENT, "20 10")):
        folder = nodes / f"node{node}"
        folder.mkdir(parents=True)
        text = "".join(f"Node {node} {key}: 4194304 kB\n" for key in ("MemTotal", "MemFree"))
        (folder / "meminfo").write_text(text)
        (folder / "cpulist").write_text("" if node else "0-1\n")
        (folder / "distance").write_text(f"{row}\n")
    (nodes / "has_memory").write_text(f"0,{ABSENT}\n")
    (nodes.parent / "cpu").symlink_to("/sys/devices/system/cpu")
    return tmp_path / "sys"


@pytest.fixture
def service(tmp_path: Path, sysfs: Path, toucher: Toucher) -> Iterator[Service]:
    """A daemon of one process, which is all that its /proc has."""
    toucher.touch(PAGES)
    proc = tmp_path / "proc"
    proc.mkdir()
    for name in (str(toucher.process.pid), "self", "sys", "zoneinfo", "stat", "cpuinfo"):
        (proc / name).symlink_to(f"/proc/{name}")
    text = (
        f"tick: 50ms\nrescan: 100ms\ntargets: [{{name: one, pid: {toucher.process.pid}}}]\n"
        "sample: {sampler: faults, period: 1}\ndecide: {policy: interleave}\n"
        f"observe: {{metrics: 'off', socket: {tmp_path}/hmd.sock}}\n"
    )
    made = Service(lambda: loads(text, "test"), "test", Notifier({}), proc=proc, sysfs=sysfs)
    yield made
    made.close()


def ticks_until(service: Service, what: Callable[[TickRecord], bool]) -> TickRecord:
    """Tick until something is true of a tick; returns that."""
    for _ in range(500):
        tick = service.tick(time.monotonic())
        assert not tick.failed
        if what(tick):
            return tick
        time.sleep(0.01)
    raise AssertionError("no such tick")


def drained(service: Service) -> DrainStatus:
    (drain,) = service.observer.latest.control.drains
    return drain


def planned(tick: TickRecord) -> set[tuple[int, int]]:
    return set(zip(tick.plan.from_node.tolist(), tick.plan.to_node.tolist(), strict=True))


def test_drain_refused_by_kernel_settles_and_reports_reason(service: Service) -> None:
    # From here on ticks plan for the process, which spares it from the thread.
    ticks_until(service, lambda _: service.stages.state.heat.resident_pages(1)[0].sum() > PAGES)
    service.stages.admin.drain(frozenset({0}))
    tick = ticks_until(service, lambda tick: len(tick.plan) > PAGES)
    assert planned(tick) == {(0, ABSENT)}
    assert drained(service).waiting_pages > PAGES
    assert not drained(service).settled
    # The kernel refuses all of it: the thread is to say so.
    ticks_until(service, lambda _: drained(service).settled)
    assert drained(service).left["offline"] > PAGES
    service.stages.admin.drain(frozenset())
    ticks_until(service, lambda _: not service.observer.latest.control.drains)


def test_drain_and_pin_while_paused_plan_nothing(service: Service, toucher: Toucher) -> None:
    ticks_until(service, lambda _: bool(service.stages.state.heat.chunks.used))
    admin = service.stages.admin
    admin.drain(frozenset({0}))
    admin.pins[toucher.process] = Pin(ABSENT, 0)
    admin.paused = True
    samples = service.observer.latest.sampler.samples
    for _ in range(20):
        assert not len(service.tick(time.monotonic()).plan)
    toucher.touch(500)
    ticks_until(service, lambda _: service.observer.latest.sampler.samples > samples + 100)
    assert not drained(service).settled
    admin.paused = False
    admin.pins.clear()
    ticks_until(service, lambda tick: len(tick.plan) > PAGES)


def test_pin_plans_moves_and_unmovable_move_request_ends(
    service: Service, toucher: Toucher
) -> None:
    ticks_until(service, lambda _: bool(service.stages.state.heat.chunks.used))
    admin = service.stages.admin
    admin.pins[toucher.process] = Pin(ABSENT, 0)
    tick = ticks_until(service, lambda tick: len(tick.plan) > PAGES)
    assert planned(tick) == {(0, ABSENT)}
    # Where they are: nothing is planned for them, by order or by policy.
    admin.pins[toucher.process] = Pin(None, 0)
    for _ in range(5):
        assert not len(service.tick(time.monotonic()).plan)
    admin.pins.clear()
    admin.moves[toucher.process] = Pin(ABSENT, 0)
    tick = ticks_until(service, lambda tick: len(tick.plan) > PAGES)
    assert planned(tick) == {(0, ABSENT)}
    # Nothing could be moved: the move is not tried for ever.
    assert not admin.moves


def test_policy_with_drained_node_plans_no_move_to_it(service: Service) -> None:
    """Interleave would spread pages over both nodes by their addresses."""
    ticks_until(service, lambda tick: planned(tick) == {(0, ABSENT)})
    service.stages.admin.drain(frozenset({ABSENT}))
    for _ in range(10):
        assert not len(service.tick(time.monotonic()).plan)
    service.stages.admin.drain(frozenset())
    ticks_until(service, lambda tick: bool(len(tick.plan)))


def test_pages_of_pinned_process_are_still_counted(service: Service, toucher: Toucher) -> None:
    service.stages.admin.pins[toucher.process] = Pin(None, 0)
    heat = service.stages.state.heat
    ticks_until(service, lambda _: bool(heat.resident_pages(1)[0].sum() > PAGES))
    # They are no pages that must stay, but while a policy plans.
    assert (heat.chunks.columns.node >= -1).mean() > 0.5
