# SPDX-License-Identifier: MIT
"""What ``hmd enable`` and ``hmd disable`` change, as data: files first, then commands.

Paths are those that systemd.unit(5), sysusers.d(5) and tmpfiles.d(5) reserve for administrators, so
that a package's own files (in /usr/lib) are overridden and never modified.

The service has CAP_SYS_PTRACE: a user who may write a program or a library that it runs, or a
folder on the way to one, gets that too. :func:`list_untrusted` finds such files.
"""

from __future__ import annotations

import difflib
import os
import re
import stat
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import hmd
from hmd.base.errors import MissingError, UsageError
from hmd.base.paths import CONFIG_FILE, STATE_FOLDER
from hmd.base.quantities import parse_size
from hmd.daemon.nbd_client import PORT, export_uuid
from hmd.linux.checks import PERFMON_ENOUGH, read_privileges
from hmd.linux.procfs import read_text
from hmd.linux.swap import use_of
from hmd.sample.sampler import CAPABILITIES

SHIPPED_UNIT = Path("systemd/hmd.service")
SHIPPED_SYSUSERS = Path("systemd/sysusers.d/hmd.conf")
SHIPPED_TMPFILES = Path("systemd/tmpfiles.d/hmd.conf")
SHIPPED_CONFIG = Path("config/hmd.yaml")
SHIPPED_FAR = Path("systemd/far")


UNIT_NAME = "hmd.service"
UNIT_PATH = Path("/etc/systemd/system") / UNIT_NAME
SAMPLER = Path("/etc/systemd/system/hmd.service.d/10-sampler.conf")
PAGE_CACHE = Path("/etc/systemd/system/hmd.service.d/20-page-cache.conf")
FAR_NAME = "hmd-far.service"
FAR = UNIT_PATH.with_name(FAR_NAME)
SYSUSERS_PATH = Path("/etc/sysusers.d/hmd.conf")
TMPFILES_PATH = Path("/etc/tmpfiles.d/hmd.conf")
KERNELS = Path("/var/cache/hmd")
"""Machine code of the service's kernels, made by systemd-tmpfiles and written by its user."""
SYSCTL = Path("/etc/sysctl.d/60-hmd.conf")

COMPILE: Final = (
    *("setpriv", "--reuid=hmd", "--regid=hmd", "--clear-groups"),
    # As the unit has it: the files may be in a folder that is closed to others, as /root.
    *("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"),
    *("env", f"HOME={STATE_FOLDER}", f"NUMBA_CACHE_DIR={KERNELS}", "OPENBLAS_NUM_THREADS=1"),
)
"""Runs a command as the service does, whose user alone writes its kernels."""

PACKAGED_UNITS = (Path("/usr/lib/systemd/system"), Path("/lib/systemd/system"))
PACKAGED_HMD = Path("/usr/bin/hmd")
MEMORY_SHARE_PERCENT = 5
"""Memory limit of the service on machines where that is more than the unit's own limit."""
MIN_MEMORY_GIB = 4
"""Memory limit of the shipped unit."""
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


ROOT: Final = 0
_OTHERS_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
MAX_SHOWN: Final = 3
"""Untrusted files that the refusal names."""


def shipped_folder() -> Path:
    """Return the folder with ``systemd/`` and ``config/``: a checkout's, or share/hmd.

    Raises MissingError if the installation is incomplete.
    """
    tried = (Path(hmd.__file__).parents[1], Path(sys.prefix) / "share/hmd", Path("/usr/share/hmd"))
    for folder in tried:
        if (folder / SHIPPED_UNIT).is_file():
            return folder
    raise MissingError(f"{SHIPPED_UNIT} is missing from {tried[1]}: install hmd again")


def sampler_drop_in(folder: Path, sampler: str) -> Path | None:
    """Return the drop-in that a sampler needs in addition to the unit, None if it needs none."""
    path = folder / "systemd/samplers" / f"{sampler}.conf"
    return path if path.is_file() else None


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
    far: str | None = None,
) -> InstallChanges:
    """Return the changes that make hmd start at boot; ``folder`` contains the shipped files.

    ``hmd`` is the command that the unit runs, ``sampler`` the one that works here, ``root`` the
    machine's root directory. With ``start`` the service is also started or restarted. With
    ``demotes_cache`` it may use DAMON, whatever the sampler. ``far`` is the unit of far memory.
    """
    config = root / CONFIG_FILE.relative_to("/")
    config = config if config.is_file() else folder / SHIPPED_CONFIG
    wanted: list[tuple[Path, str | None]] = [(CONFIG_FILE, config.read_text())]
    packaged = hmd == PACKAGED_HMD and any(
        (root / path.relative_to("/") / UNIT_NAME).is_file() for path in PACKAGED_UNITS
    )
    if not packaged:
        wanted += [
            (SYSUSERS_PATH, (folder / SHIPPED_SYSUSERS).read_text()),
            (TMPFILES_PATH, (folder / SHIPPED_TMPFILES).read_text()),
            (UNIT_PATH, _unit((folder / SHIPPED_UNIT).read_text(), hmd, root)),
        ]
    drop_in = sampler_drop_in(folder, sampler)
    wanted.append((SAMPLER, drop_in.read_text() if drop_in is not None else None))
    damon = sampler_drop_in(folder, "damon") if demotes_cache else None
    damon = damon if damon != drop_in else None
    wanted.append((PAGE_CACHE, damon.read_text() if damon is not None else None))
    commands = [("systemd-sysusers",), ("systemd-tmpfiles", "--create", TMPFILES_PATH.name)]
    perf_events = any(name == sampler and able.perf_events for name, able in CAPABILITIES.items())
    if perf_events and read_privileges(root / "proc").perf_for_admins:
        wanted.append((SYSCTL, _PERFMON))
        commands.append(("sysctl", "-p", str(SYSCTL)))
    commands += [("systemctl", "daemon-reload"), ("systemctl", "enable", UNIT_NAME)]
    before: tuple[tuple[str, ...], ...] = ()
    if far is not None:
        wanted.append((FAR, far))
        if read_text(root / FAR.relative_to("/")) not in (None, far.rstrip("\n")):
            # By its old unit: what a unit stops is what it has started.
            before = (("systemctl", "stop", FAR_NAME),)
        commands.append(("systemctl", "enable", *(("--now",) if start else ()), FAR_NAME))
    commands.append((*COMPILE, str(hmd), "run", "--compile"))
    if start:
        commands.append(("systemctl", "restart", UNIT_NAME))
    notes = [f"sampler: {sampler}" + (f", which needs {drop_in.name}" if drop_in else "")]
    if damon is not None:
        notes.append(f"migrate.cache_headroom, which needs {damon.name}")
    if far is not None:
        notes.append(far.partition("\n")[0].removeprefix("# ").partition(". ")[0])
    return InstallChanges(_changes(wanted, root), tuple(commands), tuple(notes), before)


def plan_disable(root: Path) -> InstallChanges:
    """Return the changes that remove the service; configuration and /var/lib/hmd stay."""
    files = [
        (path, None)
        for path in (UNIT_PATH, SAMPLER, PAGE_CACHE, SYSUSERS_PATH, TMPFILES_PATH, SYSCTL, FAR)
    ]
    # Without a daemon nothing more goes out; pages come back before the engine ends.
    names = (UNIT_NAME, FAR_NAME) if (root / FAR.relative_to("/")).is_file() else (UNIT_NAME,)
    return InstallChanges(
        _changes(files, root),
        (("systemctl", "daemon-reload"),),
        (f"{CONFIG_FILE} and {STATE_FOLDER} stay",),
        before=tuple(("systemctl", "disable", "--now", name) for name in names),
    )


def far_unit(folder: Path, far: str, root: Path) -> str:
    """Return the unit of far memory: ``zram:SIZE``, a disk, or ``nbd:HOST[:PORT]/EXPORT``.

    ``folder`` contains the shipped files. Raises UsageError for what is neither, or in use.
    """
    values = {"DEVICE": far}
    if far.startswith("zram:"):
        kind, size = "zram", far.removeprefix("zram:")
        try:
            values["SIZE"] = str(parse_size(size))
        except ValueError as error:
            raise UsageError(f"{far}: {error}") from None
    elif re.fullmatch(r"/dev/[\w.-]+", far):
        kind = "disk"
        if not (root / "sys/class/block" / Path(far).name).exists():
            raise UsageError(f"{far} is not a disk or partition of this machine")
        use = use_of(far, root / "proc", root / "sys")
        if use and f"swapoff {far}\n" not in (read_text(root / FAR.relative_to("/")) or ""):
            raise UsageError(f"{far} {use}: name a disk or partition without use")
    elif match := re.fullmatch(r"nbd:([\w.-]+|\[[\da-fA-F:]+\])(?::(\d{1,5}))?/([\w.-]+)", far):
        kind, host, export = "nbd", match[1].strip("[]"), match[3]
        port = int(match[2] or PORT)
        machine = (read_text(root / "etc/machine-id") or "").strip()
        if not 0 < port < 1 << 16:
            raise UsageError(f"{far}: a port is from 1 to 65535")
        if machine in ("", "uninitialized"):
            raise UsageError(
                f"{far}: /etc/machine-id has no id, by which this machine knows its swap on an"
                " export: run systemd-machine-id-setup"
            )
        area = export_uuid(host, port, export, machine)
        values = {"HOST": host, "PORT": str(port), "EXPORT": export, "UUID": area}
        values["PYTHON"] = sys.executable
    else:
        raise UsageError(f"{far!r}: write zram:SIZE, nbd:HOST[:PORT]/EXPORT or /dev/NAME")
    text = (folder / SHIPPED_FAR / f"{kind}.service").read_text()
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    return text


def _changes(wanted: Sequence[tuple[Path, str | None]], root: Path) -> tuple[FileChange, ...]:
    changes = []
    for path, after in wanted:
        there = root / path.relative_to("/")
        changes.append(FileChange(there, there.read_text() if there.is_file() else None, after))
    return tuple(change for change in changes if (change.before, change.after) != (None, None))


def _unit(text: str, hmd: Path, root: Path) -> str:
    """Return the unit with the path of ``hmd``, which its sandbox must not hide.

    Its memory limit follows the machine's memory, as heat does.
    """
    closed = [way for way in hmd.parents if way.is_dir() and not way.stat().st_mode & stat.S_IXOTH]
    # systemd has none of the unit's capabilities when it looks for the program; what it starts has.
    command = f"/usr/bin/env {hmd}" if closed else str(hmd)
    text = text.replace(str(PACKAGED_HMD), command)
    found = re.search(r"^MemTotal: +(\d+) kB", read_text(root / "proc/meminfo") or "", re.M)
    share_gib = int(found.group(1)) * MEMORY_SHARE_PERCENT // 100 >> 20 if found else 0
    memory_max = "MemoryMax={}G".format
    text = text.replace(memory_max(MIN_MEMORY_GIB), memory_max(max(MIN_MEMORY_GIB, share_gib)))
    if hmd.parts[1] in _HIDDEN:
        hides, shows = _HIDDEN[hmd.parts[1]]
        text = text.replace(hides, f"# {hmd} is there.\n{shows}")
    return text


def service_files(command: Path, shipped: Path) -> list[Path]:
    """Return the command, its interpreter, and the folders of the libraries that it imports."""
    libraries = {
        sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")
    }
    return [
        command,
        Path(sys.executable),
        Path(hmd.__file__).parent,
        shipped / "systemd",
        *map(Path, sorted(libraries)),
    ]


def list_untrusted(paths: Iterable[Path]) -> list[str]:
    """Return what users other than root may write: of the paths, below them, and on the way.

    Links are followed, and the folders that .pth files add to the libraries (site, in Python's
    library). One line per file or folder, such as ``/home/u/venv (uid 1000)``.
    """
    found: dict[Path, str] = {}
    waiting, walked = [Path(path) for path in paths], set[Path]()
    while waiting:
        path = waiting.pop(0)
        for way in (path.absolute(), path.resolve()):
            for place in (*reversed(way.parents), way):
                _add_reason(found, place)
        if path.resolve() in walked:
            continue
        walked.add(path.resolve())
        for folder, folders, files in os.walk(path):
            for name in (*folders, *files):
                place = Path(folder, name)
                _add_reason(found, place)
                if place.is_symlink():
                    waiting.append(place)
                elif place.suffix == ".pth":
                    waiting += _added_folders(place)
    return list(found.values())


def _add_reason(found: dict[Path, str], place: Path) -> None:
    if place not in found and (reason := _reason(place)):
        found[place] = f"{place} ({reason})"


def _added_folders(file: Path) -> list[Path]:
    """Return the existing folders that a .pth file adds to the path of imports."""
    lines = file.read_text("utf-8", "replace").splitlines()
    folders = (file.parent / line.strip() for line in lines if line.strip())
    return [folder for folder in folders if folder.is_dir()]


def refusal(places: list[str]) -> str:
    """Return the line that refuses to run what others may write."""
    shown = ", ".join(places[:MAX_SHOWN])
    more = f" and {len(places) - MAX_SHOWN} more" if len(places) > MAX_SHOWN else ""
    return (
        f"others than root may change what the service would run: {shown}{more}; install hmd where "
        "only root writes (the package, or a virtual environment made by root), or add "
        "--accept-writable"
    )


def _reason(path: Path) -> str:
    """Return who else may change a file or folder, nothing for a trusted or missing one."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return ""
    if status.st_uid != ROOT:
        return f"uid {status.st_uid}"
    if stat.S_ISLNK(status.st_mode):
        return ""  # its folder decides who may replace it
    # In a sticky folder, such as /tmp, only owners rename and remove.
    sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    if status.st_mode & _OTHERS_WRITE and not sticky:
        group = status.st_mode & stat.S_IWGRP and not status.st_mode & stat.S_IWOTH
        if group and status.st_gid == ROOT:
            return ""
        return f"group {status.st_gid} may write" if group else "everyone may write"
    return ""
