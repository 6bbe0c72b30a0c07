"""A real program: redis-server under redis-benchmark, reading its newest quarter of keys.

Keys are stored from the last to the first, so that those which redis-benchmark then asks for
(its random keys begin at 0) were stored last: recent data is hot, as it is in most caches, and
first touch has put it into the slow node, because the fast one was full by then.

Debian keeps the server's binary in redis-tools as redis-check-rdb and the name redis-server in a
package that would start a service; it tells which to be by the name that it is called by.
"""

from __future__ import annotations

import csv
import io
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from hmd.emulate.assets import cache_folder, find_program
from hmd.emulate.boot import Machine
from hmd.emulate.demo.meter import Meter
from hmd.emulate.demo.placement import PROGRAM_CPU, SERVICE_CPU, Way, bound_to
from hmd.errors import HmdError

SOCKET = "/tmp/redis.sock"
# Stored with the checksum of its key, which `verify` computes again.
_FILL = """
for i = tonumber(ARGV[1]), tonumber(ARGV[2]), -1 do
  local key = string.format('key:%012d', i)
  redis.call('SET', key, string.rep(redis.sha1hex(key), tonumber(ARGV[3]) / 40))
end
"""
_VERIFY = """
local wrong = 0
for i = tonumber(ARGV[1]), tonumber(ARGV[2]), -1 do
  local key = string.format('key:%012d', i)
  if redis.call('GET', key) ~= string.rep(redis.sha1hex(key), tonumber(ARGV[3]) / 40) then
    wrong = wrong + 1
  end
end
return wrong
"""


@dataclass(frozen=True, slots=True)
class RedisLoad:
    """What is stored and asked for; values are of ``value_bytes``, a multiple of 40."""

    keys: int = 160_000
    hot_keys: int = 40_000
    value_bytes: int = 480
    pipeline: int = 32
    round_requests: int = 60_000

    @property
    def hot_bytes(self) -> int:
        """Memory of the hot keys: value, key, dictionary entry and object, as jemalloc rounds."""
        return self.hot_keys * (self.value_bytes + 160) + 8 * 2 * self.keys


@dataclass(frozen=True, slots=True)
class Round:
    """One run of redis-benchmark."""

    ops_per_s: float
    modelled_ops_per_s: float
    fast_share: float


def server_program() -> str:
    """Return a path named redis-server, made beside the other built parts where there is none."""
    found = shutil.which("redis-server")
    if found is not None:
        return found
    link = cache_folder() / "redis-server"
    if not link.exists():
        link.symlink_to(find_program("redis-check-rdb", "redis-tools"))
    return str(link)


class Redis:
    """A filled server in the guest."""

    def __init__(self, machine: Machine, load: RedisLoad, meter: Meter):
        self._machine, self._load, self._meter = machine, load, meter

    def cli(self, *words: str, timeout: float = 300) -> str:
        """Return what redis-cli prints."""
        done = self._machine.run(["redis-cli", "-s", SOCKET, *words], timeout=timeout, check=True)
        return done.stdout.strip()

    def fill(self) -> None:
        """Store all keys, the last first."""
        self._each_slice(_FILL)

    def wrong_values(self) -> int:
        """Return how many values are not what was stored."""
        return sum(int(answer) for answer in self._each_slice(_VERIFY))

    def _each_slice(self, script: str, size: int = 20_000) -> list[str]:
        """Run a script on slices of the keys, so that none holds the server for long."""
        value_bytes = str(self._load.value_bytes)
        return [
            self.cli("EVAL", script, "0", str(top), str(max(0, top - size + 1)), value_bytes)
            for top in range(self._load.keys - 1, -1, -size)
        ]

    def round(self) -> Round:
        """Ask for hot keys at random, as often as the load says."""
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
        return Round(_rate(done.stdout), load.round_requests / passed.modelled_s, passed.fast_share)


def _rate(answer: str) -> float:
    """Return the rps column of redis-benchmark's --csv output."""
    rows = list(csv.DictReader(io.StringIO(answer)))
    if not rows or "rps" not in rows[-1]:
        raise HmdError(f"redis-benchmark said nothing of its rate: {answer.strip()[:200]!r}")
    return float(rows[-1]["rps"])


@contextmanager
def running_redis(machine: Machine, load: RedisLoad, way: Way, meter: Meter) -> Iterator[Redis]:
    """Run a server that stores nothing on disk, filled before the model is switched on."""
    redis = Redis(machine, load, meter)
    options = {"port": "0", "unixsocket": SOCKET, "save": "", "appendonly": "no"}
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    complaints = bytearray()
    with meter.paused():
        job = machine.start(
            [*bound_to(way, PROGRAM_CPU), server_program(), *words],
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
