# SPDX-License-Identifier: MIT
"""What this machine permits and what else runs on it: diagnostics for ``hmd doctor`` and the log.

Features are probed by use: kernel versions are not compared, since distributions backport features
and leave others out. The effect of each capability was measured on Linux 6.18 with an unprivileged
caller and a target of another user (capabilities(7), move_pages(2), perf_event_open(2)). Conflicts
are other movers of pages and users of the counters. Costs a few milliseconds and one small read
per process.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from pathlib import Path
from typing import Final

from hmd.base.errors import Diagnostic, Severity
from hmd.base.units import HUGE_PAGE_BYTES, PAGE_BYTES, PAGE_SIZE_VARIABLE, PAGE_SIZES
from hmd.linux.damon import NOT_READABLE, Kdamonds, damon_finding, holder
from hmd.linux.huge_pages import HugeSource, huge_source
from hmd.linux.mappings import runs_guests
from hmd.linux.memory_policy import bound_processes
from hmd.linux.node_memory import hugetlb_finding
from hmd.linux.procfs import PROC, SYSFS, chosen, format_ids, list_pids, read_int, read_text
from hmd.linux.topology import kernel_tiers, read_topology, tier_warning

_DAMOS_MOVERS = frozenset({"migrate_hot", "migrate_cold", "pageout", "lru_prio", "lru_deprio"})
_EFFECTIVE = re.compile(r"^CapEff:\s*([0-9a-f]{1,16})$", re.MULTILINE)
_OPEN_FILES = re.compile(r"^Max open files\s+(\d+|unlimited)", re.MULTILINE)
_GRANT = "AmbientCapabilities={0} in the unit, or run as root"

# Processes that a line names.
_MAX_DESCRIPTORS: Final = 256
_LISTED = 4

# A ring per CPU and event and a pidfd per process must fit, in addition to ordinary files.
_FEW_FILES = 4096

PERFMON_ENOUGH = 2
"""The highest kernel.perf_event_paranoid at which every kernel lets CAP_PERFMON open events."""


def feature_findings(proc: Path = PROC, sysfs: Path = SYSFS) -> tuple[Diagnostic, ...]:
    """Return what the kernel and the native module can do."""
    return (
        move_pages_finding(),
        page_size_finding(),
        _memory_tiers(sysfs),
        _pidfd(),
        _huge_page_knowledge(proc),
        hugetlb_finding(sysfs),
        damon_finding(sysfs),
    )


def topology_finding(sysfs: Path = SYSFS) -> Diagnostic:
    """Return whether there is fast and slow memory. Raises MissingError without NUMA nodes."""
    topology = read_topology(sysfs)
    warning = tier_warning(topology)
    order = " then ".join(format_ids(tier) for tier in topology.tiers)
    state = f"nodes {order}, by {topology.tier_source}"
    if warning is None:
        return Diagnostic("memory tiers", Severity.OK, state)
    what, _, action = warning.rpartition("; ")
    # One node has no tiers; a wrong or missing ranking can be configured.
    level = Severity.FAIL if len(topology.nodes) < 2 else Severity.WARN
    return Diagnostic("memory tiers", level, state, what, action)


def move_pages_finding() -> Diagnostic:
    """Query the node of a page of our own."""
    name = "move_pages"
    try:
        from hmd.linux.page_calls import probe_own_page
    except ImportError as error:
        return Diagnostic(
            name,
            Severity.FAIL,
            f"the native module does not load: {error}",
            "hmd moves and samples through it; it needs libnuma.so.1",
            "apt install libnuma1, then install hmd again",
        )
    node = probe_own_page()
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
    """Return whether the kernel's page size is one that hmd knows, and that it counts in."""
    state = f"{page_bytes >> 10} KiB"
    if page_bytes != PAGE_BYTES:
        return Diagnostic(
            "page size",
            Severity.FAIL,
            f"{state}, but {PAGE_SIZE_VARIABLE} says {PAGE_BYTES >> 10} KiB",
            "hmd moves pages of this kernel by its addresses and counts",
            f"unset {PAGE_SIZE_VARIABLE}: it is for traces of other machines",
        )
    if page_bytes in PAGE_SIZES:
        huge = HUGE_PAGE_BYTES >> 20
        return Diagnostic("page size", Severity.OK, f"{state}, huge pages of {huge} MiB")
    return Diagnostic(
        "page size",
        Severity.FAIL,
        f"{state}, not 4, 16 or 64 KiB",
        "hmd knows no kernel with such pages, and has no test of them",
        "boot a kernel with pages of 4, 16 or 64 KiB",
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
        "check `hmd topology`, and configure `machine: {tiers: …}` where it is wrong",
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
    source = huge_source(proc)
    if source != HugeSource.SMAPS:
        return Diagnostic(name, Severity.OK, f"exact, from {source}")
    return Diagnostic(
        name,
        Severity.WARN,
        "only whole mappings, from smaps",
        "a huge page that is not known as one is weighed and moved page by page",
        "use Linux 6.7 or newer (PAGEMAP_SCAN), or grant CAP_SYS_ADMIN (kpageflags)",
    )


def competing_findings(proc: Path = PROC, sysfs: Path = SYSFS) -> tuple[Diagnostic, ...]:
    """Return a diagnostic for each such feature of this kernel, whether it conflicts or not."""
    findings = (
        _numa_balancing(proc),
        _switch(
            "demotion by reclaim",
            sysfs / "kernel/mm/numa/demotion_enabled",
            "under pressure the kernel demotes by its LRU order, also pages that hmd counts as hot",
            "echo 0 > /sys/kernel/mm/numa/demotion_enabled",
        ),
        _numad(proc),
        _switch(
            "zone reclaim",
            proc / "sys/vm/zone_reclaim_mode",
            "a node that fills is reclaimed instead of spilling over: promotions evict page cache",
            "sysctl -w vm.zone_reclaim_mode=0",
            "on (mode {0})",
        ),
        _switch(
            "damon_reclaim",
            *_module(sysfs, "damon_reclaim", "pages out cold memory by its own counts"),
        ),
        _switch(
            "damon_lru_sort",
            *_module(sysfs, "damon_lru_sort", "reorders the LRU lists that demotion follows"),
        ),
        _switch(
            "damon_stat",
            *_module(sysfs, "damon_stat", "has DAMON for itself alone, so that hmd cannot use it"),
        ),
        _damon_schemes(sysfs),
        _memory_policies(proc),
        _virtual_machines(proc),
        _ksm(sysfs),
        _transparent_huge_pages(sysfs),
    )
    return tuple(f for f in findings if f is not None)


def _numa_balancing(proc: Path) -> Diagnostic | None:
    path = proc / "sys/kernel/numa_balancing"
    value = read_int(path) or 0
    # Bit 0: move to the accessing CPU; bit 1: promote from slow tiers (sysctl/kernel.rst).
    modes = ["places pages by CPU"] * (value & 1) + ["promotes from slow tiers"] * (value >> 1 & 1)
    return _switch(
        "NUMA balancing",
        path,
        "the kernel moves the same pages by its own hint faults, and each fault costs the program; "
        "mode 1 also keeps threads near their memory, which programs on several sockets may miss",
        "sysctl -w kernel.numa_balancing=0",
        f"on ({{0}}: {', '.join(modes) or 'unknown mode'})",
    )


def _numad(proc: Path) -> Diagnostic:
    name = "numad"
    pids = [str(pid) for pid in list_pids(proc) if read_text(f"{proc}/{pid}/comm") == "numad"]
    if not pids:
        return Diagnostic(name, Severity.OK, "not running")
    return Diagnostic(
        name,
        Severity.WARN,
        f"running (pid {', '.join(pids)})",
        "numad moves whole processes between nodes by its own measure",
        "systemctl disable --now numad",
    )


def _listed(found: Sequence[object]) -> str:
    """Return the first of what was found, and how many more there are."""
    more = f" and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
    return ", ".join(map(str, found[:_LISTED])) + more


def _switch(name: str, path: Path, why: str, action: str, state: str = "on") -> Diagnostic | None:
    """Return whether a file switches a feature of the kernel on, which conflicts; None without it.

    ``state`` is that of the feature while it is on, in which ``{0}`` is what the file has.
    """
    value = read_text(path)
    if value is None:
        return None
    if value.strip() in ("", "0", "N", "n", "false"):
        return Diagnostic(name, Severity.OK, "off")
    return Diagnostic(name, Severity.WARN, state.format(value.strip()), why, action)


def _module(sysfs: Path, module: str, effect: str) -> tuple[Path, str, str]:
    """Return what ``_switch`` takes of a kernel module besides a name."""
    action = f"echo N > /sys/module/{module}/parameters/enabled"
    return sysfs / f"module/{module}/parameters/enabled", effect, action


def _damon_schemes(sysfs: Path) -> Diagnostic | None:
    """Look for running DAMON threads whose schemes move pages (mm/damon/usage.rst)."""
    name = "DAMON schemes"
    kdamonds = Kdamonds(sysfs)
    if not kdamonds.path.is_dir():
        return None
    moving: list[str] = []
    for thread in sorted(kdamonds.path.glob("[0-9]*")):
        if read_text(thread / "state") is None:
            return Diagnostic(name, Severity.WARN, "not known", NOT_READABLE, "run it as root")
        if not kdamonds.is_on(int(thread.name)):
            continue
        actions = {read_text(p) or "" for p in thread.glob("contexts/*/schemes/*/action")}
        moving += [f"{thread.name}: {action}" for action in sorted(actions & _DAMOS_MOVERS)]
    if not moving:
        return Diagnostic(name, Severity.OK, "none that moves pages")
    owner = holder(kdamonds)
    if owner is not None and not owner.left:
        return Diagnostic(name, Severity.OK, f"those of hmd (pid {owner.pid}) alone")
    first = moving[0].split(":")[0]
    return Diagnostic(
        name,
        Severity.WARN,
        f"running (kdamond {'; '.join(moving)})",
        "DAMON moves or evicts pages by its own region counts",
        f"echo off > /sys/kernel/mm/damon/admin/kdamonds/{first}/state",
    )


def _memory_policies(proc: Path) -> Diagnostic | None:
    """Look for processes that are bound to nodes as a whole."""
    name = "memory policies"
    if not (proc / "self/numa_maps").exists():
        return None
    bound = [f"{pid} to {format_ids(nodes)}" for pid, nodes in bound_processes(proc)]
    if not bound:
        return Diagnostic(name, Severity.OK, "no process is bound to nodes")
    return Diagnostic(
        name,
        Severity.OK,
        f"{len(bound)} bound (pid {_listed(bound)})",
        "hmd leaves pages on the nodes that MPOL_BIND (numactl --membind) binds them to",
    )


def _virtual_machines(proc: Path) -> Diagnostic | None:
    """Look for processes that run virtual machines of KVM."""
    found = [pid for pid in list_pids(proc) if runs_guests(_open_files(proc / f"{pid}/fd"))]
    if not found:
        return None
    return Diagnostic(
        "virtual machines",
        Severity.OK,
        f"{len(found)} of KVM (pid {_listed(found)})",
        "pmu, spe and faults do not see what guests access: with these samplers, their pages stay"
        " where they are",
        "set sampler to damon or idle where targets are virtual machines",
    )


def _open_files(folder: Path) -> Iterator[str]:
    """Yield what the first descriptors of a process are: maps may take a second to read."""
    with suppress(OSError):
        for descriptor in islice(folder.iterdir(), _MAX_DESCRIPTORS):
            yield str(descriptor.readlink())


def _ksm(sysfs: Path) -> Diagnostic | None:
    name = "same-page merging"
    folder = sysfs / "kernel/mm/ksm"
    running = read_int(folder / "run")
    if running is None:
        return None
    if running != 1 or read_int(folder / "merge_across_nodes") == 0:
        return Diagnostic(name, Severity.OK, "off" if running != 1 else "on, within each node")
    return Diagnostic(
        name,
        Severity.OK,
        f"on ({read_int(folder / 'pages_shared') or 0} pages shared)",
        "KSM merges pages of all nodes: what it has merged moves only with `move_all: true`",
    )


def _transparent_huge_pages(sysfs: Path) -> Diagnostic | None:
    name = "transparent huge pages"
    folder = sysfs / "kernel/mm/transparent_hugepage"
    enabled = chosen(read_text(folder / "enabled"))
    if enabled is None:
        return None
    defrag = chosen(read_text(folder / "defrag")) or "unknown"
    why = ""
    if enabled == "always":
        why = "huge pages move whole: all follow one hot base page; hmd weighs them as one"
    return Diagnostic(name, Severity.OK, f"{enabled} (defrag {defrag})", why)


class Capability(IntEnum):
    """The capabilities that hmd uses (linux/capability.h)."""

    DAC_OVERRIDE = 1
    DAC_READ_SEARCH = 2
    IPC_LOCK = 14
    SYS_PTRACE = 19
    SYS_ADMIN = 21
    SYS_NICE = 23
    PERFMON = 38


@dataclass(frozen=True, slots=True)
class Privileges:
    """Effective capabilities, sysctls and limits; None where the file is absent.

    ``open_files`` is -1 where there is no limit. ``perf_refusal`` is the errno with which an event
    of a CPU was refused, 0 where it was opened or not tried.
    """

    capabilities: frozenset[Capability]
    perf_event_paranoid: int | None
    perf_event_mlock_kib: int | None
    open_files: int | None
    perf_refusal: int = 0

    def has(self, capability: Capability) -> bool:
        """Return True where ``capability`` is in effect."""
        return capability in self.capabilities

    @property
    def may_sample(self) -> bool:
        """True where perf events on other users' processes may be opened (or CAP_SYS_ADMIN)."""
        return (
            (self.has(Capability.PERFMON) and not self.perf_for_admins)
            or self.has(Capability.SYS_ADMIN)
            or (self.perf_event_paranoid is not None and self.perf_event_paranoid < 0)
        )

    @property
    def perf_for_admins(self) -> bool:
        """True where CAP_PERFMON may not be enough: above 2, the highest that Linux itself knows.

        Debian's and Ubuntu's kernels then keep perf_event_open(2) for CAP_SYS_ADMIN.
        """
        return self.perf_event_paranoid is not None and self.perf_event_paranoid > PERFMON_ENOUGH


def read_privileges(proc: Path = PROC) -> Privileges:
    """Return the privileges of this process; on this machine, an event of a CPU is opened."""
    kernel = proc / "sys/kernel"
    return Privileges(
        capabilities=parse_capabilities(read_text(proc / "self/status") or ""),
        perf_event_paranoid=read_int(kernel / "perf_event_paranoid"),
        perf_event_mlock_kib=read_int(kernel / "perf_event_mlock_kb"),
        open_files=parse_open_files(read_text(proc / "self/limits") or ""),
        perf_refusal=_probe_events() if proc == PROC else 0,
    )


def _probe_events() -> int:
    """Open an event of a CPU, as samplers do; return the errno where that is refused."""
    from hmd._native import lib

    fd = int(lib.hmd_perf_open_log(min(os.sched_getaffinity(0)), 0))
    if fd >= 0:
        os.close(fd)
    return -min(fd, 0)


def parse_capabilities(status: str) -> frozenset[Capability]:
    """Return the effective capabilities of a /proc/PID/status; none where the line is missing."""
    match = _EFFECTIVE.search(status)
    mask = int(match.group(1), 16) if match else 0
    return frozenset(c for c in Capability if mask >> c & 1)


def parse_open_files(limits: str) -> int | None:
    """Return the soft limit of descriptors of a /proc/PID/limits, -1 for unlimited."""
    match = _OPEN_FILES.search(limits)
    if match is None:
        return None
    return -1 if match.group(1) == "unlimited" else int(match.group(1))


def privilege_findings(privileges: Privileges) -> tuple[Diagnostic, ...]:
    """Return what works with these privileges and what does not."""
    return (
        _capability(
            privileges,
            Capability.SYS_PTRACE,
            "move pages",
            Severity.FAIL,
            ("pages of all processes", "only processes of this user"),
            "move_pages(2), maps and smaps of other users' processes need it",
        ),
        _capability(
            privileges,
            Capability.SYS_NICE,
            "move shared pages",
            Severity.WARN,
            (
                "also pages that several processes map",
                "pages that several processes map stay where they are",
            ),
            "MPOL_MF_MOVE_ALL needs it (only with `migrate: move_all: true`)",
        ),
        _sampling(privileges),
        _ring_memory(privileges),
        _frames(privileges),
        _descriptors(privileges),
    )


def _capability(
    privileges: Privileges,
    needed: Capability,
    name: str,
    level: Severity,
    states: tuple[str, str],
    why: str,
) -> Diagnostic:
    """Return whether a capability is in effect; ``states`` are with it and without it."""
    capability, (with_it, without) = f"CAP_{needed.name}", states
    if privileges.has(needed):
        return Diagnostic(name, Severity.OK, f"{capability}: {with_it}")
    return Diagnostic(name, level, f"no {capability}: {without}", why, _GRANT.format(capability))


def _sampling(privileges: Privileges) -> Diagnostic:
    name = "sample accesses"
    paranoid = privileges.perf_event_paranoid
    if paranoid is None:
        return Diagnostic(
            name,
            Severity.FAIL,
            "this kernel has no perf events",
            "samplers read hardware and software events through perf_event_open(2)",
            "use a kernel with CONFIG_PERF_EVENTS",
        )
    if privileges.may_sample and privileges.perf_refusal:
        return Diagnostic(
            name,
            Severity.FAIL,
            f"perf_event_open(2) is refused: {errno.errorcode.get(privileges.perf_refusal)}",
            "privileges and perf_event_paranoid permit it: a seccomp profile or a security module "
            "does not",
            "in a container allow perf_event_open in the seccomp profile",
        )
    if privileges.may_sample:
        service = ": the service's user needs 2" if privileges.perf_for_admins else ""
        state = f"perf events allowed (perf_event_paranoid {paranoid}{service})"
        return Diagnostic(name, Severity.OK, state)
    if privileges.has(Capability.PERFMON):
        return Diagnostic(
            name,
            Severity.WARN,
            f"CAP_PERFMON, but perf_event_paranoid is {paranoid}",
            "kernels of Debian and Ubuntu then keep perf_event_open(2) for CAP_SYS_ADMIN",
            f"sysctl -w kernel.perf_event_paranoid={PERFMON_ENOUGH}",
        )
    return Diagnostic(
        name,
        Severity.FAIL,
        f"no CAP_PERFMON and perf_event_paranoid is {paranoid}",
        "perf_event_open(2) refuses events on other users' processes",
        _GRANT.format("CAP_PERFMON"),
    )


def _ring_memory(privileges: Privileges) -> Diagnostic:
    name = "memory of sample rings"
    kib = privileges.perf_event_mlock_kib
    if privileges.has(Capability.IPC_LOCK) or privileges.perf_event_paranoid == -1:
        return Diagnostic(name, Severity.OK, "CAP_IPC_LOCK: rings of any size")
    if kib is not None and kib >= 516:
        return Diagnostic(name, Severity.OK, f"{kib} KiB per CPU (perf_event_mlock_kb)")
    return Diagnostic(
        name,
        Severity.WARN,
        f"{kib} KiB per CPU (perf_event_mlock_kb)",
        "mmap of a ring past that fails, and small rings lose samples",
        "sysctl -w kernel.perf_event_mlock_kb=516",
    )


def _frames(privileges: Privileges) -> Diagnostic:
    name = "physical addresses"
    needed = (Capability.DAC_READ_SEARCH, Capability.SYS_ADMIN)
    lacking = [f"CAP_{c.name}" for c in needed if not privileges.has(c)]
    if not lacking:
        return Diagnostic(name, Severity.OK, "frame numbers in pagemap, and kpageflags")
    return Diagnostic(
        name,
        Severity.OK,
        f"no {', '.join(lacking)}: frame numbers are hidden",
        "only samplers that give physical addresses and the emulated machine need them",
    )


def _descriptors(privileges: Privileges) -> Diagnostic:
    name = "open files"
    limit = privileges.open_files
    if limit is None or limit < 0 or limit >= _FEW_FILES:
        return Diagnostic(name, Severity.OK, "unlimited" if limit == -1 else f"{limit} descriptors")
    return Diagnostic(
        name,
        Severity.WARN,
        f"{limit} descriptors",
        "a ring takes one for each CPU and event, a watched process one",
        "LimitNOFILE=65536 in the unit, or `ulimit -n 65536`",
    )
