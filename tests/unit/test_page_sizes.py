# SPDX-License-Identifier: MIT
"""hmd with base pages of 16 and 64 KiB, in processes of their own: sizes are read once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hmd.base.errors import PageSizeError
from hmd.base.units import PAGE_BYTES, PAGE_SIZES
from hmd.trace.reader import read_trace
from hmd.trace.trace import PlacementChange, Trace, TracedProcess
from hmd.trace.writer import write_trace
from tests.unit.trace.test_trace_file import samples_of

ROOT = Path(__file__).parents[2]
OTHERS = tuple(size for size in PAGE_SIZES if size != PAGE_BYTES)


def run(page_bytes: int | None, *words: str) -> str:
    """Run Python in a process of its own, and return what it prints."""
    environment = {name: text for name, text in os.environ.items() if name != "HMD_PAGE_BYTES"}
    if page_bytes is not None:
        environment["HMD_PAGE_BYTES"] = str(page_bytes)
    command = [sys.executable, *words]
    done = subprocess.run(
        command, check=False, env=environment, cwd=ROOT, text=True, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


SIZES = """
from hmd.base.units import HUGE_PAGE_BYTES, HUGE_PAGE_PAGES, PAGE_BYTES, PAGE_SHIFT
from hmd.heat.chunks import CHUNK_SHIFT
from hmd.heat.settings import CHUNK_BLOCKS, CHUNK_BYTES, PROBE_PART_PAGES, PROBE_PARTS
assert 1 << PAGE_SHIFT == PAGE_BYTES
assert 1 << CHUNK_SHIFT == CHUNK_BYTES == HUGE_PAGE_BYTES
assert CHUNK_BLOCKS * 16 == PROBE_PARTS * PROBE_PART_PAGES == HUGE_PAGE_PAGES
print(PAGE_BYTES, HUGE_PAGE_BYTES)
"""


@pytest.mark.parametrize(
    ("page_bytes", "huge_bytes"), [(4096, 2 << 20), (16384, 32 << 20), (65536, 512 << 20)]
)
def test_huge_pages_and_chunks_follow_the_page(page_bytes: int, huge_bytes: int) -> None:
    assert run(page_bytes, "-c", SIZES).split() == [str(page_bytes), str(huge_bytes)]


def test_unknown_size_is_that_of_the_kernel() -> None:
    size = "from hmd.base.units import PAGE_BYTES; print(PAGE_BYTES)"
    assert run(12345, "-c", size) == f"{PAGE_BYTES}\n"


RESIDENT = """
import numpy as np
from hmd.base.units import HUGE_PAGE_BYTES, HUGE_PAGE_PAGES, PAGE_BYTES
from hmd.linux.resident_pages import every_page
part = every_page(0, 2 * HUGE_PAGE_BYTES, np.array([HUGE_PAGE_BYTES], np.uint64))
assert len(part.pages) == HUGE_PAGE_PAGES and len(part.huge) == 1
assert set(np.diff(part.pages).tolist()) == {PAGE_BYTES}
print(part.until // HUGE_PAGE_BYTES)
"""


@pytest.mark.parametrize("page_bytes", OTHERS)
def test_parts_of_resident_memory_are_whole_pages(page_bytes: int) -> None:
    assert run(page_bytes, "-c", RESIDENT) == "2\n"


def trace_of(page_bytes: int) -> Trace:
    """Return the trace of a machine: a run of three of its pages on node 1."""
    return Trace(
        about={"command": ["prog"], "begin_ns": 5, "period": 32, "page_bytes": page_bytes},
        processes=(TracedProcess(10, "prog"), TracedProcess(11, "child")),
        samples=samples_of(50),
        placement=(
            PlacementChange(
                6,
                0,
                np.array([16 * page_bytes], np.uint64),
                np.array([3], np.uint32),
                np.array([1], np.int16),
            ),
        ),
    )


PLACEMENT = """
import sys
from pathlib import Path
from hmd.trace.reader import read_trace
(change,) = read_trace(Path(sys.argv[1])).placement
print(*change.by_page()[0].tolist())
"""


@pytest.mark.parametrize("page_bytes", OTHERS)
def test_trace_of_another_machine_is_read_in_its_pages(page_bytes: int, tmp_path: Path) -> None:
    path = tmp_path / "other.hmdt"
    write_trace(path, trace_of(page_bytes))
    with pytest.raises(PageSizeError, match=f"HMD_PAGE_BYTES={page_bytes}"):
        read_trace(path)
    assert "prog" in run(None, "-m", "hmd", "trace", "info", "--salvage", str(path))
    pages = run(page_bytes, "-c", PLACEMENT, str(path)).split()
    assert pages == [str((16 + i) * page_bytes) for i in range(3)]


def test_trace_of_unknown_pages_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "odd.hmdt"
    write_trace(path, trace_of(12288))
    with pytest.raises(Exception, match="pages of 12288 bytes"):
        read_trace(path)


def test_daemon_refuses_pages_that_are_not_the_kernel_s() -> None:
    sample = """
from hmd.base.errors import MissingError
from hmd.sample.sampler import SampleSettings
from hmd.sample.selection import open_sampler
try:
    open_sampler(SampleSettings())
except MissingError as error:
    print(error)
"""
    assert "unset it" in run(OTHERS[0], "-c", sample)
