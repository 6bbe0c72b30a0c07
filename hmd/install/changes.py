"""The changes of ``hmd enable`` and ``hmd disable``, as data: files first, then commands.

Paths are those that systemd.unit(5), sysusers.d(5) and tmpfiles.d(5) reserve for administrators, so
that a package's own files (in /usr/lib) are overridden and never modified.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hmd.config.load import SYSTEM_FILE
from hmd.install import shipped_files
from hmd.machine.checks.privileges import PERFMON_ENOUGH, read_privileges
from hmd.machine.procfs import read_text
from hmd.sample.capabilities import CAPABILITIES

UNIT_NAME = "hmd.service"
UNIT = Path("/etc/systemd/system") / UNIT_NAME
SAMPLER = Path("/etc/systemd/system/hmd.service.d/10-sampler.conf")
PAGE_CACHE = Path("/etc/systemd/system/hmd.service.d/20-page-cache.conf")
SYSUSERS = Path("/etc/sysusers.d/hmd.conf")
TMPFILES = Path("/etc/tmpfiles.d/hmd.conf")
SYSCTL = Path("/etc/sysctl.d/60-hmd.conf")
CONFIG = SYSTEM_FILE

PACKAGED_UNITS = (Path("/usr/lib/systemd/system"), Path("/lib/systemd/system"))
PACKAGED_HMD = Path("/usr/bin/hmd")
MEMORY_SHARE_PERCENT = 5
"""Memory limit of the service on machines where that is more than the unit's own limit."""
_LEAST_MEMORY = "MemoryMax=4G"
_HIDDEN = {
    "home": ("ProtectHome=yes", "ProtectHome=read-only"),
    "root": ("ProtectHome=yes", "ProtectHome=read-only"),
    "tmp": ("PrivateTmp=yes", "PrivateTmp=no"),
}
"""Sandbox settings that hide a top-level folder, and those that leave it readable."""

_PERFMON = f"""\
# Above this value, the default of Linux, kernels of Debian and Ubuntu reserve perf events for
# CAP_SYS_ADMIN; hmd has only CAP_PERFMON. Users may then profile their own programs.
kernel.perf_event_paranoid = {PERFMON_ENOUGH}
"""


@dataclass(frozen=True, slots=True)
class FileChange:
    """The contents of a file before and after; None if it does not exist."""

    path: Path
    before: str | None
    after: str | None

    @property
    def kind(self) -> str:
        """What happens to it: create, change, remove, or keep."""
        if self.before == self.after:
            return "keep"
        if self.before is None:
            return "create"
        return "remove" if self.after is None else "change"

    def diff(self) -> str:
        """Return the change of an existing file as a unified diff."""
        before, after = (self.before or "").splitlines(True), (self.after or "").splitlines(True)
        name = str(self.path)
        return "".join(difflib.unified_diff(before, after, name, f"{name} (new)"))

    def apply(self) -> None:
        """Write or remove the file, atomically; raises OSError."""
        if self.after is None:
            self.path.unlink(missing_ok=True)
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_name(f".{self.path.name}.new")
        fresh.write_text(self.after)
        fresh.chmod(0o644)
        fresh.replace(self.path)


@dataclass(frozen=True, slots=True)
class InstallChanges:
    """Commands before, file changes, commands after, and notes for the administrator."""

    files: tuple[FileChange, ...]
    commands: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]
    before: tuple[tuple[str, ...], ...] = ()

    @property
    def changes(self) -> tuple[FileChange, ...]:
        """The files whose contents change."""
        return tuple(file for file in self.files if file.kind != "keep")


def plan_enable(
    folder: Path,
    hmd: Path,
    sampler: str,
    *,
    start: bool,
    root: Path,
    demotes_cache: bool = False,
) -> InstallChanges:
    """Return the changes that make hmd start at boot; ``folder`` contains the shipped files.

    ``hmd`` is the command that the unit runs, ``sampler`` the one that works here, ``root`` the
    machine's root directory. With ``start`` the service is also started or restarted. With
    ``demotes_cache`` it may use DAMON, whatever the sampler.
    """
    wanted: list[tuple[Path, str | None]] = [(CONFIG, _config(folder, root))]
    packaged = hmd == PACKAGED_HMD and any(
        (root / path.relative_to("/") / UNIT_NAME).is_file() for path in PACKAGED_UNITS
    )
    if not packaged:
        wanted += [
            (SYSUSERS, (folder / shipped_files.SYSUSERS).read_text()),
            (TMPFILES, (folder / shipped_files.TMPFILES).read_text()),
            (UNIT, _unit((folder / shipped_files.UNIT).read_text(), hmd, root)),
        ]
    drop_in = shipped_files.sampler_drop_in(folder, sampler)
    wanted.append((SAMPLER, drop_in.read_text() if drop_in is not None else None))
    damon = shipped_files.sampler_drop_in(folder, "damon") if demotes_cache else None
    damon = damon if damon != drop_in else None
    wanted.append((PAGE_CACHE, damon.read_text() if damon is not None else None))
    commands = [("systemd-sysusers",), ("systemd-tmpfiles", "--create", TMPFILES.name)]
    if _opens_perf_events(sampler) and read_privileges(root / "proc").perf_for_admins:
        wanted.append((SYSCTL, _PERFMON))
        commands.append(("sysctl", "-p", str(SYSCTL)))
    commands += [("systemctl", "daemon-reload"), ("systemctl", "enable", UNIT_NAME)]
    if start:
        commands.append(("systemctl", "restart", UNIT_NAME))
    notes = [f"sampler: {sampler}" + (f", which needs {drop_in.name}" if drop_in else "")]
    if damon is not None:
        notes.append(f"migrate.cache_headroom, which needs {damon.name}")
    return InstallChanges(_changes(wanted, root), tuple(commands), tuple(notes))


def plan_disable(root: Path) -> InstallChanges:
    """Return the changes that remove the service; configuration and /var/lib/hmd stay."""
    files = [(path, None) for path in (UNIT, SAMPLER, PAGE_CACHE, SYSUSERS, TMPFILES, SYSCTL)]
    return InstallChanges(
        _changes(files, root),
        (("systemctl", "daemon-reload"),),
        (f"{CONFIG} and /var/lib/hmd stay",),
        before=(("systemctl", "disable", "--now", UNIT_NAME),),
    )


def _changes(wanted: Sequence[tuple[Path, str | None]], root: Path) -> tuple[FileChange, ...]:
    changes = []
    for path, after in wanted:
        there = root / path.relative_to("/")
        changes.append(FileChange(there, there.read_text() if there.is_file() else None, after))
    return tuple(change for change in changes if (change.before, change.after) != (None, None))


def _config(folder: Path, root: Path) -> str:
    """Return the existing configuration, else the example."""
    there = root / CONFIG.relative_to("/")
    return (there if there.is_file() else folder / shipped_files.CONFIG).read_text()


def _unit(text: str, hmd: Path, root: Path) -> str:
    """Return the unit with the path of ``hmd``, which its sandbox must not hide.

    Its memory limit follows the machine's memory, as heat does.
    """
    text = text.replace(str(PACKAGED_HMD), str(hmd))
    found = re.search(r"^MemTotal: +(\d+) kB", read_text(root / "proc/meminfo") or "", re.M)
    share_gib = int(found.group(1)) * MEMORY_SHARE_PERCENT // 100 >> 20 if found else 0
    text = text.replace(_LEAST_MEMORY, max(_LEAST_MEMORY, f"MemoryMax={share_gib}G", key=_gib))
    if hmd.parts[1] in _HIDDEN:
        hides, shows = _HIDDEN[hmd.parts[1]]
        text = text.replace(hides, f"# {hmd} is there.\n{shows}")
    return text


def _gib(limit: str) -> int:
    """Return the GiB of a memory limit."""
    return int(limit.removeprefix("MemoryMax=").removesuffix("G"))


def _opens_perf_events(sampler: str) -> bool:
    return any(name == sampler and able.perf_events for name, able in CAPABILITIES.items())
