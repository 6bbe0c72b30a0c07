# SPDX-License-Identifier: MIT
"""Which loads the emulated PMU's tags choose: the inline functions of hmd/emulate/plugin/pebs.h."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import hmd

PLUGIN = Path(hmd.__file__).parent / "emulate/plugin"
SOURCE = """
#include "pebs.h"
unsigned tagged_loads(unsigned loads, uint64_t step_ps, uint64_t latency_ps, uint32_t interval)
{
	struct pebs_tag tag = { 0 };
	unsigned count = 0;
	for (unsigned i = 1; i <= loads; i++)
		count += pebs_tag_load(&tag, i * step_ps, latency_ps, interval);
	return count;
}
unsigned tagged_ops(unsigned loads, uint64_t apart, uint64_t period, uint64_t *untagged)
{
	struct pebs_tag tag = { 0 };
	unsigned count = 0;
	*untagged = 0;
	for (unsigned i = 1; i <= loads; i++) {
		uint64_t missed;
		count += pebs_tag_op(&tag, i * apart, period, &missed);
		*untagged += missed;
	}
	return count;
}
"""
LOADS = 400_000


@pytest.fixture(scope="module")
def tags(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ctypes.CDLL]:
    folder = tmp_path_factory.mktemp("tags")
    (folder / "tags.c").write_text(SOURCE)
    words = ["cc", "-O2", "-shared", "-fPIC", f"-I{PLUGIN}", "-o", "tags.so", "tags.c"]
    subprocess.run(words, cwd=folder, check=True)
    library = ctypes.CDLL(str(folder / "tags.so"))
    library.tagged_loads.argtypes = [ctypes.c_uint, *[ctypes.c_uint64] * 2, ctypes.c_uint32]
    library.tagged_ops.argtypes = [
        ctypes.c_uint, *[ctypes.c_uint64] * 2, ctypes.POINTER(ctypes.c_uint64),
    ]  # fmt: skip
    yield library


def test_free_tag_takes_one_load_in_an_interval(tags: ctypes.CDLL) -> None:
    assert tags.tagged_loads(LOADS, 1, 0, 1) == LOADS
    assert tags.tagged_loads(LOADS, 1, 0, 16) == pytest.approx(LOADS / 16, rel=0.05)


def test_loads_while_the_tag_is_in_flight_are_not_taken(tags: ctypes.CDLL) -> None:
    """Ten misses in flight at a time: after one that is tagged, nine find no free tag."""
    alone = tags.tagged_loads(LOADS, 100, 100, 16)
    overlapping = tags.tagged_loads(LOADS, 10, 100, 16)
    assert alone == pytest.approx(LOADS / 16, rel=0.05)
    assert overlapping == pytest.approx(LOADS / (16 + 9), rel=0.05)


def test_each_op_is_tagged_once_a_period_whatever_it_is(tags: ctypes.CDLL) -> None:
    """One op in four is a miss: a quarter of the tagged ones have a record, the others cost."""
    untagged = ctypes.c_uint64()
    found = tags.tagged_ops(LOADS, 4, 1000, ctypes.byref(untagged))
    periods = 4 * LOADS / 1000
    assert found + untagged.value == pytest.approx(periods, rel=0.02)
    assert found == pytest.approx(periods / 4, rel=0.15)
