# SPDX-License-Identifier: MIT
"""Values that policies keep per page, while chunks come and go and change their detail."""

from __future__ import annotations

import numpy as np
import pytest

from hmd.heat.page_state import PageState
from hmd.heat.settings import ABSENT, CHUNK_BYTES, CHUNK_PAGES, HeatSettings
from hmd.heat.table import HeatTable
from hmd.heat.view import PageView
from hmd.linux.procfs import ProcessId
from hmd.linux.topology import Node, Topology

TOPOLOGY = Topology((Node(0, (0,), 1 << 40, (10,), 0),))
PROCESSES = (ProcessId(1, 1), ProcessId(2, 1))
DETAILS = 4


def place(table: HeatTable, slot: int, chunk: int, node: int = 0) -> None:
    start = np.array([chunk * CHUNK_BYTES], np.uint64)
    table.record_nodes(slot, start, np.full((1, CHUNK_PAGES), node, np.int8))


class Expected:
    """What a page should have, by process and chunk: one value, or 512 where it has detail."""

    def __init__(self) -> None:
        self.kept: dict[tuple[ProcessId, int], list[int]] = {}

    def follow(self, table: HeatTable) -> None:
        columns, kept = table.chunks.columns, {}
        for row in range(table.chunks.used):
            process = table.processes[columns.process[row]]
            key = process, int(columns.address[row]) // CHUNK_BYTES
            values = self.kept.get(key, [-1])
            if columns.page_slot[row] >= 0:
                kept[key] = values if len(values) > 1 else values * CHUNK_PAGES
            else:
                kept[key] = values[:1]
        self.kept = kept

    def write(self, view: PageView, values: list[int]) -> None:
        for row, value in enumerate(values):
            key, page = self._place(view, row)
            self.kept[key][page] = value

    def read(self, view: PageView) -> list[int]:
        places = [self._place(view, row) for row in range(len(view))]
        return [self.kept[key][page] for key, page in places]

    def _place(self, view: PageView, row: int) -> tuple[tuple[ProcessId, int], int]:
        chunk, byte = divmod(int(view.address[row]), CHUNK_BYTES)
        key = view.processes[view.process[row]], chunk
        return key, byte * CHUNK_PAGES // CHUNK_BYTES if len(self.kept[key]) > 1 else 0


@pytest.mark.parametrize("seed", range(4))
def test_page_state_values_follow_chunks_through_any_change(seed: int) -> None:
    random = np.random.default_rng(seed)
    table, state, expected = (
        HeatTable(HeatSettings(max_page_slots=DETAILS)),
        PageState(np.int32, -1),
        Expected(),
    )
    table.track_processes(PROCESSES)
    present: set[tuple[int, int]] = set()
    for _ in range(60):
        chunks = table.chunks
        detail = chunks.columns.page_slot[: chunks.used]
        change = random.choice(["come", "go", "attach", "detach", "swap", "none"])
        if change == "come" or not present:
            for chunk in random.integers(0, 40, 3).tolist():
                slot = int(random.integers(2))
                place(table, slot, chunk)
                present.add((slot, chunk))
        elif change == "go":
            slot, chunk = sorted(present)[int(random.integers(len(present)))]
            place(table, slot, chunk, ABSENT)
            present.discard((slot, chunk))
        elif change in ("detach", "swap") and (detail >= 0).any():
            chunks.take_page_slots(np.flatnonzero(detail >= 0)[: random.integers(1, 3)])
        if change in ("attach", "swap"):
            free = int(chunks.state.counts[1])
            without = np.flatnonzero(chunks.columns.page_slot[: chunks.used] < 0)
            chunks.assign_page_slots(random.permutation(without)[:free])
            for row in range(chunks.used):  # as the next sweep would
                columns = chunks.columns
                if columns.resident[row] == 0:
                    columns.node[columns.page_slot[row]] = 0
                    columns.resident[row] = CHUNK_PAGES
            table.discard_rates()
        expected.follow(table)
        view = table.view(TOPOLOGY)
        assert state.read(view).tolist() == expected.read(view)
        if random.random() < 0.7:
            values = random.integers(0, 1 << 20, len(view)).astype(np.int32)
            state.write(view, values)
            expected.write(view, values.tolist())


def test_page_state_chunks_that_keep_their_rows_are_not_searched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table, state = HeatTable(HeatSettings(max_page_slots=DETAILS)), PageState(np.int16, -1)
    table.track_processes(PROCESSES)
    for chunk in range(8):
        place(table, 0, chunk)
    view = table.view(TOPOLOGY)
    state.write(view, np.arange(len(view), dtype=np.int16))
    place(table, 1, 3)
    table.chunks.take_page_slots(np.array([0]))
    table.discard_rates()

    def refused(*_: object) -> None:
        raise AssertionError("searched")

    monkeypatch.setattr(type(table.chunks), "find", refused)
    view = table.view(TOPOLOGY)
    values = state.read(view)
    assert values[view.process == 1].tolist() == [-1]
    assert values[view.address == 0].tolist() == [0]
    assert values[view.address == CHUNK_BYTES].tolist() == [CHUNK_PAGES]
