# SPDX-License-Identifier: MIT
"""The files of /proc and /sys by which hmd judges a machine, without what is personal.

Only what the tables here name: no names of hosts, users or processes (but numad's, which doctor
looks for), no serial numbers, no addresses, no command lines. In the tar file, ``proc/`` and
``sys/`` are a machine as those of tests/fixtures are.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from hmd.base.errors import os_error

MAX_FILE_BYTES: Final = 1 << 16
_MAX_CPUS: Final = 2
"""CPUs in /proc/cpuinfo: the others are alike, or are told apart in /sys."""

_PROC: Final = (
    "sys/kernel/numa_balancing",
    "sys/kernel/nmi_watchdog",
    "sys/kernel/osrelease",
    "sys/kernel/perf_cpu_time_max_percent",
    "sys/kernel/perf_event_max_sample_rate",
    "sys/kernel/perf_event_mlock_kb",
    "sys/kernel/perf_event_paranoid",
    "sys/vm/zone_reclaim_mode",
    "swaps",
)
_SYSFS: Final = (
    "bus/event_source/devices/*/cap*/*",
    "bus/event_source/devices/*/cpu*",
    "bus/event_source/devices/*/events/*",
    "bus/event_source/devices/*/format/*",
    "bus/event_source/devices/*/type",
    "devices/system/cpu/cpu0/acpi_cppc/*",
    "devices/system/cpu/cpu0/cache/*/*",
    "devices/system/cpu/cpu*/cpufreq/base_frequency",
    "devices/system/cpu/online",
    "devices/system/node/has_*",
    "devices/system/node/node*/access*/initiators/*",
    "devices/system/node/node*/cpulist",
    "devices/system/node/node*/distance",
    "devices/system/node/node*/hugepages/*/*",
    "devices/system/node/node*/meminfo",
    "devices/system/node/online",
    "devices/system/node/possible",
    "devices/virtual/memory_tiering/*/nodelist",
    "kernel/mm/damon/admin/kdamonds/nr_kdamonds",
    "kernel/mm/damon/admin/kdamonds/*/state",
    "kernel/mm/damon/admin/kdamonds/*/contexts/*/schemes/*/action",
    "kernel/mm/damon/admin/kdamonds/*/contexts/nr_contexts",
    "class/block/*/size",
    "kernel/mm/lru_gen/enabled",
    "kernel/mm/numa/demotion_enabled",
    "kernel/mm/transparent_hugepage/defrag",
    "kernel/mm/transparent_hugepage/enabled",
    "module/damon_*/parameters/enabled",
    "module/zswap/parameters/enabled",
    "module/zswap/parameters/max_pool_percent",
)
_LINES: Final = {
    "self/status": re.compile(r"^CapEff:\s*[0-9a-f]+\n", re.MULTILINE),
    "self/limits": re.compile(r"^Max open files .*\n", re.MULTILINE),
}
"""Of these files of /proc, the lines that are kept."""
_CPU_SECRETS: Final = re.compile(r"^[^:\n]*serial[^:\n]*:.*\n?", re.MULTILINE | re.IGNORECASE)


def collect_files(proc: Path, sysfs: Path) -> dict[str, str]:
    """Return the contents of the files by their paths, which begin with ``proc/`` or ``sys/``."""
    found = {f"proc/{name}": _read(proc / name) for name in _PROC}
    cpus = _CPU_SECRETS.sub("", _read(proc / "cpuinfo") or "").split("\n\n")
    found["proc/cpuinfo"] = "\n\n".join(cpus[:_MAX_CPUS]).rstrip("\n") + "\n\n"
    for name, kept in _LINES.items():
        found[f"proc/{name}"] = "".join(kept.findall(_read(proc / name) or ""))
    for entry in proc.iterdir():
        if entry.name.isdigit() and (_read(entry / "comm") or "").strip() == "numad":
            found[f"proc/{entry.name}/comm"] = "numad\n"
    for path in sorted({path for pattern in _SYSFS for path in sysfs.glob(pattern)}):
        if path.is_file():
            found[f"sys/{path.relative_to(sysfs)}"] = _read(path)
    return {name: text for name, text in found.items() if text and len(text) <= MAX_FILE_BYTES}


def _read(path: Path) -> str | None:
    """Return a file's text, None where there is none or the kernel refuses to give it."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return None


def write_report(path: Path, files: Mapping[str, str]) -> None:
    """Write a tar file of these files, without owners and times; HmdError where that fails."""
    try:
        with tarfile.open(path, "w:gz") as archive:
            for name, text in sorted(files.items()):
                entry, data = tarfile.TarInfo(name), text.encode()
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
    except OSError as error:
        raise os_error(error, f"cannot write {path}: {error.strerror}") from None
