"""The kernel features that hmd uses, probed by use.

Kernel versions are not compared: distributions backport features and leave others out. Probes the
native module and the calling process. Costs a few milliseconds.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from pathlib import Path

from hmd.machine.checks.diagnostic import Diagnostic, Severity
from hmd.machine.damon.damon_ownership import damon_finding
from hmd.machine.nodes.hugetlb_pools import hugetlb_finding
from hmd.machine.nodes.numa_nodes import read_topology
from hmd.machine.nodes.tiers import kernel_tiers, tier_warning
from hmd.machine.nodes.topology import Topology
from hmd.machine.pages.huge_pages import HugeSource, read_huge_pages
from hmd.machine.pages.mappings import read_mappings
from hmd.machine.process_id import PROC
from hmd.machine.procfs import format_ids
from hmd.units import PAGE_BYTES

_SYSFS = Path("/sys")


def feature_findings(proc: Path = PROC, sysfs: Path = _SYSFS) -> tuple[Diagnostic, ...]:
    """Return what the kernel and the native module can do."""
    return (
        _move_pages(),
        page_size_finding(),
        _memory_tiers(sysfs),
        _pidfd(),
        _huge_page_knowledge(proc),
        hugetlb_finding(sysfs),
        damon_finding(sysfs),
    )


def topology_finding(sysfs: Path = _SYSFS) -> Diagnostic:
    """Return whether there is fast and slow memory. Raises MissingError without NUMA nodes."""
    topology = read_topology(sysfs)
    warning = tier_warning(topology)
    order = " then ".join(format_ids(tier) for tier in topology.tiers)
    state = f"nodes {order}, by {topology.tier_source}"
    if warning is None:
        return Diagnostic("memory tiers", Severity.OK, state)
    what, _, action = warning.rpartition("; ")
    return Diagnostic("memory tiers", _tier_level(topology), state, what, action)


def _tier_level(topology: Topology) -> Severity:
    """One node has no tiers; a wrong or missing ranking can be configured."""
    return Severity.FAIL if len(topology.nodes) < 2 else Severity.WARN


def _move_pages() -> Diagnostic:
    """Query the node of a page of our own."""
    name = "move_pages"
    try:
        import numpy as np

        from hmd.machine.pages.move_pages import query_nodes
    except ImportError as error:
        return Diagnostic(
            name,
            Severity.FAIL,
            f"the native module does not load: {error}",
            "hmd moves and samples through it; it needs libnuma.so.1",
            "apt install libnuma1, then install hmd again",
        )
    page = mmap.mmap(-1, mmap.PAGESIZE)
    page[0] = 1
    held = ctypes.c_char.from_buffer(page)
    node = int(query_nodes(os.getpid(), np.array([ctypes.addressof(held)], np.uint64))[0])
    del held
    page.close()
    if node >= 0:
        return Diagnostic(name, Severity.OK, f"works (a page of this process is on node {node})")
    return Diagnostic(
        name,
        Severity.FAIL,
        f"refused: {errno.errorcode.get(-node, str(-node))}",
        "hmd moves pages with it; a seccomp profile or a kernel without CONFIG_NUMA refuses it",
        "in a container allow move_pages in the seccomp profile; else use a kernel with NUMA",
    )


def page_size_finding(page_bytes: int = mmap.PAGESIZE) -> Diagnostic:
    """Return whether the kernel's page size is that of hmd."""
    state = f"{page_bytes >> 10} KiB"
    if page_bytes == PAGE_BYTES:
        return Diagnostic("page size", Severity.OK, state)
    return Diagnostic(
        "page size",
        Severity.FAIL,
        f"{state}, not 4 KiB",
        "hmd counts heat and moves by pages of 4 KiB, of which the kernel knows several as one",
        "boot a kernel with pages of 4 KiB (on ARM, CONFIG_ARM64_4K_PAGES)",
    )


def _memory_tiers(sysfs: Path) -> Diagnostic:
    name = "kernel memory tiers"
    tiers = kernel_tiers(sysfs)
    if tiers:
        return Diagnostic(name, Severity.OK, f"{len(tiers)} in /sys/devices/virtual/memory_tiering")
    return Diagnostic(
        name,
        Severity.WARN,
        "not in this kernel",
        "it ranks nodes (from Linux 6.1); without it HMAT figures and CPUs have to do",
        "check `hmd topology`, and configure `tiers:` where it is wrong",
    )


def _pidfd() -> Diagnostic:
    name = "pidfd"
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return Diagnostic(
            name,
            Severity.OK,
            f"not usable: {error.strerror}",
            "exits of processes are noticed at the next scan instead",
        )
    return Diagnostic(name, Severity.OK, "exits of processes are noticed at once")


def _huge_page_knowledge(proc: Path) -> Diagnostic:
    name = "huge page knowledge"
    mappings = read_mappings(os.getpid(), proc)
    found = read_huge_pages(os.getpid(), mappings, proc) if mappings else None
    if found is not None and found.source != HugeSource.SMAPS:
        return Diagnostic(name, Severity.OK, f"exact, from {found.source}")
    return Diagnostic(
        name,
        Severity.WARN,
        "only whole mappings, from smaps" if found else "none",
        "a huge page that is not known as one is weighed and moved page by page",
        "use Linux 6.7 or newer (PAGEMAP_SCAN), or grant CAP_SYS_ADMIN (kpageflags)",
    )
