# SPDX-License-Identifier: MIT
"""The history on disk: what hmd did per minute, hour and day, and what was requested of it.

``history.hmd`` in the state folder has a fixed size: a header, then rings of rows of 512 bytes. A
row has what one target did in one minute (hour, day), one without a name the whole; each has a
checksum, so that one that a kill -9 or a loss of power cut off is left out. Hours are summed from
minutes, days from hours. With four targets, minutes reach back a day, hours seven weeks, days a
year. :func:`report` sums a time, :func:`explain_slow` compares two. Writing costs microseconds per
target and minute, reading milliseconds.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hmd.base.errors import HmdError, UsageError
from hmd.base.quantities import format_mib
from hmd.base.units import MOVE_NS, PAGE_BYTES, PAGE_MOVE_COST
from hmd.metrics.status import Status, TargetStatus
from hmd.migrate.status import FAILURES

FILE_NAME: Final = "history.hmd"
ROW_BYTES: Final = 512
TIERS: Final = 4
"""Tiers with sums of their own; the last one has those below it too."""

_TIERS = tuple(f"{what}{tier}" for what in ("accesses", "resident") for tier in range(TIERS))
_FAILURES = tuple(f"failed_{status.label}" for status in sorted(FAILURES))
SUMS: Final = (
    *("seconds", *_TIERS, "processes", "promoted_bytes", "demoted_bytes", "requested_bytes"),
    *("failed_pages", "saved_s", "lost_s", "measured_loads", "measured_s", "dry_seconds"),
    *("dry_promoted_bytes", "dry_demoted_bytes", "dry_saved_s", "dry_lost_s"),
    *("cpu_s", "memory", "overhead_s", "paused_s", "paged_out_bytes", *_FAILURES),
)
"""Columns of a row. What has no unit of its own is integrated over time: byte-seconds and such."""

_HEAD = [("crc", "<u4"), ("uid", "<i4"), ("serial", "<u8"), ("start_s", "<f8"), ("end_s", "<f8")]
ROW: Final = np.dtype([*_HEAD, ("name", "S64"), *((name, "<f8") for name in SUMS)])
EVENT: Final = np.dtype([*_HEAD, ("text", "S448")])
Rows = npt.NDArray[np.void]


@dataclass(frozen=True, slots=True)
class Ring:
    """``rows`` places from row ``first`` on, for one row per target and ``period_s``."""

    first: int
    rows: int
    period_s: int
    dtype: np.dtype[np.void] = ROW


MINUTES: Final = Ring(8, 8192, 60)
HOURS: Final = Ring(8 + 8192, 4096, 3600)
DAYS: Final = Ring(8 + 12288, 2048, 86400)
EVENTS: Final = Ring(8 + 14336, 1024, 0, EVENT)
RINGS: Final = (MINUTES, HOURS, DAYS)
FILE_BYTES: Final = (8 + 15360) * ROW_BYTES
HEADER: Final = json.dumps({"hmd_history": 1, "row_bytes": ROW_BYTES, "sums": SUMS}).encode()


class History:
    """The file, open for one writer or for readers; raises ``HmdError`` where it cannot be used."""

    def __init__(self, path: Path, *, write: bool = False) -> None:
        """Open the file; a writer creates it, and puts a damaged one aside."""
        self.problem = ""
        flags = os.O_RDWR | os.O_CREAT if write else os.O_RDONLY
        try:
            self._fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            good = os.pread(self._fd, len(HEADER), 0) == HEADER and self._size() == FILE_BYTES
            if not good and not write:
                raise HmdError(f"{path}: damaged, or of another version of hmd")
            if not good and self._size():
                self.problem = f"{path}: damaged, or of another version: kept as {path.name}.old"
                path.replace(path.with_name(f"{path.name}.old"))
                os.close(self._fd)
                self._fd = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            if write:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not good:
                # All blocks now: a full disk later costs no row.
                os.posix_fallocate(self._fd, 0, FILE_BYTES)
                os.pwrite(self._fd, HEADER, 0)
        except OSError as error:
            raise HmdError(f"{path}: {error.strerror}: no history is kept") from None
        last = {ring: self.rows(ring, -np.inf, np.inf)["serial"] for ring in (*RINGS, EVENTS)}
        self._next = {ring: int(serials.max(initial=0)) + 1 for ring, serials in last.items()}

    def _size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def append(self, ring: Ring, rows: Rows) -> None:
        """Write rows over the oldest ones; raises OSError."""
        for row in rows:
            row["serial"] = self._next[ring]
            data = row.tobytes().ljust(ROW_BYTES, b"\0")
            data = zlib.crc32(data[4:]).to_bytes(4, "little") + data[4:]
            place = ring.first + self._next[ring] % ring.rows
            os.pwrite(self._fd, data, place * ROW_BYTES)
            self._next[ring] += 1

    def rows(self, ring: Ring, since_s: float, until_s: float) -> Rows:
        """Return the undamaged rows that overlap a time, the oldest first."""
        data = os.pread(self._fd, ring.rows * ROW_BYTES, ring.first * ROW_BYTES)
        layout = np.dtype({"names": ["row"], "formats": [ring.dtype], "itemsize": ROW_BYTES})
        every = np.frombuffer(data, layout)["row"]
        near = (every["serial"] > 0) & (every["end_s"] > since_s) & (every["start_s"] < until_s)
        places = [
            place
            for place in np.flatnonzero(near).tolist()
            if zlib.crc32(data[place * ROW_BYTES + 4 : (place + 1) * ROW_BYTES])
            == every["crc"][place]
        ]
        found = every[places]
        return found[np.argsort(found["serial"])]

    def complete_since_s(self, ring: Ring, period_s: int) -> float:
        """Return from which period on a ring has all its rows: older ones were overwritten."""
        if self._next[ring] <= ring.rows:
            return -np.inf
        oldest = (ring.first + self._next[ring] % ring.rows) * ROW_BYTES
        row = np.frombuffer(os.pread(self._fd, ring.dtype.itemsize, oldest), ring.dtype)[0]
        return -(-float(row["start_s"]) // period_s) * period_s

    def sum_periods(self, now_s: float) -> None:
        """Sum minutes to hours and hours to days, as far as these are over."""
        for fine, coarse in pairwise(RINGS):
            done_s = float(self.rows(coarse, -np.inf, np.inf)["end_s"].max(initial=0.0))
            over_s = now_s // coarse.period_s * coarse.period_s
            rows = self.rows(fine, done_s, over_s)
            rows = rows[rows["start_s"] >= done_s - 1]
            period = rows["start_s"] // coarse.period_s
            for number in np.unique(period).tolist():
                self.append(coarse, _summed(rows[period == number]))


def _summed(rows: Rows) -> Rows:
    names = np.unique(rows["name"])
    sums = np.zeros(len(names), ROW)
    for row, name in zip(sums, names, strict=True):
        same = rows[rows["name"] == name]
        row["name"], row["start_s"], row["end_s"] = name, same["start_s"].min(), same["end_s"].max()
        for column in SUMS:
            row[column] = same[column].sum()
    return sums


class HistoryRecorder:
    """Writes a row per target and minute from the daemon's status; for the loop's thread.

    Without a folder, or where the file cannot be used, it records nothing, and ``problem`` is why.
    """

    def __init__(
        self, folder: Path | None, log: logging.Logger, now: Callable[[], float] = time.time
    ) -> None:
        self.history: History | None = None
        self._log, self._now = log, now
        self._since_s = now()
        self._before: dict[str, dict[str, float]] = {}
        self._integral: defaultdict[str, defaultdict[str, float]]
        self._integral = defaultdict(lambda: defaultdict(float))
        self._uptime_s = 0.0
        self.problem = "the daemon keeps no history: set state_dir"
        if folder is not None:
            self._open(folder / FILE_NAME)

    def _open(self, path: Path) -> None:
        try:
            self.history = History(path, write=True)
            self.history.sum_periods(self._now())
            self.problem = self.history.problem
        except HmdError as error:
            self.problem = str(error)
        if self.problem:
            self._log.error("history: %s", self.problem)

    def record(self, status: Status) -> None:
        """Add a tick; at the end of each minute write a row for each target."""
        if self.history is None:
            return
        step_s, self._uptime_s = status.uptime_s - self._uptime_s, status.uptime_s
        for target in status.targets:
            sums = self._integral[target.name]
            sums["seconds"] += step_s
            sums["processes"] += target.process_count * step_s
            for tier, size in enumerate(target.resident_bytes):
                sums[f"resident{min(tier, TIERS - 1)}"] += size * step_s
        whole = self._integral[""]
        whole["seconds"] += step_s
        whole["memory"] += status.resident_bytes * step_s
        whole["overhead_s"] += status.budget.overhead * step_s
        whole["paused_s"] += status.control.paused * step_s
        if self._now() // MINUTES.period_s != self._since_s // MINUTES.period_s:
            self.write(status)

    def write(self, status: Status) -> None:
        """Write what was added since the last row."""
        if self.history is None:
            return
        end_s, totals = self._now(), _totals(status)
        rows = np.zeros(len(totals), ROW)
        for row, (name, now) in zip(rows, totals.items(), strict=True):
            row["name"], row["start_s"], row["end_s"] = name.encode()[:64], self._since_s, end_s
            before = self._before.get(name, {})
            for column, value in now.items():
                # Counters begin again where tiers change.
                was = before.get(column, 0.0)
                row[column] = value - was if value >= was else value
            for column, value in self._integral[name].items():
                row[column] += value
        whole = rows[-1]
        for column in SUMS[1 : SUMS.index("cpu_s")]:
            whole[column] = rows[:-1][column].sum()
        new_hour = end_s // HOURS.period_s != self._since_s // HOURS.period_s
        self._before, self._since_s = totals, end_s
        self._integral.clear()
        self._append(MINUTES, rows)
        if new_hour:
            self.history.sum_periods(end_s)

    def add_event(self, text: str, uid: int = -1) -> None:
        """Record what an administrator did, or what happened to the daemon (uid -1)."""
        row = np.zeros(1, EVENT)
        row["uid"], row["start_s"] = uid, self._now()
        row["end_s"], row["text"] = row["start_s"], text.encode()[:448]
        self._append(EVENTS, row)

    def _append(self, ring: Ring, rows: Rows) -> None:
        try:
            if self.history is not None:
                self.history.append(ring, rows)
        except OSError as error:
            self._log.error("history: cannot write: %s", error.strerror)

    def answer(self, asked: Mapping[str, Any], status: Status, *, with_events: bool) -> bytes:
        """Answer what happened since a time, or why a target became slower; for any thread.

        Raises ``HmdError`` where there is no history, ``UsageError`` for arguments that are none.
        """
        history, since_s = self.history, asked.get("since_s", 3600)
        before_s, latencies_ns = asked.get("before_s"), [node.latency_ns for node in status.nodes]
        if history is None:
            raise HmdError(self.problem)
        if not all(type(s) in (int, float) and 0 < s < 1e10 for s in (since_s, before_s or 1)):
            raise UsageError("report: since_s, before_s: give seconds")
        now_s = self._now()
        if before_s is None:
            found = report(history, now_s - since_s, now_s)
        else:
            gap_s = (max(latencies_ns) - min(latencies_ns)) * 1e-9
            target = str(asked.get("target", ""))
            found = explain_slow(history, target, now_s - since_s, now_s, before_s, gap_s)
        return json.dumps(found if with_events else {**found, "events": []}).encode()

    def close(self, status: Status) -> None:
        """Write the last, incomplete minute, and close the file."""
        if self.history is not None:
            self.write(status)
            self.history.close()
            self.history = None


def _totals(status: Status) -> dict[str, dict[str, float]]:
    """Return the counters since the start by target; last, without a name, those of the whole."""
    totals = {target.name: _of_target(target) for target in status.targets}
    failures = status.moves.pages_by_status
    totals[""] = {
        "cpu_s": status.cpu_s + status.sampler.outside_cpu_s,
        "paged_out_bytes": status.moves.paged_out_bytes,
        **{column: failures.get(column.removeprefix("failed_"), 0) for column in _FAILURES},
    }
    return totals


def _of_target(target: TargetStatus) -> dict[str, float]:
    sums: dict[str, float] = {f"dry_{name}": n for name, n in asdict(target.would).items()}
    for column in SUMS:
        if column not in sums and hasattr(target, column):
            sums[column] = getattr(target, column)
    for tier, count in enumerate(target.accesses[:-1]):
        column = f"accesses{min(tier, TIERS - 1)}"
        sums[column] = sums.get(column, 0.0) + count
    return sums


def rows_between(history: History, since_s: float, until_s: float) -> Rows:
    """Return the rows of a time, each part of it in the finest resolution that is left of it."""
    found, end_s = [], until_s
    for ring, coarser in zip(RINGS, (*RINGS[1:], None), strict=True):
        rows = history.rows(ring, since_s, end_s)
        rows = rows[rows["end_s"] <= end_s + 1]
        if coarser is not None:
            rows = rows[rows["start_s"] >= history.complete_since_s(ring, coarser.period_s)]
        found.append(rows)
        end_s = float(rows["start_s"].min(initial=end_s))
    return np.concatenate(found)


def report(history: History, since_s: float, until_s: float) -> dict[str, Any]:
    """Return what happened in a time, as :func:`_figures` of the whole and of each target."""
    rows = rows_between(history, since_s, until_s)
    by_name = {row["name"].decode(): row for row in _summed(rows)}
    whole = by_name.pop("", np.zeros((), ROW)[()])
    events = history.rows(EVENTS, since_s, until_s)
    return {
        "version": 1,
        "since_s": float(rows["start_s"].min(initial=until_s)),
        "until_s": until_s,
        "whole": {
            **_figures(whole),
            "cpu_s": float(whole["cpu_s"]),
            "memory_bytes": _mean(whole, "memory"),
            "sampling_overhead": _mean(whole, "overhead_s"),
            "paused_s": float(whole["paused_s"]),
            "paged_out_bytes": float(whole["paged_out_bytes"]),
            "failures": {
                column.removeprefix("failed_"): float(whole[column])
                for column in _FAILURES
                if whole[column]
            },
        },
        "targets": {name: _figures(row) for name, row in by_name.items()},
        "events": [
            {
                "at_s": float(e["start_s"]),
                "uid": int(e["uid"]),
                "text": e["text"].decode(errors="replace"),
            }
            for e in events
        ],
    }


def _mean(row: Any, column: str) -> float:
    return float(row[column] / max(row["seconds"], 1e-9))


def _figures(row: Any) -> dict[str, Any]:
    """Return a row's figures: means over its time, and sums (bytes, pages, seconds) of it."""
    accesses = [float(row[f"accesses{tier}"]) for tier in range(TIERS)]
    loads, seconds = float(row["measured_loads"]), float(row["seconds"])
    sums = SUMS[SUMS.index("promoted_bytes") : SUMS.index("measured_loads")]
    dry = SUMS[SUMS.index("dry_seconds") : SUMS.index("cpu_s")]
    moved_pages = float(row["promoted_bytes"] + row["demoted_bytes"]) / PAGE_BYTES
    return {
        "seconds": seconds,
        "processes": _mean(row, "processes"),
        "resident_bytes": [_mean(row, f"resident{tier}") for tier in range(TIERS)],
        "accesses_per_s": sum(accesses) / max(seconds, 1e-9),
        "fast_share": accesses[0] / sum(accesses) if sum(accesses) else None,
        "load_latency_s": float(row["measured_s"]) / loads if loads else None,
        **{column: float(row[column]) for column in sums},
        "move_cost_s": moved_pages * MOVE_NS * 1e-9 * PAGE_MOVE_COST,
        "dry_run": {c.removeprefix("dry_"): float(row[c]) for c in dry},
    }


LATENCY_GAP_S: Final = 100e-9
"""What an access to a slower tier waits longer, where latencies are not known."""


def explain_slow(
    history: History,
    target: str,
    at_s: float,
    until_s: float,
    before_s: float,
    gap_s: float = LATENCY_GAP_S,
) -> dict[str, Any]:
    """Compare a target from ``at_s`` on with the ``before_s`` before it; name likely reasons.

    Reasons are sorted by ``effect``: the share of time that the program waits longer by this, as
    far as the history shows it. ``gap_s`` is what an access to a slower tier waits longer.
    """
    earlier, later = report(history, at_s - before_s, at_s), report(history, at_s, until_s)
    before, after = (each["targets"].get(target) for each in (earlier, later))
    answer = {"version": 1, "target": target, "at_s": at_s, "before": before, "after": after}
    events = [*earlier["events"], *later["events"]]
    events = [event for event in events if event["at_s"] >= at_s - EVENT_LEAD_S]
    reasons: list[tuple[float, str]] = []
    if before and after:
        reasons = [*_target_reasons(before, after, gap_s), *_daemon_reasons(before, after, later)]
        gained = {
            name: now["resident_bytes"][0] - was["resident_bytes"][0]
            for name, now in later["targets"].items()
            if name != target and (was := earlier["targets"].get(name))
        }
        answer["gained_fast_bytes"] = {n: size for n, size in gained.items() if size > 0}
    reasons.sort(key=lambda reason: -reason[0])
    named = [{"effect": effect, "text": text} for effect, text in reasons if effect > MIN_EFFECT]
    moved = after["promoted_bytes"] + after["demoted_bytes"] if after else 0.0
    return {**answer, "moved_bytes": moved, "reasons": named, "events": events}


EVENT_LEAD_S: Final = 600.0
"""Requests this long before a program became slower are among the reasons."""

MIN_EFFECT: Final = 0.002
"""Least share of time of a reason that is named."""


def _target_reasons(
    before: Mapping[str, Any], after: Mapping[str, Any], gap_s: float
) -> list[tuple[float, str]]:
    """Return what a target's own rows say: placement, latency, work, growth."""
    reasons = []
    rate, was_rate = after["accesses_per_s"], before["accesses_per_s"]
    share, was_share = after["fast_share"], before["fast_share"]
    fast, was_fast = after["resident_bytes"][0], before["resident_bytes"][0]
    grown = sum(after["resident_bytes"]) - sum(before["resident_bytes"])
    if share is not None and was_share is not None and share < was_share:
        text = f"{was_share - share:.1%} of its accesses less are served by the fastest tier: "
        left = after["demoted_bytes"] - after["promoted_bytes"]
        if left > 0.02 * was_fast and fast < was_fast:
            text += f"hmd demoted {format_mib(left)} more than it promoted"
        elif grown > 0.05 * sum(before["resident_bytes"]):
            text += f"its memory has grown by {format_mib(grown)}, beyond what fits there"
        else:
            text += "it accesses other memory than before, and moves did not follow yet"
        reasons.append(((was_share - share) * rate * gap_s, text))
    latency, was = after["load_latency_s"], before["load_latency_s"]
    if latency and was and latency > 1.05 * was:
        why = "where pages lie, or how busy the memory is with other programs' accesses"
        text = f"a sampled load waits {latency * 1e9:.0f} ns instead of {was * 1e9:.0f} ns: {why}"
        reasons.append(((latency - was) * rate, text))
    slow = 1 - (share if share is not None else 1.0)
    if rate > 1.2 * was_rate:
        text = (
            f"it accesses memory {rate / max(was_rate, 1e-9):.1f} times as often: it has more work"
        )
        reasons.append(((rate - was_rate) * slow * gap_s, text))
    elif rate < 0.8 * was_rate:
        text = "it accesses memory less often: it has less work, or waits for something else (CPU,"
        text += " locks, disk, network)"
        reasons.append((1 - rate / was_rate, text))
    return reasons


def _daemon_reasons(
    before: Mapping[str, Any], after: Mapping[str, Any], later: Mapping[str, Any]
) -> list[tuple[float, str]]:
    """Return what hmd itself takes of a target: moves and records of samples."""
    cost = (each["move_cost_s"] / max(each["seconds"], 1e-9) for each in (after, before))
    moved = format_mib(after["promoted_bytes"] + after["demoted_bytes"])
    overhead = later["whole"]["sampling_overhead"]
    return [
        (next(cost) - next(cost), f"moves of {moved} interrupt it (migrate.rate)"),
        (overhead, f"records of samples take {overhead:.1%} of a CPU (sample.overhead)"),
    ]
