# SPDX-License-Identifier: MIT
"""DAMON's sysfs tree where no kernel keeps one."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from hmd.linux.procfs import read_stat


class DamonKernel:
    """DAMON's sysfs tree, where no kernel keeps one: ``write`` does what mm/damon/sysfs.c does.

    ``accesses`` are ranges (start, end, count) by pid that the next cycle finds, once, in all
    regions that they reach. The real kernel's is tested in the emulated machine
    (tests/vm/dram_pm/test_samplers.py).
    """

    SCHEME = (
        *("action", "target_nid", "access_pattern/sz/max"),
        *("access_pattern/age/min", "access_pattern/age/max"),
        *("quotas/bytes", "quotas/ms", "quotas/reset_interval_ms"),
        *("access_pattern/nr_accesses/min", "access_pattern/nr_accesses/max"),
        *("filters/nr_filters", "tried_regions/total_bytes"),
    )
    CONTEXT = (
        *("operations", "targets/nr_targets", "schemes/nr_schemes"),
        *(f"monitoring_attrs/intervals/{name}" for name in ("sample_us", "aggr_us", "update_us")),
        *(f"monitoring_attrs/nr_regions/{name}" for name in ("min", "max")),
    )
    FILTER = ("type", "damon_target_idx", "matching")

    def __init__(self, sysfs: Path) -> None:
        self.sysfs = sysfs
        self.path = sysfs / "kernel/mm/damon/admin/kdamonds"
        self._files(self.path, ("nr_kdamonds",))
        self.accesses: dict[int, list[tuple[int, int, int]]] = {}
        self.cycles = 0
        self.exclusive = False
        self.slow = False
        """Whether counting takes so long that it is given up."""
        self.refused = 0
        self.busy = 0
        """How many writes from now on are answered EBUSY."""

    def write(self, path: Path, text: str) -> None:
        """Write a file, and do what the kernel does then."""
        if self.busy:
            self.busy -= 1
            raise OSError(errno.EBUSY, "busy")
        if not path.is_file():
            raise OSError(errno.ENOENT, "no such file")
        folder = path.parent
        match path.name:
            case "nr_kdamonds":
                self._refuse(errno.EBUSY, any(self.on(i) for i in range(self._number(path))))
                self._children(path, text, ("state", "pid", "contexts/nr_contexts"))
                for i in range(int(text)):
                    (folder / f"{i}/state").write_text("off\n")
            case "nr_contexts":
                self._children(path, text, self.CONTEXT)
            case "nr_targets":
                self._children(path, text, ("pid_target", "regions/nr_regions"))
            case "nr_regions":
                self._children(path, text, ("start", "end"))
            case "nr_schemes":
                self._children(path, text, self.SCHEME)
            case "nr_filters":
                self._children(path, text, self.FILTER)
            case "state":
                self._command(folder, text)
                return
        path.write_text(f"{text}\n")

    def on(self, index: int = 0) -> bool:
        """Whether a kdamond runs."""
        state = self.path / f"{index}/state"
        return state.exists() and state.read_text() == "on\n"

    def targets(self) -> list[int]:
        """The pids that are monitored."""
        count = self._number(self.path / "0/contexts/0/targets/nr_targets")
        return [
            self._number(self.path / f"0/contexts/0/targets/{i}/pid_target") for i in range(count)
        ]

    def reap(self) -> None:
        """End the kdamond where all its targets have gone."""
        virtual = self.on() and (self.path / "0/contexts/0/operations").read_text() == "vaddr\n"
        if virtual and not any(alive(pid) for pid in self.targets()):
            (self.path / "0/state").write_text("off\n")

    def _command(self, kdamond: Path, text: str) -> None:
        self.reap()
        running = self.on(int(kdamond.name))
        match text:
            case "on":
                self._refuse(errno.EBUSY, running or self.exclusive)
                self._refuse(errno.EINVAL, not self._can_start(kdamond))
                (kdamond / "pid").write_text(f"{os.getpid()}\n")
                (kdamond / "state").write_text("on\n")
            case "off":
                self._refuse(errno.EPERM, not running)
                (kdamond / "state").write_text("off\n")
            case "update_schemes_tried_regions":
                self._refuse(errno.EINVAL, not running)
                for i, pid in enumerate(self.targets()):
                    self._tell(kdamond / f"contexts/0/schemes/{i}", pid)
                self.cycles += 1

    def _can_start(self, kdamond: Path) -> bool:
        if (kdamond / "contexts/0/operations").read_text() == "paddr\n":
            return self._number(kdamond / "contexts/0/targets/0/regions/nr_regions") > 0
        return all(alive(pid) for pid in self.targets())

    def _tell(self, scheme: Path, pid: int) -> None:
        matching = (scheme / "filters/0/matching").read_text()
        index = self._number(scheme / "filters/0/damon_target_idx")
        assert (matching, scheme.name) == ("N\n", str(index))
        shutil.rmtree(scheme / "tried_regions")
        self._files(scheme / "tried_regions", ("total_bytes",))
        accesses, found = self.accesses.get(pid, []), False
        for i, (start, end) in enumerate([] if self.slow else self.regions(index)):
            counts = [n for first, last, n in accesses if first < end and start < last]
            found = found or bool(counts)
            names = ("start", "end", "nr_accesses", "age")
            self._files(scheme / f"tried_regions/{i}", names)
            for name, value in zip(names, (start, end, sum(counts), 0), strict=True):
                (scheme / f"tried_regions/{i}/{name}").write_text(f"{value}\n")
        if found:
            del self.accesses[pid]

    def regions(self, target: int) -> list[tuple[int, int]]:
        """The regions of a target."""
        folder = self.path / f"0/contexts/0/targets/{target}/regions"
        each = range(self._number(folder / "nr_regions"))
        return [
            (self._number(folder / f"{i}/start"), self._number(folder / f"{i}/end")) for i in each
        ]

    def _children(self, count: Path, text: str, names: tuple[str, ...]) -> None:
        for i in range(self._number(count)):
            shutil.rmtree(count.parent / str(i), ignore_errors=True)
        for i in range(int(text)):
            self._files(count.parent / str(i), names)

    def _files(self, folder: Path, names: tuple[str, ...]) -> None:
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text("0\n")

    def _number(self, path: Path) -> int:
        return int(path.read_text())

    def _refuse(self, code: int, when: bool) -> None:
        if when:
            self.refused += 1
            raise OSError(code, os.strerror(code))


def alive(pid: int) -> bool:
    stat = read_stat(pid)
    return stat is not None and not stat.exited
