# SPDX-License-Identifier: MIT
"""DAMON, the kernel's access monitor: hmd's kdamonds in /sys/kernel/mm/damon/admin.

``Kdamonds`` is the tree (Documentation/admin-guide/mm/damon/usage.rst). ``Kdamond`` monitors
regions of processes' memory (Linux 6.6, CONFIG_DAMON_VADDR). A region read from sysfs does not name
its target, so each target has a scheme of its own, with the action ``stat``, which does nothing,
and a filter for that target. The caller sets the regions: DAMON's splitting is prevented, and its
merging as far as possible. A changed setting costs one write (about 10 µs); reading waits for one
or two aggregation intervals and costs about 10 µs per region.

``CacheKdamond`` demotes page cache without accesses, by the DAMOS action migrate_cold with the
filters ``anon`` and ``young`` (mm/damon/paddr.c; Linux 6.11, CONFIG_DAMON_PADDR): the kernel checks
accessed bits and reads of one page in each of up to a thousand regions, and moves file pages of
regions without any.

``DamonClaim`` is exclusive use. Changing the number of kdamonds removes the set-up of all of them,
and fails while one runs (damon_sysfs_kdamonds_add_dirs() in mm/damon/sysfs.c). hmd therefore claims
DAMON only where no kdamond is set up, and notes that in a file that stays locked for its lifetime
(flock(2)). An unlocked note that names the present directory (sysfs never reuses an inode number)
was left by an hmd that was killed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from hmd.base.errors import (
    Diagnostic,
    MissingError,
    NotPermittedError,
    Severity,
    UnavailableError,
    os_error,
    unavailable_code,
)
from hmd.linux.procfs import (
    PROC,
    ProcessId,
    identify,
    read_int,
    read_stat,
    read_text,
    unless_absent,
    write_text,
)

KDAMONDS = "kernel/mm/damon/admin/kdamonds"
BUSY_S = 15.0
"""DAMON's files return EBUSY while another write waits, at most two aggregation intervals."""

EXCLUSIVE_MODULES: Final = ("damon_stat", "damon_reclaim", "damon_lru_sort")
"""Kernel features that run DAMON for themselves alone: damon_start() (mm/damon/core.c) then refuses
sysfs with EBUSY. DAMON_STAT_ENABLED_DEFAULT starts damon_stat at boot (Linux 6.17)."""

_RETRY_S = 0.01
_STATE_S = 0.1

NOTE = Path("/run/hmd/damon")
EXIT_PATIENCE_S = 15.0
"""A process killed while it waits for DAMON exits only when DAMON answers."""

_NOTE_BYTES = 256
NOT_READABLE: Final = "its files in sysfs may not be read by this user"

Write = Callable[[Path, str], None]
Answer = TypeVar("Answer")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

PATIENCE = 16
"""Aggregation intervals that a read waits for at most."""

_MAX_COUNT, _MAX_BYTES = 2**32 - 1, 2**64 - 1
_NEVER_US = 3600 * 10**6
_MIN_SETTABLE_REGIONS = 3  # which damon_set_attrs() asks for
MIN_REGIONS, MAX_REGIONS = 10, 1000

CHECKS_PER_WINDOW: Final = 20
"""Checks of a region per aggregation."""

WINDOWS: Final = 2
"""Aggregations without an access after which a region counts as unused."""

_UPDATE_WINDOWS: Final = 10
_QUOTA_MS: Final = 1000


class DamonError(UnavailableError):
    """A failed write to DAMON's files; ``errno`` is the kernel's."""

    def __init__(self, code: int, what: str) -> None:
        super().__init__(f"DAMON: {what}: {_advice(code)}")
        self.errno = code
        self.exit_code = unavailable_code(code)


def _advice(code: int) -> str:
    match code:
        case errno.EACCES | errno.EPERM:
            return "not permitted: run hmd as root"
        case errno.EROFS:
            return (
                "/sys is read-only here: allow /sys/kernel/mm/damon (ReadWritePaths= in the unit)"
            )
        case errno.ENOENT:
            return "not in this kernel: it takes Linux 6.6 or newer with CONFIG_DAMON_VADDR"
        case errno.EBUSY:
            return "in use by another: stop damo, damon_reclaim, damon_lru_sort or damon_stat"
        case errno.EINVAL:
            return "refused by this kernel: it takes Linux 6.6 or newer with CONFIG_DAMON_VADDR"
        case _:
            return os.strerror(code)


class Kdamonds:
    """The kdamonds of this machine.

    ``write`` writes a pseudo file or raises OSError. Files return EBUSY, to readers too, while
    another write waits for a kdamond; both are retried for up to ``busy_s``.
    """

    def __init__(self, sysfs: Path, write: Write = write_text, busy_s: float = BUSY_S) -> None:
        self.path = sysfs / KDAMONDS
        self._modules = sysfs / "module"
        self._write = write
        self._busy_s = busy_s

    @property
    def count(self) -> int | None:
        """Number of kdamonds, None where this kernel has no DAMON or it may not be read."""
        return read_int(self.path / "nr_kdamonds")

    @property
    def is_forbidden(self) -> bool:
        """Whether this kernel has DAMON and this user may not read its files (mode 0600)."""
        return self.count is None and (self.path / "nr_kdamonds").exists()

    def exclusive_module(self) -> str | None:
        """Return the kernel feature that runs DAMON for itself alone, or None."""
        for name in EXCLUSIVE_MODULES:
            parameters = self._modules / name / "parameters"
            on = (read_text(parameters / "enabled") or "").strip() in ("Y", "1")
            if on and read_int(parameters / "kdamond_pid") != -1:
                return name
        return None

    def running(self) -> dict[int, int | None]:
        """Return the thread of each running kdamond, None for one whose files are busy."""
        return {i: self.thread(i, _STATE_S) for i in range(self.count or 0) if self.is_on(i)}

    def is_on(self, index: int) -> bool:
        """Return True while a kdamond runs, and where its files are busy."""
        try:
            return self._read(f"{index}/state", _STATE_S) == "on"
        except DamonError:
            return True

    def thread(self, index: int, busy_s: float | None = None) -> int | None:
        """Return the pid of a kdamond's thread, None where it has none or its files are busy."""
        try:
            pid = int(self._read(f"{index}/pid", self._busy_s if busy_s is None else busy_s) or -1)
        except DamonError:
            return None
        return pid if pid > 0 else None

    def configured(self) -> bool:
        """Return True where a program has set a kdamond up."""
        each = range(self.count or 0)
        return any(read_int(self.path / f"{i}/contexts/nr_contexts") for i in each)

    def set_count(self, count: int) -> None:
        """Replace all kdamonds by this many new ones. Raises DamonError."""
        self.write("nr_kdamonds", count)

    def identity(self, index: int) -> int | None:
        """Return a number that only this directory of the kdamond has: its inode number."""
        return _inode(self.path / str(index))

    def switch_off(self, index: int) -> None:
        """Stop a kdamond, our own or another program's, if it runs. Raises DamonError."""
        # It may end meanwhile, with its last target.
        deadline = time.monotonic() + self._busy_s
        while self.is_on(index):
            try:
                self.write(f"{index}/state", "off")
            except DamonError as error:
                if error.errno not in (errno.EINVAL, errno.EPERM):
                    raise
            if time.monotonic() > deadline:
                raise DamonError(errno.EBUSY, f"kdamond {index} does not stop")

    def write(self, name: str, value: object) -> None:
        """Write a file below ``kdamonds``; retries while it is busy. Raises DamonError."""
        path, text = self.path / name, str(value)
        _while_busy(lambda: self._write(path, text), self._busy_s, f"{name} = {text}")

    def _read(self, name: str, busy_s: float) -> str | None:
        return _while_busy(lambda: read_text(self.path / name), busy_s, name)


def _inode(folder: Path) -> int | None:
    with unless_absent():
        return folder.stat().st_ino
    return None


def _while_busy(ask: Callable[[], Answer], busy_s: float, what: str) -> Answer:
    """Return the answer; retries while it is EBUSY. Raises DamonError."""
    deadline = time.monotonic() + busy_s
    while True:
        try:
            return ask()
        except OSError as error:
            code = error.errno or errno.EIO
            if code != errno.EBUSY or time.monotonic() >= deadline:
                raise DamonError(code, what) from None
        time.sleep(_RETRY_S)


class KdamondThread:
    """The kdamond ``index`` of those that hmd has claimed; a subclass sets it up and starts it.

    While it is off, changes by other programs are left alone.
    """

    def __init__(self, kdamonds: Kdamonds, index: int = 0, proc: Path = PROC) -> None:
        self._all, self._index, self._proc = kdamonds, index, proc
        self._context = f"{index}/contexts/0"
        self._identity = kdamonds.identity(index)
        self._pid: int | None = None
        self._thread: ProcessId | None = None
        self._ticks = self._past_ticks = 0

    @property
    def running(self) -> bool:
        """True while it runs; it ends with its last target."""
        on = self._pid is not None and self._all.is_on(self._index)
        return on and self._all.thread(self._index) == self._pid

    @property
    def cpu_s(self) -> float:
        """CPU time of the kernel's threads since the construction, in seconds."""
        if self._thread is not None:
            stat = read_stat(self._thread.pid, self._proc)
            if stat is not None and stat.process == self._thread:
                self._ticks = stat.cpu_ticks
        return (self._past_ticks + self._ticks) / _TICKS_PER_SECOND

    def stop(self) -> None:
        """Switch it off, if it runs; waits for a sampling interval. Raises DamonError."""
        self._past_ticks = round(self.cpu_s * _TICKS_PER_SECOND)
        if self.running:
            self._all.switch_off(self._index)
        self._pid, self._thread, self._ticks = None, None, 0

    def _check(self) -> None:
        """Raise DamonError (EBUSY) where others have the kdamond: a start would be retried."""
        if module := self._all.exclusive_module():
            raise DamonError(errno.EBUSY, f"{module} has it for itself alone")
        if self._all.is_on(self._index) or self._all.identity(self._index) != self._identity:
            raise DamonError(errno.EBUSY, "the kdamond of hmd has been taken")

    def _switch_on(self) -> None:
        self._all.write(f"{self._index}/state", "on")
        self._pid = self._all.thread(self._index)
        # In a container /proc may not show it.
        self._thread = identify(self._pid, self._proc) if self._pid else None

    def _write(self, values: Mapping[str, object]) -> None:
        """Write files of the context, by their paths in it. Raises DamonError."""
        for name, value in values.items():
            self._all.write(f"{self._context}/{name}", value)


@dataclass(frozen=True, slots=True)
class DamonRegions:
    """Regions of a process; columns ``(n,)``: addresses, and checks that found an access."""

    start: npt.NDArray[np.uint64]
    end: npt.NDArray[np.uint64]
    accesses: npt.NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self.start)

    @property
    def accessed(self) -> DamonRegions:
        """The regions that were accessed."""
        rows = self.accesses > 0
        return DamonRegions(self.start[rows], self.end[rows], self.accesses[rows])


_NOTHING = DamonRegions(np.empty(0, np.uint64), np.empty(0, np.uint64), np.empty(0, np.uint32))


class Kdamond(KdamondThread):
    """Monitors regions, one target per process; ``waited_s`` is the wait of the last read."""

    def __init__(
        self, kdamonds: Kdamonds, proc: Path = PROC, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(kdamonds, proc=proc)
        self.waited_s = 0.0
        self._clock = clock
        self._folder = kdamonds.path / self._context
        self._staged: list[DamonRegions] = []
        self._targets_inode: int | None = None

    def start(
        self,
        pids: Sequence[int],
        regions: Sequence[DamonRegions],
        sample_us: int,
        aggregation_us: int,
    ) -> None:
        """Monitor these regions of these processes and no others.

        Every ``sample_us`` DAMON checks one page of each region; the accesses found within
        ``aggregation_us`` are the region's count.
        Raises DamonError: EINVAL also where a process has exited, EBUSY where another program has
        taken the kdamond.
        """
        self.stop()
        self._check()
        count = max(_MIN_SETTABLE_REGIONS, 2 * sum(map(len, regions)) - 1)
        # DAMON halves its regions while they are no more than half of the most, and merges
        # neighbours that are alike where they are smaller together than all memory over the fewest.
        self._stage(
            pids,
            regions,
            _monitoring("vaddr", sample_us, aggregation_us, _NEVER_US, count, count),
        )
        self._switch_on()

    def _stage(
        self,
        pids: Sequence[int],
        regions: Sequence[DamonRegions],
        monitoring: Mapping[str, object],
    ) -> None:
        """Write all settings; regions only where they changed since the last write."""
        there, self._staged = self._staged, []  # until all is written
        if len(there) != len(pids) or self._targets_inode != self._inode():
            self._all.write(f"{self._index}/contexts/nr_contexts", 1)
            self._write({"targets/nr_targets": len(pids)})
            there = [_NOTHING] * len(pids)
            self._targets_inode = self._inode()
        self._write({**monitoring, "schemes/nr_schemes": len(pids)})
        for index, (pid, its) in enumerate(zip(pids, regions, strict=True)):
            self._write({f"targets/{index}/pid_target": pid})
            self._set_regions(f"targets/{index}/regions", its, there[index])
            self._write(_counting_scheme(f"schemes/{index}", index))
        self._staged = list(regions)

    def _inode(self) -> int | None:
        """Return the inode number of the first target's directory, which is never reused."""
        return _inode(self._folder / "targets/0")

    def _set_regions(self, folder: str, regions: DamonRegions, there: DamonRegions) -> None:
        if len(regions) != len(there):
            self._write({f"{folder}/nr_regions": len(regions)})
            changed = np.arange(len(regions))
        else:
            changed = np.flatnonzero((regions.start != there.start) | (regions.end != there.end))
        for i in changed.tolist():
            bounds = {"start": int(regions.start[i]), "end": int(regions.end[i])}
            self._write({f"{folder}/{i}/{name}": bound for name, bound in bounds.items()})

    def read_regions(self) -> list[DamonRegions] | None:
        """Return the regions of each target, counted in the aggregation that ends then.

        Waits for its end. Returns no regions where the kernel takes longer than ``PATIENCE`` times
        the expected time, None where the kdamond does not run. Raises DamonError.
        """
        begun_s = self._clock()
        found: list[DamonRegions] = []
        # The kernel gives up after two aggregation intervals.
        for _ in range(PATIENCE // 2):
            try:
                self._all.write("0/state", "update_schemes_tried_regions")
            except DamonError as error:
                if error.errno in (errno.EINVAL, errno.EPERM) and not self.running:
                    return None
                raise
            self.waited_s = self._clock() - begun_s
            found = [self._regions(target, its) for target, its in enumerate(self._staged)]
            if any(map(len, found)):
                break
        return found

    def _regions(self, target: int, staged: DamonRegions) -> DamonRegions:
        folder = self._folder / f"schemes/{target}/tried_regions"
        try:
            fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return _NOTHING
        try:
            names = [name for name in os.listdir(fd) if name.isdigit()]  # noqa: PTH208
            names.sort(key=int)
            accesses = _column(fd, names, "nr_accesses").astype(np.uint32)
            if len(names) == len(staged):  # none have been merged
                return DamonRegions(staged.start, staged.end, accesses)
            return DamonRegions(_column(fd, names, "start"), _column(fd, names, "end"), accesses)
        except (FileNotFoundError, NotADirectoryError):
            return _NOTHING
        finally:
            os.close(fd)


def _column(folder: int, names: list[str], file: str) -> npt.NDArray[np.uint64]:
    return np.array([_number(folder, f"{name}/{file}") for name in names], np.uint64)


def _number(folder: int, name: str) -> int:
    # Thousands a second: a Path and a resolved prefix each would cost more than the kernel does.
    fd = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
    try:
        return int(os.read(fd, 32))
    finally:
        os.close(fd)


@dataclass(frozen=True, slots=True)
class CacheWatch:
    """Demotes cache unused for ``age_s``: ``bytes_per_s`` and ``cpu_share`` of a CPU at most."""

    age_s: float
    bytes_per_s: int
    cpu_share: float


class CacheKdamond(KdamondThread):
    """Demotes page cache."""

    def start(self, ranges: Sequence[tuple[int, int]], to_node: int, watch: CacheWatch) -> None:
        """Demote page cache in these physical addresses to a node; raises DamonError."""
        self.stop()
        self._check()
        self._all.write(f"{self._index}/contexts/nr_contexts", 1)
        window_us = max(1, round(watch.age_s * 1e6 / WINDOWS))
        sample_us, update_us = max(1, window_us // CHECKS_PER_WINDOW), _UPDATE_WINDOWS * window_us
        self._write(_monitoring("paddr", sample_us, window_us, update_us, MIN_REGIONS, MAX_REGIONS))
        self._write({"targets/nr_targets": 1, "targets/0/regions/nr_regions": len(ranges)})
        for index, (start, end) in enumerate(ranges):
            region = f"targets/0/regions/{index}"
            self._write({f"{region}/start": start, f"{region}/end": end})
        self._write({"schemes/nr_schemes": 1, **_demoting_scheme("schemes/0", to_node, watch)})
        self._switch_on()


def _monitoring(
    operations: str, sample_us: int, aggregation_us: int, update_us: int, fewest: int, most: int
) -> dict[str, object]:
    """Return the files of a context that say how it monitors; the last two are of regions."""
    intervals, regions = "monitoring_attrs/intervals", "monitoring_attrs/nr_regions"
    return {
        "operations": operations,
        f"{intervals}/sample_us": sample_us,
        f"{intervals}/aggr_us": aggregation_us,
        f"{intervals}/update_us": update_us,
        f"{regions}/max": most,
        f"{regions}/min": fewest,
    }


def _counting_scheme(scheme: str, target: int) -> dict[str, object]:
    """Return the files of a scheme for all regions of one target, with no action."""
    pattern, its_filter = f"{scheme}/access_pattern", f"{scheme}/filters/0"
    return {
        f"{scheme}/action": "stat",
        f"{pattern}/sz/max": _MAX_BYTES,
        f"{pattern}/nr_accesses/max": _MAX_COUNT,
        f"{pattern}/age/max": _MAX_COUNT,
        f"{scheme}/filters/nr_filters": 1,
        f"{its_filter}/type": "target",
        f"{its_filter}/damon_target_idx": target,
        f"{its_filter}/matching": "N",  # regions that do not match are left out
    }


def _demoting_scheme(scheme: str, to_node: int, watch: CacheWatch) -> dict[str, object]:
    """Return the files of a scheme that demotes what had no access, but no anonymous pages."""
    pattern, quotas = f"{scheme}/access_pattern", f"{scheme}/quotas"
    files: dict[str, object] = {
        f"{scheme}/action": "migrate_cold",
        f"{scheme}/target_nid": to_node,
        f"{pattern}/sz/max": _MAX_BYTES,
        f"{pattern}/nr_accesses/max": 0,
        f"{pattern}/age/min": WINDOWS,
        f"{pattern}/age/max": _MAX_COUNT,
        f"{quotas}/bytes": watch.bytes_per_s * _QUOTA_MS // 1000,
        f"{quotas}/ms": max(1, round(watch.cpu_share * _QUOTA_MS)),
        f"{quotas}/reset_interval_ms": _QUOTA_MS,
        f"{scheme}/filters/nr_filters": 2,
    }
    for index, kind in enumerate(("anon", "young")):  # pages that match are left alone
        files |= {f"{scheme}/filters/{index}/type": kind, f"{scheme}/filters/{index}/matching": "Y"}
    return files


@dataclass(frozen=True, slots=True)
class Holder:
    """An hmd that uses DAMON, or (``left``) was killed while it used it."""

    pid: int
    left: bool


class DamonClaim:
    """The claim to DAMON, with ``count`` kdamonds; lasts until ``release``."""

    def __init__(
        self, kdamonds: Kdamonds, note: Path = NOTE, proc: Path = PROC, count: int = 1
    ) -> None:
        """Claim DAMON, stopping what a killed hmd left; MissingError where others use it."""
        self._kdamonds = kdamonds
        if kdamonds.is_forbidden:
            raise NotPermittedError(f"DAMON: {NOT_READABLE}; run hmd as root")
        if kdamonds.count is None:
            raise MissingError(
                "this kernel has no DAMON in sysfs: use one with CONFIG_DAMON_SYSFS and "
                "CONFIG_DAMON_VADDR"
            )
        self._fd = lock_note(note, proc)
        try:
            stop_left(kdamonds, self._fd)
            _refuse_others(kdamonds)
            kdamonds.set_count(count)
            self._identity = kdamonds.identity(0)
            noted = {"pid": os.getpid(), "kdamond": self._identity}
            os.pwrite(self._fd, json.dumps(noted).encode().ljust(_NOTE_BYTES), 0)
        except BaseException:
            os.close(self._fd)
            raise

    @property
    def held(self) -> bool:
        """Whether the kdamonds are those claimed, not another's set up while they were off."""
        return self._kdamonds.identity(0) == self._identity

    def release(self) -> None:
        """Remove the kdamond, unless another program has it by now. Called once, when it is off."""
        try:
            if self.held and not self._kdamonds.running():
                self._kdamonds.set_count(0)
            os.ftruncate(self._fd, 0)
        finally:
            os.close(self._fd)


def lock_note(note: Path, proc: Path) -> int:
    """Return the descriptor of the locked note; waits for a holder that is being killed."""
    try:
        note.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            fd = os.open(note, flags, 0o644)
        except PermissionError:
            # Root's, from before the folder was the service's: whose folder it is may remove it.
            note.unlink(missing_ok=True)
            fd = os.open(note, flags, 0o644)
        if os.geteuid() == 0:
            # A command of root must not leave the service a file that it cannot write.
            owner, own = note.parent.stat(), os.fstat(fd)
            if (own.st_uid, own.st_gid) != (owner.st_uid, owner.st_gid):
                os.fchown(fd, owner.st_uid, owner.st_gid)
    except OSError as error:
        remedy = f"remove {note}" if note.exists() else "run hmd as root"
        raise os_error(
            error, f"DAMON: cannot note its use in {note}: {error.strerror}; {remedy}"
        ) from None
    deadline = time.monotonic() + EXIT_PATIENCE_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except BlockingIOError:
            pid = _noted(fd).get("pid", 0)
            stat = read_stat(pid, proc) if pid else None
            if (stat and not stat.exited) or time.monotonic() > deadline:
                os.close(fd)
                raise MissingError(f"DAMON is in use by another hmd (pid {pid})") from None
        time.sleep(_RETRY_S)


def _noted(fd: int) -> dict[str, int]:
    try:
        found = json.loads(os.pread(fd, _NOTE_BYTES, 0) or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def stop_left(kdamonds: Kdamonds, fd: int) -> bool:
    """Stop the kdamonds whose first the note names; returns whether they still existed."""
    identity = _noted(fd).get("kdamond")
    if identity is None or identity != kdamonds.identity(0):
        return False
    for index in range(kdamonds.count or 0):
        kdamonds.switch_off(index)
    kdamonds.set_count(0)
    os.ftruncate(fd, 0)
    return True


def stop_left_behind(kdamonds: Kdamonds, note: Path = NOTE) -> Holder | None:
    """Stop the kdamonds that a killed hmd left, if any; returns that hmd."""
    found = holder(kdamonds, note)
    if found is None or not found.left:
        return None
    fd = os.open(note, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return found if stop_left(kdamonds, fd) else None
    except BlockingIOError:
        return None  # another hmd is doing that
    finally:
        os.close(fd)


def holder(kdamonds: Kdamonds, note: Path = NOTE) -> Holder | None:
    """Return the hmd that uses DAMON or was killed while it used it, or None."""
    identity = kdamonds.identity(0) if kdamonds.count else None
    if identity is None:
        return None
    try:
        fd = os.open(note, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        noted = _noted(fd)
        if noted.get("kdamond") != identity:
            return None
        left = False
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            left = True
        return Holder(noted.get("pid", 0), left)
    finally:
        os.close(fd)


def damon_finding(sysfs: Path, note: Path = NOTE) -> Diagnostic:
    """Return the user of DAMON, and whether a killed hmd left a kdamond."""
    name = "DAMON"
    kdamonds = Kdamonds(sysfs)
    if kdamonds.is_forbidden:
        return Diagnostic(name, Severity.WARN, "not known", NOT_READABLE, "run it as root")
    if kdamonds.count is None:
        return Diagnostic(name, Severity.OK, "not in this kernel")
    found = holder(kdamonds, note)
    if found is not None and found.left:
        return Diagnostic(
            name,
            Severity.WARN,
            f"a kdamond that an hmd left (pid {found.pid}), which was killed",
            "it costs CPU time until its processes end, and others cannot use DAMON",
            f"start hmd, which stops it, or: echo off > {kdamonds.path}/0/state",
        )
    if found is not None:
        return Diagnostic(name, Severity.OK, f"in use by hmd (pid {found.pid})")
    others = _others(kdamonds)
    return Diagnostic(name, Severity.OK, others or "in this kernel, not in use")


def _others(kdamonds: Kdamonds) -> str:
    """Return what uses DAMON, in words; empty where it is free."""
    if module := kdamonds.exclusive_module():
        return f"in use by the kernel's {module}, for itself alone"
    running = [
        f"kdamond {i}" + (f" (pid {pid})" if pid else "") for i, pid in kdamonds.running().items()
    ]
    if running:
        return f"in use by another: {', '.join(running)}"
    return "set up by another, and off" if kdamonds.configured() else ""


def _refuse_others(kdamonds: Kdamonds) -> None:
    others = _others(kdamonds)
    if not others:
        return
    first = next(iter(kdamonds.running()), None)
    if module := kdamonds.exclusive_module():
        command = f"echo N > /sys/module/{module}/parameters/enabled"
    elif first is None:
        command = f"echo 0 > {kdamonds.path}/nr_kdamonds"
    else:
        command = f"echo off > {kdamonds.path}/{first}/state"
    raise MissingError(f"DAMON is {others}; if that is not needed: {command}")
