# SPDX-License-Identifier: MIT
"""What holds of the mover for any plan, kernel and settings."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hmd.migrate import MoveStatus
from tests.fakes.move_pages_kernel import BASE, HUGE, PAGE, FakeKernel, make_mover, make_plan

FOLIO = st.fixed_dictionaries(
    {
        "node": st.integers(0, 2),
        "pinned": st.booleans(),
        "isolated": st.booleans(),
        "shared": st.booleans(),
        "zero": st.booleans(),
    }
)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_mover_any_plan_one_status_per_row_memory_consistent(data: Any) -> None:
    free = {n: data.draw(st.integers(0, 40)) for n in range(3)}
    kernel = FakeKernel(free)
    processes = []
    for pid in (10, 11):
        start = kernel.process(pid, permitted=data.draw(st.booleans() | st.just(True)))
        processes.append(start)
        for page in data.draw(st.sets(st.integers(0, 30))):
            folio = data.draw(FOLIO)
            kernel.place(pid, BASE + page * PAGE, folio.pop("node"), **folio)
        if data.draw(st.booleans()):
            kernel.place(pid, BASE + HUGE * PAGE, data.draw(st.integers(0, 2)), pages=HUGE)
    exits_at = data.draw(st.none() | st.integers(0, 6))
    kernel.before_call = lambda call: call == exits_at and kernel.processes.pop(11)
    total = sum(kernel.free.values())
    row = st.tuples(
        st.integers(0, 1),
        st.integers(0, 30).map(lambda page: BASE + page * PAGE) | st.just(BASE + HUGE * PAGE),
        st.sampled_from([1, HUGE]),
        st.integers(0, 2),
        st.integers(0, 4),
    )
    plan = make_plan(processes, data.draw(st.lists(row, max_size=60)))
    mover = make_mover(
        kernel,
        min_batch_pages=data.draw(st.sampled_from([1, 4, 256])),
        rate_bytes_per_s=data.draw(st.none() | st.integers(0, 4 << 20)),
        tries=data.draw(st.integers(1, 3)),
        move_shared=data.draw(st.booleans()),
    )
    before = {pid: kernel.nodes_of(pid) for pid in (10, 11)}
    outcome = mover.apply(plan)

    assert len(outcome) == len(plan)
    assert all(MoveStatus.PENDING < code <= MoveStatus.OTHER for code in outcome.status)
    assert sum(outcome.pages.values()) == int(plan.pages.sum())
    assert sum(outcome.moved.values()) == int(outcome.moved_pages.sum())
    assert sum(kernel.free.values()) == total
    at_target = np.isin(outcome.status, (MoveStatus.MOVED, MoveStatus.ALREADY_THERE))
    for i in np.flatnonzero(at_target).tolist():
        pid, address = 10 + int(plan.process[i]), int(plan.address[i])
        if pid in kernel.processes:
            assert kernel.nodes_of(pid)[address] == plan.to_node[i] == outcome.node[i]
    moved = {(10 + int(plan.process[i]), int(plan.address[i])) for i in np.flatnonzero(at_target)}
    for pid in kernel.processes:
        for address, node in kernel.nodes_of(pid).items():
            if (pid, address) not in moved and not (plan.pages == HUGE).any():
                assert node == before[pid][address]
