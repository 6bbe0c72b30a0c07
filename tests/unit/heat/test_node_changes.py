"""Change detection by node: where the samples of a window are, compared with the histories."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hmd.heat.change_detection import NodeSums, node_changes
from hmd.heat.geometry import ABSENT, CHUNK_BYTES, CHUNK_PAGES, FIXED
from hmd.heat.heat_settings import HeatSettings
from hmd.heat.heat_table import HeatTable
from hmd.machine.process_id import ProcessId
from hmd.sample.access_batch import AccessBatch
from hmd.units import PAGE_BYTES
from tests.unit.heat.dense import dense_rates

PROCESS = ProcessId(10, 1)
SURPRISE = HeatSettings().surprise
CHUNKS = 8
PAGES = CHUNKS * CHUNK_PAGES
SCATTERED = np.random.default_rng(1).permutation(PAGES)
HOT, NEXT_HOT = SCATTERED[: PAGES // 8], SCATTERED[PAGES // 8 : PAGES // 4]


def changes(counted: list[float], expected: list[float], ratio: float = 0.1) -> list[float]:
    """The changes of one process."""
    n, f = np.array([counted], float), np.array([expected], float)
    change = np.empty_like(n)
    node_changes(NodeSums(n, f, f * ratio), SURPRISE, change)
    return [round(each, 3) for each in change[0].tolist()]


def batch(pages: npt.NDArray[np.int64]) -> AccessBatch:
    n = len(pages)
    zeros = (np.zeros(n, np.uint8), np.zeros(n, np.uint16), np.zeros(n, np.uint32))
    address = pages.astype(np.uint64) * np.uint64(PAGE_BYTES)
    ends = (np.zeros(n, np.uint64), np.zeros(n, np.uint32), np.ones(n, np.uint32))
    return AccessBatch(np.zeros(n, np.int32), address, *zeros, *ends)


def table_of_hot_set() -> HeatTable:
    """A table after ten windows in which ``HOT``, on node 1, had 9 of 10 samples."""
    table = HeatTable(HeatSettings(window_samples_min=1))
    table.track([PROCESS])
    node = np.zeros(PAGES, np.int8)
    node[HOT] = 1
    starts = np.arange(CHUNKS, dtype=np.uint64) * np.uint64(CHUNK_BYTES)
    table.place(0, starts, node.reshape(CHUNKS, CHUNK_PAGES))
    for seed in range(10):
        table.update(batch(window(HOT, seed)))
    return table


def window(hot: npt.NDArray[np.int64], seed: int) -> npt.NDArray[np.int64]:
    """Pages of one sample per hot page on average, and of a ninth as many anywhere."""
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.choice(hot, len(hot)), rng.integers(0, PAGES, len(hot) // 9)])


def rate_of(table: HeatTable, pages: npt.NDArray[np.int64]) -> float:
    """Share of the rates of all pages that these have."""
    rate = dense_rates(table).rate.reshape(-1).astype(np.float64)
    return float(rate[pages].sum() / rate.sum())


def test_node_changes_samples_move_between_nodes_both_changed() -> None:
    assert changes([20, 980], [770, 230]) == [0.027, 4.254]


def test_node_changes_fewer_than_quarter_missing_none_changed() -> None:
    assert changes([20, 980], [200, 800]) == [1, 1]


def test_node_changes_rate_not_halved_none_changed() -> None:
    assert changes([600, 400], [1000, 0.0]) == [1, 1]


def test_node_changes_few_samples_none_changed() -> None:
    assert changes([0, 3], [2, 1]) == [1, 1]
    assert changes([0, 300], [200, 100])[0] < 0.01


def test_node_changes_uncertain_history_none_changed() -> None:
    assert changes([10, 70], [70, 10], ratio=0.1)[0] < 0.5
    assert changes([10, 70], [70, 10], ratio=9.0) == [1, 1]


def test_heat_scattered_hot_set_moves_forgotten_in_one_window() -> None:
    table = table_of_hot_set()
    assert rate_of(table, HOT) > 0.75
    table.update(batch(window(NEXT_HOT, 20)))
    assert rate_of(table, HOT) < 0.15
    assert rate_of(table, NEXT_HOT) > 2 * rate_of(table, HOT)
    for seed in (21, 22, 23):
        table.update(batch(window(NEXT_HOT, seed)))
    assert rate_of(table, NEXT_HOT) > 0.6


def test_heat_hot_set_stays_history_kept() -> None:
    table = table_of_hot_set()
    before = table.chunks.columns.exposure.copy()
    table.update(batch(window(HOT, 20)))
    after = table.chunks.columns.exposure
    assert rate_of(table, HOT) > 0.75
    assert (after >= before).mean() > 0.95


def test_heat_unmovable_pages_counted_with_their_node() -> None:
    table = table_of_hot_set()
    starts = np.arange(CHUNKS, dtype=np.uint64) * np.uint64(CHUNK_BYTES)
    codes = table.chunks.columns.node[: table.chunks.used].copy()
    codes[codes != ABSENT] = FIXED - codes[codes != ABSENT]
    table.place(0, starts, codes)
    table.update(batch(window(NEXT_HOT, 20)))
    assert rate_of(table, HOT) < 0.15
