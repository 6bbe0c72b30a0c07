"""The privileges of this process, and which parts of hmd work with them.

Reads /proc/self/status (effective capabilities), /proc/self/limits and the perf sysctls. Returns
diagnostics that name what to grant. The effect of each capability was measured on Linux 6.18 with
an unprivileged caller and a target of another user (capabilities(7), move_pages(2),
perf_event_open(2)).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from hmd.machine.checks.diagnostic import Diagnostic, Severity
from hmd.machine.process_id import PROC
from hmd.machine.procfs import read_int, read_text

_EFFECTIVE = re.compile(r"^CapEff:\s*([0-9a-f]{1,16})$", re.MULTILINE)
_OPEN_FILES = re.compile(r"^Max open files\s+(\d+|unlimited)", re.MULTILINE)
_GRANT = "AmbientCapabilities={0} in the unit, or run as root"
# A ring per CPU and event and a pidfd per process must fit, in addition to ordinary files.
_FEW_FILES = 4096


class Capability(IntEnum):
    """The capabilities that hmd uses (linux/capability.h)."""

    DAC_OVERRIDE = 1
    DAC_READ_SEARCH = 2
    IPC_LOCK = 14
    SYS_PTRACE = 19
    SYS_ADMIN = 21
    SYS_NICE = 23
    PERFMON = 38


PERFMON_ENOUGH = 2
"""The highest kernel.perf_event_paranoid at which every kernel lets CAP_PERFMON open events."""


@dataclass(frozen=True, slots=True)
class Privileges:
    """Effective capabilities, sysctls and limits; None where the file is absent.

    ``open_files`` is -1 where there is no limit.
    """

    capabilities: frozenset[Capability]
    perf_event_paranoid: int | None
    perf_event_mlock_kib: int | None
    open_files: int | None

    def has(self, capability: Capability) -> bool:
        """Return True where ``capability`` is in effect."""
        return capability in self.capabilities

    @property
    def may_sample(self) -> bool:
        """True where perf events on other users' processes may be opened.

        CAP_SYS_ADMIN includes what CAP_PERFMON gives (since Linux 5.8, which split it off).
        """
        return (
            (self.has(Capability.PERFMON) and not self.perf_for_admins)
            or self.has(Capability.SYS_ADMIN)
            or (self.perf_event_paranoid is not None and self.perf_event_paranoid < 0)
        )

    @property
    def perf_for_admins(self) -> bool:
        """True where CAP_PERFMON may not be enough.

        Linux itself knows values up to 2; Debian's and Ubuntu's kernels keep perf_event_open(2)
        for CAP_SYS_ADMIN above that; 3 and 4 are their defaults. Other kernels ignore such values.
        """
        return self.perf_event_paranoid is not None and self.perf_event_paranoid > PERFMON_ENOUGH


def read_privileges(proc: Path = PROC) -> Privileges:
    """Return the privileges of the calling process. Costs four small reads."""
    kernel = proc / "sys/kernel"
    return Privileges(
        capabilities=parse_capabilities(read_text(proc / "self/status") or ""),
        perf_event_paranoid=read_int(kernel / "perf_event_paranoid"),
        perf_event_mlock_kib=read_int(kernel / "perf_event_mlock_kb"),
        open_files=parse_open_files(read_text(proc / "self/limits") or ""),
    )


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
        _moving(privileges),
        _moving_shared(privileges),
        _sampling(privileges),
        _ring_memory(privileges),
        _frames(privileges),
        _descriptors(privileges),
    )


def _moving(privileges: Privileges) -> Diagnostic:
    name = "move pages"
    if privileges.has(Capability.SYS_PTRACE):
        return Diagnostic(name, Severity.OK, "CAP_SYS_PTRACE: pages of all processes")
    return Diagnostic(
        name,
        Severity.FAIL,
        "no CAP_SYS_PTRACE: only processes of this user",
        "move_pages(2), maps and smaps of other users' processes need it",
        _GRANT.format("CAP_SYS_PTRACE"),
    )


def _moving_shared(privileges: Privileges) -> Diagnostic:
    name = "move shared pages"
    if privileges.has(Capability.SYS_NICE):
        return Diagnostic(name, Severity.OK, "CAP_SYS_NICE: also pages that several processes map")
    return Diagnostic(
        name,
        Severity.WARN,
        "no CAP_SYS_NICE: pages that several processes map stay where they are",
        "MPOL_MF_MOVE_ALL needs it (only with `migrate: move_all: true`)",
        _GRANT.format("CAP_SYS_NICE"),
    )


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
