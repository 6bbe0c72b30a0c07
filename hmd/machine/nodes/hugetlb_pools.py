"""Pools of hugetlbfs pages, and what move_pages(2) does with such pages.

Of Linux 6.12, tried in the emulated machine: a page of 2 MiB moves whole, to a free page of the
target node's pool, or to a new one, with which its pool's room moves. A page of 1 GiB moves only to
a free page of that pool. Without one the call fails with ENOMEM, as on a full node, and the pages
that follow in it stay (alloc_hugetlb_folio_nodemask, mm/hugetlb.c; migrate_pages, mm/migrate.c).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from hmd.machine.checks.diagnostic import Diagnostic, Severity
from hmd.machine.procfs import read_int
from hmd.units import GIB, KIB, MIB

_POOL = re.compile(r"node(\d+)/hugepages/hugepages-(\d+)kB", re.ASCII)


def hugetlb_finding(sysfs: Path) -> Diagnostic:
    """Return whether the nodes' hugetlbfs pages can move."""
    name = "hugetlbfs pages"
    pools = [pool for pool in _pools(sysfs) if pool[1]]
    if not pools:
        return Diagnostic(name, Severity.OK, "none")
    counts: dict[int, int] = {}
    for size, pages, _ in pools:
        counts[size] = counts.get(size, 0) + pages
    state = ", ".join(f"{pages} of {_printed(size)}" for size, pages in sorted(counts.items()))
    if any(size >= GIB and pages > free for size, pages, free in pools):
        return Diagnostic(
            name,
            Severity.WARN,
            state,
            "a page of 1 GiB moves only to a free one of the target node's pool; hmd tries it "
            "again after a delay, which costs a failed call",
            "set `keep: [/anon_hugepage, /dev/hugepages]` for the targets, or keep free pages of "
            "1 GiB on each node",
        )
    return Diagnostic(name, Severity.OK, f"{state}; each moves whole")


def _pools(sysfs: Path) -> Iterator[tuple[int, int, int]]:
    """Yield bytes per page, pages and free pages of each node's pools."""
    folder = sysfs / "devices/system/node"
    for path in sorted(folder.glob("node*/hugepages/hugepages-*kB")):
        found = _POOL.fullmatch(str(path.relative_to(folder)))
        if found:
            pages = read_int(path / "nr_hugepages") or 0
            yield int(found[2]) * KIB, pages, read_int(path / "free_hugepages") or 0


def _printed(size: int) -> str:
    return f"{size // GIB} GiB" if size >= GIB else f"{size / MIB:g} MiB"
