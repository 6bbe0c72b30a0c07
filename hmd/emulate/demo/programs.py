# SPDX-License-Identifier: MIT
"""The programs of the demonstration: one with a moving hot set, and redis-server.

The former (workloads/hotset.c) reports its progress line by line. redis-server runs under
redis-benchmark, which reads the newest quarter of the keys: these are stored from the last to the
first, so that the keys that redis-benchmark reads (its random keys begin at 0) are the newest.
Recent data is hot, as in most caches. First touch has put it on the slow node, because the fast
node was full by then.

Debian ships the server's binary in redis-tools as redis-check-rdb; the package redis-server would
start a service. The binary selects its role by the name in argv[0].
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from hmd.base.errors import HmdError
from hmd.base.units import MIB
from hmd.emulate.assets import WORKLOADS, cache_folder, compile_static, find_program
from hmd.emulate.demo.measure import PROGRAM_CPU, SERVICE_CPU, Meter, Reading, Variant, bound_to
from hmd.emulate.vm.boot import Machine

SOURCE = WORKLOADS / "hotset.c"
INCLUDES = tuple(f"-I{SOURCE.parents[1] / folder}" for folder in ("plugin", "timing"))


@dataclass(frozen=True, slots=True)
class HotSet:
    """Settings of the program, which moves its hot set after half of ``seconds``.

    Without hmd the rate is constant, and ``still_seconds`` are enough.
    """

    footprint_bytes: int = 32 * MIB
    hot_bytes: int = 16 * MIB
    seconds: float = 112.0
    still_seconds: float = 16.0
    interval_ms: int = 500

    def for_variant(self, variant: Variant) -> HotSet:
        """Return the settings with the duration of a variant."""
        return self if variant is Variant.HMD else replace(self, seconds=self.still_seconds)

    @property
    def settled(self) -> tuple[float, float]:
        """The window in which rates are measured: the last two fifths of the second phase, s."""
        return self.seconds * 0.8, self.seconds

    def command(self) -> list[str]:
        """Return the command line; compiles the program unless it is cached."""
        return [
            str(compile_static(SOURCE, INCLUDES)),
            f"--footprint={self.footprint_bytes}",
            f"--hot={self.hot_bytes}",
            f"--seconds={self.seconds}",
            f"--interval={self.interval_ms}",
            "--wait",
        ]


@dataclass(frozen=True, slots=True)
class HotsetProgress:
    """One line of the program's output: its guest and modelled time, updates and misses."""

    time_s: float
    phase: int
    updates: int
    modelled_s: float
    reading: Reading


@dataclass(slots=True)
class HotSetRun:
    """The output of a run, in order."""

    progress: list[HotsetProgress] = field(default_factory=list)
    integrity_ok: bool = False

    def rate(self, begin_s: float, end_s: float) -> tuple[float, float]:
        """Return updates per second of the guest's clock and of modelled time in a window."""
        inside = [p for p in self.progress if begin_s <= p.time_s <= end_s]
        if len(inside) < 2:
            raise HmdError(f"hotset printed too few lines between {begin_s} s and {end_s} s")
        first, last = inside[0], inside[-1]
        updates = last.updates - first.updates
        return (
            updates / (last.time_s - first.time_s),
            updates / (last.modelled_s - first.modelled_s),
        )

    def fast_share(self, begin_s: float, end_s: float) -> float:
        """Return the share of LLC misses that the fast node served in a window."""
        inside = [p for p in self.progress if begin_s <= p.time_s <= end_s]
        return inside[-1].reading.since(inside[0].reading).fast_share

    def seconds_to_recover(self, moved_s: float, settled_rate: float, share: float) -> float | None:
        """Return guest seconds from the hot set's move until ``share`` of the settled rate.

        The rate is by modelled time per interval; recovery is the start of the first two
        consecutive intervals that reach the share. None without recovery.
        """
        after = [p for p in self.progress if p.time_s >= moved_s]
        good = [
            (b.updates - a.updates) / (b.modelled_s - a.modelled_s) >= share * settled_rate
            for a, b in itertools.pairwise(after)
            if b.modelled_s > a.modelled_s
        ]
        for i in range(len(good) - 1):
            if good[i] and good[i + 1]:
                return after[i].time_s - moved_s
        return None


class _Listener:
    """Parses the program's output line by line, on the agent's thread."""

    def __init__(self, meter: Meter):
        self._meter = meter
        self._pending = b""
        self.run = HotSetRun()
        self.ready = threading.Event()
        self._modelled_start_ps: int | None = None

    def __call__(self, data: bytes) -> None:
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            self._take(json.loads(line))

    def _take(self, said: dict[str, float]) -> None:
        if "ready" in said:
            self.ready.set()
        elif "integrity_ok" in said:
            self.run.integrity_ok = bool(said["integrity_ok"])
        elif "t_s" in said:
            clock_ps = int(said["modelled_ps"])
            if self._modelled_start_ps is None:
                self._modelled_start_ps = clock_ps
            self.run.progress.append(
                HotsetProgress(
                    said["t_s"],
                    int(said["phase"]),
                    int(said["updates"]),
                    (clock_ps - self._modelled_start_ps) * 1e-12,
                    self._meter.read(),
                )
            )


def run_hot_set(machine: Machine, settings: HotSet, variant: Variant, meter: Meter) -> HotSetRun:
    """Run the program once in a variant; the timing model starts after it has filled its memory.

    Raises HmdError where the program fails; the result reports corrupt words.
    """
    listener = _Listener(meter)
    complaints = bytearray()
    with meter.paused():
        job = machine.start(
            [*bound_to(variant, PROGRAM_CPU), *settings.command()],
            stdin=True,
            stdout=listener,
            stderr=complaints.extend,
        )
        if not listener.ready.wait(120):
            job.kill()
            raise HmdError(f"hotset did not become ready: {complaints.decode(errors='replace')}")
    job.write(b"go\n")
    code = job.wait(settings.seconds * 4 + 120)
    if code not in (0, 1):
        raise HmdError(f"hotset failed with {code}: {complaints.decode(errors='replace')}")
    return listener.run


SOCKET = "/tmp/redis.sock"
# A value repeats its key, so that no two values are equal and every corrupt word shows.
DOUBLINGS = 6
VALUE_BYTES = len("key:000000000000") << DOUBLINGS
KEY_BYTES = 1387
"""Memory per key (used_memory of INFO memory: 77,648,352 bytes with 56,000 keys)."""

_FILL_BATCH, _VERIFY_BATCH = 1_000, 12_000  # keys per request, so that no request takes long
_COUNT_WRONG = f"""
local wrong = 0
for i = tonumber(ARGV[1]), tonumber(ARGV[2]), -1 do
  local key = string.format('key:%012d', i)
  local value = key
  for _ = 1, {DOUBLINGS} do value = value .. value end
  if redis.call('GET', key) ~= value then wrong = wrong + 1 end
end
return wrong
"""


@dataclass(frozen=True, slots=True)
class RedisLoad:
    """Number of keys, number of hot keys, and requests per benchmark run."""

    keys: int = 56_000
    hot_keys: int = 14_000
    pipeline: int = 32
    round_requests: int = 24_000

    @property
    def hot_bytes(self) -> int:
        """Memory of the hot keys: value, key, dictionary entry and object, in jemalloc's sizes."""
        return self.hot_keys * KEY_BYTES


@dataclass(frozen=True, slots=True)
class BenchmarkRun:
    """One run of redis-benchmark.

    The modelled rate is by the busy time of the server's CPU: the rate for a client that keeps
    the server busy. The client here shares a CPU with the daemon.
    """

    ops_per_s: float
    modelled_ops_per_s: float
    fast_share: float


def server_program() -> str:
    """Return the path of redis-server; links it in the cache folder if it is not installed."""
    found = shutil.which("redis-server")
    if found is not None:
        return found
    link = cache_folder() / "redis-server"
    if not link.exists():
        link.symlink_to(find_program("redis-check-rdb", "redis-tools"))
    return str(link)


def redis_starts() -> list[list[str]]:
    """Return commands that load the programs of a trial and end at once."""
    return [
        [program, "--version"] for program in (server_program(), "redis-cli", "redis-benchmark")
    ]


def _set_command(number: int) -> bytes:
    """Return the request (RESP) that stores a key."""
    key = b"key:%012d" % number
    return b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (
        len(key),
        key,
        VALUE_BYTES,
        key * (1 << DOUBLINGS),
    )


class Redis:
    """A filled server in the guest."""

    def __init__(self, machine: Machine, load: RedisLoad, meter: Meter):
        self._machine, self._load, self._meter = machine, load, meter

    def fill(self) -> None:
        """Store all keys, last key first, by redis-cli's mass insertion."""
        said = bytearray()
        command = ["redis-cli", "-s", SOCKET, "--pipe"]
        job = self._machine.start(command, stdin=True, stdout=said.extend, stderr=said.extend)
        for top in range(self._load.keys, 0, -_FILL_BATCH):
            keys = range(top - 1, max(0, top - _FILL_BATCH) - 1, -1)
            job.write(b"".join(map(_set_command, keys)))
        job.close_stdin()
        if job.wait(300) != 0:
            raise HmdError(f"redis-cli --pipe: {said.decode(errors='replace').strip()[-200:]}")

    def wrong_values(self) -> int:
        """Return the number of values that differ from what was stored."""
        wrong, count = 0, ["redis-cli", "-s", SOCKET, "EVAL", _COUNT_WRONG, "0"]
        for top in range(self._load.keys - 1, -1, -_VERIFY_BATCH):
            bottom = max(0, top - _VERIFY_BATCH + 1)
            done = self._machine.run([*count, str(top), str(bottom)], timeout=300, check=True)
            wrong += int(done.stdout)
        return wrong

    def round(self) -> BenchmarkRun:
        """Read random hot keys, ``round_requests`` times."""
        load = self._load
        words = ["redis-benchmark", "-s", SOCKET, "--csv", "-c", "4", "-P", str(load.pipeline)]
        words += ["-n", str(load.round_requests), "-r", str(load.hot_keys)]
        before = self._meter.read()
        done = self._machine.run(
            ["taskset", "-c", str(SERVICE_CPU), *words, "GET", "key:__rand_int__"],
            timeout=600,
            check=True,
        )
        passed = self._meter.read().since(before)
        return BenchmarkRun(
            _rate(done.stdout), load.round_requests / passed.busy_s, passed.fast_share
        )


def _rate(answer: str) -> float:
    """Return the rps column of redis-benchmark's --csv output."""
    rows = list(csv.DictReader(io.StringIO(answer)))
    if not rows or "rps" not in rows[-1]:
        raise HmdError(f"redis-benchmark printed no rate: {answer.strip()[:200]!r}")
    return float(rows[-1]["rps"])


@contextmanager
def running_redis(
    machine: Machine, load: RedisLoad, variant: Variant, meter: Meter
) -> Iterator[Redis]:
    """Run a server without persistence, filled before the timing model starts."""
    redis = Redis(machine, load, meter)
    options = {"port": "0", "unixsocket": SOCKET, "save": "", "appendonly": "no"}
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    complaints = bytearray()
    with meter.paused():
        job = machine.start(
            [*bound_to(variant, PROGRAM_CPU), server_program(), *words],
            stdout=complaints.extend,
            stderr=complaints.extend,
        )
        give_up = time.monotonic() + 60
        while machine.run(["redis-cli", "-s", SOCKET, "PING"]).returncode != 0:
            if job.poll() is not None or time.monotonic() > give_up:
                raise HmdError(f"redis-server did not start: {complaints.decode()[-300:]}")
            time.sleep(0.2)
        redis.fill()
    try:
        yield redis
    finally:
        job.kill()
        job.wait(30)
