# SPDX-License-Identifier: MIT
from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from hmd.linux.procfs import ProcessId
from hmd.migrate.move_budget import BackoffSettings, RetryBackoff

PAGE = 4096
ONE, TWO = ProcessId(1, 5), ProcessId(2, 5)


def pages(*numbers: int) -> npt.NDArray[np.uint64]:
    return np.array(numbers, np.uint64) * np.uint64(PAGE)


def test_backoff_failed_page_blocked_until_wait_ends() -> None:
    backoff = RetryBackoff(BackoffSettings(first_wait_s=2.0))
    backoff.add(ONE, pages(7, 9), now_s=10.0)
    assert backoff.find_waiting(ONE, pages(6, 7, 8, 9), 11.9).tolist() == [False, True, False, True]
    assert not backoff.find_waiting(ONE, pages(7, 9), 12.0).any()


def test_backoff_each_failure_doubles_wait_to_maximum() -> None:
    backoff = RetryBackoff(BackoffSettings(first_wait_s=1.0, max_wait_s=5.0))
    now_s = 0.0
    for wait_s in (1.0, 2.0, 4.0, 5.0, 5.0):
        backoff.add(ONE, pages(1), now_s)
        assert backoff.find_waiting(ONE, pages(1), now_s + wait_s * 0.99).all()
        now_s += wait_s
        assert not backoff.find_waiting(ONE, pages(1), now_s).any()


def test_backoff_page_without_new_failure_forgotten() -> None:
    backoff = RetryBackoff(BackoffSettings(first_wait_s=1.0))
    backoff.add(ONE, pages(1), 0.0)
    backoff.add(ONE, pages(1), 2.0)  # one second of waiting, one of parole: forgotten
    assert not backoff.find_waiting(ONE, pages(1), 3.0).any()


def test_backoff_processes_with_same_pid_separate() -> None:
    backoff = RetryBackoff(BackoffSettings())
    backoff.add(ONE, pages(1), 0.0)
    assert not backoff.find_waiting(TWO, pages(1), 0.0).any()
    assert not backoff.find_waiting(ProcessId(1, 6), pages(1), 0.0).any()


def test_backoff_exited_process_forgotten() -> None:
    backoff = RetryBackoff(BackoffSettings())
    backoff.add(ONE, pages(1, 2), 0.0)
    backoff.add(TWO, pages(1), 0.0)
    backoff.forget(ONE)
    backoff.forget(ONE)
    assert len(backoff) == 1
    assert backoff.find_waiting(TWO, pages(1), 0.0).all()
    assert not backoff.find_waiting(ONE, pages(1), 0.0).any()


def test_backoff_expired_pages_removed() -> None:
    backoff = RetryBackoff(BackoffSettings(first_wait_s=1.0))
    backoff.add(ONE, pages(*range(100)), 0.0)
    backoff.add(TWO, pages(1), 5.0)
    assert len(backoff) == 1


def test_backoff_full_table_keeps_longest_waits() -> None:
    backoff = RetryBackoff(BackoffSettings(first_wait_s=1.0, max_pages=10))
    backoff.add(ONE, pages(3), 0.0)
    backoff.add(ONE, pages(3), 0.5)
    backoff.add(ONE, pages(*range(100, 200)), 0.5)
    assert len(backoff) == 10
    assert backoff.find_waiting(ONE, pages(3), 2.0).all()


def test_backoff_57_bit_addresses_separate_from_process() -> None:
    backoff = RetryBackoff(BackoffSettings())
    high = np.array([(1 << 57) - PAGE], np.uint64)
    backoff.add(ONE, high, 0.0)
    assert backoff.find_waiting(ONE, high, 0.0).all()
    assert not backoff.find_waiting(TWO, high, 0.0).any()
    assert not backoff.find_waiting(ONE, pages(0, 1), 0.0).any()


@given(
    st.lists(
        st.tuples(st.sampled_from([ONE, TWO]), st.sets(st.integers(0, 50)), st.floats(0, 3)),
        max_size=20,
    )
)
def test_backoff_any_failures_agree_with_dictionary(
    steps: list[tuple[ProcessId, set[int], float]],
) -> None:
    backoff = RetryBackoff(BackoffSettings(first_wait_s=1.0, max_wait_s=8.0))
    model: dict[tuple[ProcessId, int], tuple[float, float]] = {}
    now_s = 0.0
    for process, numbers, wait_s in steps:
        now_s += wait_s
        if numbers:
            model = {k: (until, last) for k, (until, last) in model.items() if until + last > now_s}
        for number in numbers:
            last = model.get((process, number), (0.0, 0.5))[1]
            wait = min(last * 2, 8.0)
            model[process, number] = (now_s + wait, wait)
        backoff.add(process, pages(*sorted(numbers)), now_s)
        for who in (ONE, TWO):
            expected = [model.get((who, n), (0.0, 0.0))[0] > now_s for n in range(51)]
            assert backoff.find_waiting(who, pages(*range(51)), now_s).tolist() == expected
    assert len(backoff) == len(model)
