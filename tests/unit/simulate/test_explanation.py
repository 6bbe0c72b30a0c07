# SPDX-License-Identifier: MIT
"""``hmd explain`` for every policy, over a daemon of a simulated machine and a real socket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from hmd.base.errors import Exit, TargetError
from hmd.cli.main import main
from hmd.control.requests import ControlRequest
from hmd.control.status_socket import StatusSocket
from hmd.daemon.explain import explain
from hmd.emulate.preset import Preset
from hmd.emulate.recordings.misses import MissStream
from hmd.heat.view import gather_pages
from hmd.linux.memory_policy import parse_numa_maps
from hmd.linux.procfs import ProcessId
from hmd.metrics.move_journal import MoveJournal
from hmd.policy import registry
from hmd.policy.learned.network import FEATURES
from hmd.residency.sweep import ResidencySweep
from hmd.simulate.machine import PROGRAM, SimulatedMachine
from hmd.simulate.pmu import PmuSettings
from hmd.simulate.simulation import SimulatedDaemon, SimulationSettings
from hmd.tick.tick import POLICY_ROWS
from tests.unit.simulate.conftest import BASE, HOT_PAGES, PAGES, hot_set, stream_of

EXPLAINED = SimulationSettings(tick_s=0.004, delay_s=0.0005, sampling=PmuSettings(period=23))
HOT_ADDRESS = BASE + (PAGES - 1) * 4096


class Explained:
    """A daemon some ticks into a program whose hot set first touch left on the slow node."""

    def __init__(self, machine: SimulatedMachine, policy: str) -> None:
        kept = {"headroom": 0.0, "headroom_min": 8 * 4096}
        has = set(registry.info(policy).settings_type.model_fields)
        settings: dict[str, object] = {name: kept[name] for name in kept.keys() & has}
        chosen = registry.create(policy, settings)
        self.daemon = SimulatedDaemon(machine, chosen, EXPLAINED)
        self.journal = MoveJournal()
        for _ in range(12):
            self.journal.add(self.daemon.tick(), machine.topology)
        # As in the daemon, without what takes modelled time.
        self.daemon.state = replace(self.daemon.state, policy=chosen)

    def of(self, address: int | None = None, process: ProcessId = PROGRAM) -> dict[str, Any]:
        return self.explain(process, address, POLICY_ROWS)

    def explain(self, process: ProcessId, address: int | None, max_rows: int) -> dict[str, Any]:
        daemon, tick_s = self.daemon, EXPLAINED.tick_s
        return explain(
            daemon.state, daemon.inputs, tick_s, self.journal, process, address, max_rows
        )


@pytest.fixture(scope="module")
def brief() -> MissStream:
    return stream_of(hot_set(150_000, PAGES - HOT_PAGES, 1))


@pytest.fixture(params=registry.names())
def explained(
    request: pytest.FixtureRequest, brief: MissStream, preset: Preset
) -> Iterator[Explained]:
    with SimulatedMachine(brief, preset, HOT_PAGES + 64) as machine:
        yield Explained(machine, request.param)


def test_explain_every_policy_gives_heat_price_and_reason(explained: Explained) -> None:
    document = json.loads(json.dumps(explained.of()))
    assert document["pid"] == PROGRAM.pid
    pages = document["pages"]
    assert 1 <= len(pages) <= 10
    for page in pages:
        assert page["why"]
        assert page["rate"] >= 0
        assert (page["repaid_after_s"] is None) == (page["saving_s_per_s"] <= 0)
    features = [page["policy"] for page in pages if page["policy"]]
    assert bool(features) == (document["plans"] == "learned")
    for figures in features:
        assert set(figures) == {"predicted_rate", "long_run_weight", *FEATURES}
    with pytest.raises(TargetError, match="belongs to no target"):
        explained.of(process=ProcessId(5, 5))
    with pytest.raises(TargetError, match="no page at"):
        explained.of(0x1000)


def test_explain_of_any_page_costs_a_bounded_view(
    explained: Explained, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages that a bounded view does not show are explained with the figures of a full one."""
    daemon, max_rows, shown = explained.daemon, 16, []
    every = daemon.state.heat.view(daemon.inputs.machine.topology)
    assert len(every) > 4 * max_rows

    def counted(number: npt.NDArray[np.int64], *others: Any) -> None:
        shown.append(len(number))
        gather_pages(number, *others)

    addresses = every.address[:: len(every) // 8].tolist()
    full = [explained.of(address) for address in addresses]
    monkeypatch.setattr("hmd.heat.view.gather_pages", counted)
    for address, document in zip(addresses, full, strict=True):
        bounded = explained.explain(PROGRAM, address, max_rows)
        for name in ("address", "node", "rate", "samples", "idle_ticks", "saving_s_per_s"):
            assert bounded["pages"][0][name] == pytest.approx(document["pages"][0][name])
    listed = explained.explain(PROGRAM, None, max_rows)
    assert 1 <= len(listed["pages"]) <= 10
    assert 0 < max(shown) <= max_rows + 10


@pytest.mark.parametrize("name", ["histogram", "learned"])
def test_explain_promoted_page_on_socket_shows_move_and_what_it_displaced(
    name: str,
    brief: MissStream,
    preset: Preset,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with SimulatedMachine(brief, preset, HOT_PAGES + 64) as machine:
        scene = Explained(machine, name)
        document = scene.of(HOT_ADDRESS)

    def answer(request: ControlRequest) -> Future[bytes]:
        assert request.arguments == {"pid": PROGRAM.pid, "address": HOT_ADDRESS}
        future: Future[bytes] = Future()
        future.set_result(json.dumps({"explained": [document]}).encode())
        return future

    server = StatusSocket(tmp_path / "s", {}, {"explain": answer})
    try:
        asked = ["explain", str(PROGRAM.pid), hex(HOT_ADDRESS), "--socket", str(server.path)]
        assert main([*asked, "--json"]) == Exit.OK
        (found,) = json.loads(capsys.readouterr().out)["explained"]
        assert main(asked) == Exit.OK
        text = capsys.readouterr().out
        assert main([*asked[:2], "somewhere", *asked[3:]]) == Exit.USAGE
    finally:
        server.close()
    (page,) = found["pages"]
    assert page["address"] == HOT_ADDRESS
    assert page["tier"] == 0
    move = page["moves"][0]
    assert (move["from_node"], move["to_node"], move["promoted"]) == (1, 0, True)
    assert page["rate"] > 0
    assert f"process {PROGRAM.pid}, policy {name}" in text
    assert "promoted from node 1 to 0" in text
    assert page["why"] in text


def test_explain_bound_page_names_its_nodes(explained: Explained) -> None:
    daemon = explained.daemon
    bound = parse_numa_maps(b"00001000 bind:1 anon=9 N1=9\n")
    found = explain(
        daemon.state, daemon.inputs, EXPLAINED.tick_s, explained.journal, PROGRAM, None,
        bindings=bound,
    )  # fmt: skip
    for page in found["pages"]:
        assert page["why"].startswith("a memory policy binds it to node 1 (MPOL_BIND); ")


def test_explain_names_the_drain_that_keeps_a_page_away(explained: Explained) -> None:
    state = explained.daemon.state
    state.admin.drained |= {0}
    try:
        pages = explained.of()["pages"]
    finally:
        state.admin.drained -= {0}
    why = {page["tier"]: page["why"] for page in pages}
    assert why[0] == "node 0 is drained: it leaves soon (hmd undrain)"
    assert why[1] == "the fastest tier is drained, node 0 (hmd undrain)"


def test_explain_page_of_virtual_machine_says_that_guests_are_not_seen(
    explained: Explained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        ResidencySweep, "guest_mask", lambda _, processes: np.ones(len(processes), np.bool_)
    )
    for page in explained.of()["pages"]:
        assert page["why"].startswith(
            "its process runs virtual machines, whose accesses samples do"
        )


def test_explain_page_says_that_its_target_rests_or_is_never_slow(
    brief: MissStream, preset: Preset, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SimulatedMachine(brief, preset, HOT_PAGES + 64) as machine:
        scene = Explained(machine, "histogram")
        inputs = scene.daemon.inputs
        tracked = replace(inputs.tracked, never_slow=np.ones(1, np.bool_))
        monkeypatch.setattr(scene.daemon, "inputs", replace(inputs, tracked=tracked))
        why = {page["tier"]: page["why"] for page in scene.of()["pages"]}
        resting = replace(inputs, resting=frozenset(inputs.tracked.targets))
        monkeypatch.setattr(scene.daemon, "inputs", resting)
        rests = {page["why"].partition(";")[0] for page in scene.of()["pages"]}
    assert why == {
        0: "its target is never slow: it stays there",
        1: "its target is never slow: it goes to the fastest tier as room is made",
    }
    assert rests == {"its target is outside of its hours (active)"}
