"""Provoke every answer of move_pages(2) on a machine with two nodes, for system call and mover.

    move_pages.py CHURN ROUNDS [SCENARIO...]

Runs in the guest, as root. Prints a line of JSON per scenario: its name, and the result or the
failure. tests/vm/dram_pm/test_move_pages.py checks them.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import io
import json
import mmap
import os
import re
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hmd.cli.main import main as hmd
from hmd.decide.plan import Plan
from hmd.machine import move_pages
from hmd.machine.huge_pages import read_huge_pages
from hmd.machine.mappings import read_mappings
from hmd.machine.process_id import identify
from hmd.migrate import Mover, MoverSettings, MoveStatus
from hmd.migrate.process_plans import ProcessPlans

PAGE, BLOCK = 4096, 2 << 20
MIB = 1 << 20
BIND = 2  # MPOL_BIND, linux/mempolicy.h
CGROUP = Path("/sys/fs/cgroup")

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
numa = ctypes.CDLL("libnuma.so.1", use_errno=True)
numa.mbind.argtypes = [
    ctypes.c_void_p,
    ctypes.c_ulong,
    ctypes.c_int,
    ctypes.POINTER(ctypes.c_ulong),
    ctypes.c_ulong,
    ctypes.c_uint,
]


def checked(result: int | None) -> int:
    if result is None or result in (-1, 2**64 - 1):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def reserve(length: int, *, shared: bool = False, huge: bool = False) -> int:
    """Map memory at a multiple of 2 MiB, without touching it."""
    kind = mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE
    flags = kind | mmap.MAP_ANONYMOUS
    access = mmap.PROT_READ | mmap.PROT_WRITE
    start = checked(libc.mmap(None, length + BLOCK, access, flags, -1, 0))
    start = -(-start // BLOCK) * BLOCK
    checked(libc.madvise(start, length, mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE))
    return start


def bind(start: int, length: int, node: int) -> None:
    mask = ctypes.c_ulong(1 << node)
    checked(numa.mbind(start, length, BIND, ctypes.byref(mask), 64, 0))


def view(start: int, length: int) -> np.ndarray:
    return np.frombuffer(memoryview((ctypes.c_char * length).from_address(start)), np.uint64)


def fill(start: int, length: int) -> None:
    words = view(start, length)
    words[:] = np.arange(len(words), dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def digest(start: int, length: int) -> str:
    return hashlib.sha256(view(start, length).data).hexdigest()


class Target:
    """A child with memory of its own; answers for it until it is asked to end."""

    def __init__(
        self,
        length: int,
        *,
        node: int = 0,
        put: Callable[[int, int], object] = fill,
        prepare: Callable[[int], None] | None = None,
        **how: bool,
    ) -> None:
        self.length = length
        asks, self._ask = os.pipe()
        self._answer, answers = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.setpgid(0, 0)
            os.close(self._ask)
            self._serve(asks, answers, node, put, prepare, how)
        os.close(asks)
        os.close(answers)
        self.start = int(self._read())
        process = identify(self.pid)
        assert process is not None
        self.process = process

    def _serve(self, asks: int, answers: int, node: int, put: Any, prepare: Any, how: Any) -> None:
        with contextlib.suppress(BaseException):
            start = reserve(self.length, **how)
            bind(start, self.length, node)
            put(start, self.length)
            if prepare is not None:
                prepare(start)
            os.write(answers, f"{start}\n".encode())
            while os.read(asks, 1):
                os.write(answers, f"{digest(start, self.length)}\n".encode())
        os._exit(0)

    def _read(self) -> str:
        line = b""
        while not line.endswith(b"\n"):
            part = os.read(self._answer, 4096)
            assert part, "the target died"
            line += part
        return line.decode().strip()

    @property
    def digest(self) -> str:
        os.write(self._ask, b"?")
        return self._read()

    @property
    def addresses(self) -> np.ndarray:
        return np.arange(self.start, self.start + self.length, PAGE, dtype=np.uint64)

    @property
    def range(self) -> str:
        return f"{self.start:x}-{self.start + self.length:x}"

    @property
    def nodes(self) -> np.ndarray:
        return move_pages.query_nodes(self.pid, self.addresses)

    def kill(self) -> None:
        """Kill it and what it has forked."""
        os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        os.close(self._ask)
        os.close(self._answer)
        with contextlib.suppress(ProcessLookupError):
            self.kill()
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    def __enter__(self) -> Target:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def plan_of(target: Target, node: int, addresses: Sequence[int] | np.ndarray | None = None,
            size: int = 1) -> Plan:  # fmt: skip
    chosen = target.addresses if addresses is None else np.asarray(addresses, np.uint64)
    count = len(chosen)
    return Plan(
        processes=(target.process,),
        process=np.zeros(count, np.int32),
        address=chosen,
        pages=np.full(count, size, np.uint32),
        from_node=np.full(count, 1 - node, np.int16),
        to_node=np.full(count, node, np.int16),
        heat=np.zeros(count, np.float32),
        phase=np.zeros(count, np.int32),
    )


def mover(**settings: Any) -> Mover:
    return Mover(MoverSettings(rate_bytes_per_s=None, **settings))


def names(status: np.ndarray) -> dict[str, int]:
    codes, counts = np.unique(status, return_counts=True)
    return {MoveStatus(c).name: n for c, n in zip(codes.tolist(), counts.tolist(), strict=True)}


def raw(pid: int, addresses: Sequence[int], node: int,
        flags: move_pages.MoveFlags = move_pages.MoveFlags.MOVE) -> dict[str, Any]:  # fmt: skip
    column = np.array(addresses, np.uint64)
    result, status = move_pages.move_pages(pid, column, np.full(len(column), node, np.int32), flags)
    answers = [None if s == move_pages.UNTOUCHED else s for s in status.tolist()]
    return {"result": result, "status": answers}


SCENARIOS: dict[str, Callable[[], dict[str, Any]]] = {}


def scenario(function: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    SCENARIOS[function.__name__] = function
    return function


@scenario
def there_and_back() -> dict[str, Any]:
    with Target(8 * MIB) as target:
        before, moves = target.digest, mover()
        found: dict[str, Any] = {"before": names_of_nodes(target)}
        for round_, node in enumerate((1, 0, 1)):
            outcome = moves.apply(plan_of(target, node))
            found[f"round{round_}"] = {
                "status": names(outcome.status),
                "moved": list(map(list, outcome.moved.items())),
                "nodes": names_of_nodes(target),
                "intact": target.digest == before,
            }
        found["again"] = names(moves.apply(plan_of(target, 1)).status)
        found["calls"] = moves.stats.calls
        found["slowest_call_ms"] = moves.stats.slowest_call_ns / 1e6
        return found


def names_of_nodes(target: Target) -> dict[str, int]:
    codes, counts = np.unique(target.nodes, return_counts=True)
    return {str(c): n for c, n in zip(codes.tolist(), counts.tolist(), strict=True)}


@scenario
def dry_run() -> dict[str, Any]:
    with Target(1 * MIB) as target:
        outcome = mover(dry_run=True).apply(plan_of(target, 1))
        return {"status": names(outcome.status), "nodes": names_of_nodes(target)}


def punch(start: int) -> None:
    """Page 1 is given back and read (the zero page), page 2 given back, page 3 unmapped."""
    checked(libc.madvise(start + PAGE, 3 * PAGE, mmap.MADV_DONTNEED))
    ctypes.c_char.from_address(start + PAGE).value  # noqa: B018
    checked(libc.munmap(ctypes.c_void_p(start + 3 * PAGE), PAGE))


@scenario
def absent() -> dict[str, Any]:
    with Target(16 * PAGE, prepare=punch) as target:
        chosen = target.addresses[:5]
        answers = raw(target.pid, chosen.tolist(), 1)
        outcome = mover().apply(plan_of(target, 1, chosen))
        return {"raw": answers, "status": [MoveStatus(s).name for s in outcome.status]}


def pin(start: int, *offsets: int) -> None:
    """Put pages into a pipe by reference (vmsplice(2)): the kernel cannot move them then."""
    vector = ctypes.c_uint64 * 2
    for offset in offsets:
        _, write = os.pipe()
        checked(libc.vmsplice(write, ctypes.byref(vector(start + offset, PAGE)), 1, 0))


def share_with_child(touch: Callable[[int], object], start: int) -> None:
    """Fork a child that touches the memory and then stays."""
    ready, write = os.pipe()
    if os.fork() == 0:
        touch(start)
        os.write(write, b"x")
        signal.pause()
    os.read(ready, 1)


@scenario
def busy() -> dict[str, Any]:
    def prepare(start: int) -> None:
        pin(start, 0)

    with Target(64 * PAGE, prepare=prepare) as target:
        first = raw(target.pid, target.addresses[:3].tolist(), 1)
        after = target.nodes[:3].tolist()
        moves = mover()
        outcome = moves.apply(plan_of(target, 1), now_s=0.0)
        soon = moves.apply(plan_of(target, 1), now_s=1.0)
        return {
            "raw": first,
            "nodes": after,
            "status": names(outcome.status),
            "first": MoveStatus(outcome.status[0]).name,
            "soon": MoveStatus(soon.status[0]).name,
            "blacklisted": moves.stats.blacklisted_pages,
        }


@scenario
def tail() -> dict[str, Any]:
    """A failed run before an absent page: the kernel does not come to what follows."""

    def prepare(start: int) -> None:
        pin(start, 0)
        checked(libc.madvise(start + 2 * PAGE, PAGE, mmap.MADV_DONTNEED))

    with Target(16 * PAGE, prepare=prepare) as target:
        answers = raw(target.pid, target.addresses[:5].tolist(), 1)
        after = target.nodes[:5].tolist()
        outcome = mover().apply(plan_of(target, 1))
        return {"raw": answers, "nodes": after, "status": names(outcome.status)}


@scenario
def pinned_everywhere() -> dict[str, Any]:
    """Failed runs and pages that others share by turns: every call ends early."""

    def copy_most(start: int) -> None:
        for i in range(60):
            if i % 4 != 2:
                ctypes.c_char.from_address(start + i * PAGE).value = b"x"

    def prepare(start: int) -> None:
        pin(start, *(i * PAGE for i in range(0, 60, 4)))
        share_with_child(copy_most, start)

    with Target(60 * PAGE, prepare=prepare) as target:
        outcome = mover().apply(plan_of(target, 1))
        found = [MoveStatus(s).name for s in outcome.status]
        return {"status": [found[i::4] for i in range(4)], "calls": outcome.calls}


@scenario
def shared() -> dict[str, Any]:
    def prepare(start: int) -> None:
        share_with_child(lambda start: digest(start, 32 * PAGE), start)

    with Target(32 * PAGE, shared=True, prepare=prepare) as target:
        before = target.digest
        answers = raw(target.pid, target.addresses[:2].tolist(), 1)
        kept = mover().apply(plan_of(target, 1))
        moved = mover(move_shared=True).apply(plan_of(target, 1))
        nodes, intact = names_of_nodes(target), target.digest == before
        return {
            "raw": answers,
            "without": names(kept.status),
            "with": names(moved.status),
            "nodes": nodes,
            "intact": intact,
        }


@scenario
def huge_pages() -> dict[str, Any]:
    with Target(4 * BLOCK, huge=True) as target:
        before = target.digest
        blocks = target.addresses[:: BLOCK // PAGE]
        found: dict[str, Any] = {"huge_before": huge_in(target)}
        found["raw"] = raw(target.pid, [int(blocks[0]), int(blocks[0]) + PAGE], 1)
        found["along"] = (
            move_pages.query_nodes(target.pid, target.addresses[:512]).tolist() == [1] * 512
        )
        outcome = mover().apply(plan_of(target, 1, blocks[1:], size=512))
        found["status"] = names(outcome.status)
        found["moved_pages"] = int(outcome.moved_pages.sum())
        found["nodes"] = names_of_nodes(target)
        found["huge_after"] = huge_in(target)
        small = mover().apply(plan_of(target, 0, target.addresses[:512]))
        found["by_small_rows"] = names(small.status)
        found["intact"] = target.digest == before
        return found


def huge_in(target: Target) -> int:
    mappings = read_mappings(target.pid)
    assert mappings is not None
    huge = read_huge_pages(target.pid, mappings)
    assert huge is not None
    end = target.start + target.length
    return int(((huge.address >= target.start) & (huge.address < end)).sum())


@scenario
def split_huge_page() -> dict[str, Any]:
    with Target(2 * BLOCK, huge=True) as target:
        before, blocks = target.digest, target.addresses[::512]
        Path("/sys/kernel/debug/split_huge_pages").write_text(
            f"{target.pid},{target.start:#x},{target.start + target.length:#x}"
        )
        left = huge_in(target)
        moves = mover()
        outcome = moves.apply(plan_of(target, 1, blocks, size=512))
        return {
            "huge": left,
            "status": names(outcome.status),
            "moved_pages": outcome.moved_pages.tolist(),
            "split": moves.stats.split_huge_pages,
            "nodes": names_of_nodes(target),
            "intact": target.digest == before,
        }


@scenario
def large_folios() -> dict[str, Any]:
    """Folios of 64 KiB: all but the first address of each is EBUSY, and moves along."""
    control = Path("/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled")
    before = re.search(r"\[(\w+)\]", control.read_text())[1]  # type: ignore[index]
    control.write_text("always")
    try:
        # Huge pages go first where they may; half a huge page has no room for one.
        with Target(MIB, huge=True) as target:
            first = raw(target.pid, target.addresses[:2].tolist(), 1)
            outcome = mover().apply(plan_of(target, 1))
            return {
                "raw": first,
                "status": names(outcome.status),
                "nodes": names_of_nodes(target),
            }
    finally:
        control.write_text(before)


def ones(start: int, length: int) -> None:
    ctypes.memset(start, 1, length)


@contextlib.contextmanager
def full_node(node: int, left: int) -> Iterator[None]:
    """Fill a node with memory that stays there, but for about ``left`` bytes.

    These are more than the kernel keeps for itself, or it would kill the process that fills.
    """
    length = max(PAGE, (free_bytes(node) - left) // PAGE * PAGE)
    # In huge pages, which fill a node with few faults.
    with Target(length, node=node, huge=True, put=ones):
        yield


def free_bytes(node: int) -> int:
    text = Path(f"/sys/devices/system/node/node{node}/meminfo").read_text()
    return int(re.search(r"MemFree:\s+(\d+)", text)[1]) << 10  # type: ignore[index]


@scenario
def full() -> dict[str, Any]:
    with Target(96 * MIB, put=ones) as target, full_node(1, 80 * MIB):
        moves = mover()
        outcome = moves.apply(plan_of(target, 1))
        for _ in range(10):  # the kernel reclaims some room for each allocation, until it cannot
            code, out, err = command("--pid", target.pid, "--to", 1, "--range", target.range)
            if code:
                break
        back = moves.apply(plan_of(target, 0))
        return {
            "status": names(outcome.status),
            "calls": outcome.calls,
            "cli": [code, out, err],
            "back": names(back.status),
        }


@scenario
def cpuset() -> dict[str, Any]:
    group = CGROUP / "hmd-test"
    (CGROUP / "cgroup.subtree_control").write_text("+cpuset")
    group.mkdir()
    (group / "cpuset.mems").write_text("0")
    with Target(16 * PAGE) as target:
        (group / "cgroup.procs").write_text(str(target.pid))
        found = {
            "raw": raw(target.pid, target.addresses[:2].tolist(), 1),
            "status": names(mover().apply(plan_of(target, 1)).status),
            "cli": command("--pid", target.pid, "--to", 1),
        }
    group.rmdir()
    return found


@scenario
def offline() -> dict[str, Any]:
    with Target(16 * PAGE) as target:
        return {
            "raw": raw(target.pid, target.addresses[:2].tolist(), 7),
            "status": names(mover().apply(plan_of(target, 7)).status),
        }


@scenario
def exited() -> dict[str, Any]:
    with Target(64 * PAGE) as target:
        plan = plan_of(target, 1)
        target.kill()
        os.waitid(os.P_PID, target.pid, os.WEXITED | os.WNOWAIT)
        not_reaped = {
            "raw": raw(target.pid, plan.address[:2].tolist(), 1)["result"],
            "status": names(mover().apply(plan).status),
        }
        os.waitpid(target.pid, 0)
        gone = {
            "raw": raw(target.pid, plan.address[:2].tolist(), 1)["result"],
            "status": names(mover().apply(plan).status),
        }
    return {"not_reaped": not_reaped, "reaped": gone}


@scenario
def exits_in_the_middle() -> dict[str, Any]:
    """The process dies after the mover has looked, before its first and its second call."""
    found = {}
    for dies_at in (0, 1):
        with Target(600 * PAGE) as target:
            made = 0

            class Calls:
                query_nodes = staticmethod(move_pages.query_nodes)

                @staticmethod
                def move_pages(*args: Any, target: Target = target, dies_at: int = dies_at) -> Any:
                    nonlocal made
                    if made == dies_at:
                        target.kill()
                    made += 1
                    return move_pages.move_pages(*args)

            settings = MoverSettings(rate_bytes_per_s=None, most_batch_pages=256)
            outcome = Mover(settings, calls=Calls()).apply(plan_of(target, 1))
            found[str(dies_at)] = names(outcome.status)
    return found


@scenario
def kernel_thread() -> dict[str, Any]:
    process = identify(2)
    assert process is not None
    plan = Plan(
        (process,), np.zeros(1, np.int32), np.array([PAGE], np.uint64), np.ones(1, np.uint32),
        np.zeros(1, np.int16), np.ones(1, np.int16), np.zeros(1, np.float32), np.zeros(1, np.int32),
    )  # fmt: skip
    return {"raw": raw(2, [PAGE], 1)["result"], "status": names(mover().apply(plan).status)}


@scenario
def permission() -> dict[str, Any]:
    """An unprivileged mover, and one that may not move shared pages."""
    with Target(16 * PAGE) as target:
        read, write = os.pipe()
        plan = plan_of(target, 1)
        child = os.fork()
        if child == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            found = {
                "status": names(mover().apply(plan).status),
                "raw": raw(target.pid, plan.address[:2].tolist(), 1)["result"],
                "own_all": raw(os.getpid(), [PAGE], 1, move_pages.MoveFlags.MOVE_ALL)["result"],
            }
            os.write(write, json.dumps(found).encode())
            os._exit(0)
        os.waitpid(child, 0)
        os.close(write)
        return json.loads(os.read(read, 4096))


@scenario
def code() -> dict[str, Any]:
    with Target(16 * PAGE) as target:
        mappings = read_mappings(target.pid)
        assert mappings is not None
        row = int(np.flatnonzero(mappings.executable_file)[0])
        rows = np.arange(mappings.start[row], mappings.end[row], PAGE, dtype=np.uint64)
        before = move_pages.query_nodes(target.pid, rows)
        outcome = mover(move_shared=True).apply(plan_of(target, 1, rows))
        after = move_pages.query_nodes(target.pid, rows)
        return {"status": names(outcome.status), "stayed": (before == after).all().item()}


@scenario
def churn() -> dict[str, Any]:
    """A program forks, executes itself, unmaps and exits while all its pages go to and fro."""
    with subprocess.Popen([sys.argv[1], sys.argv[2]], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        process, moves, rounds = identify(child.pid), mover(), 0
        assert process is not None
        moved = {"1": 0, "0": 0}
        while child.poll() is None:
            node = 1 - rounds % 2
            mappings = read_mappings(child.pid)
            if mappings is not None:
                for found in ProcessPlans(process, mappings, node).slices():
                    outcome = moves.apply(found.plan)
                    moved[str(node)] += sum(outcome.moved.values())
            rounds += 1
        return {
            "exit": child.wait(),
            "said": child.stdout.read(),
            "rounds": rounds,
            "moved": moved,
            "pages": {status.name: n for status, n in moves.stats.pages.items() if n},
        }


def command(*words: object) -> tuple[int, str, str]:
    """Run ``hmd migrate`` in this process, to spare a start of the interpreter."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = hmd(["migrate", *map(str, words)])
    return int(code), out.getvalue(), err.getvalue()


@scenario
def command_line() -> dict[str, Any]:
    with Target(4 * MIB) as target, Target(2 * BLOCK, huge=True) as big:
        before = target.digest
        where = ("--pid", target.pid, "--range", target.range)
        found: dict[str, Any] = {}
        for name, words in {
            "dry": ("--to", 1, "--dry-run", "--json"),
            "limited": ("--to", 1, "--limit", "1MiB", "--json"),
            "rated": ("--to", 1, "--rate", "200MiB/s", "--json"),
            "done": ("--to", 1),
            "wrong_side": ("--to", 0, "--from", 0, "--json"),
            "back": ("--to", 0, "--from", 1),
        }.items():
            found[name] = [*command(*where, *words), names_of_nodes(target)]
        found["whole"] = [*command("--pid", big.pid, "--to", 1, "--json"), names_of_nodes(big)]
        found["huge"] = huge_in(big)
        found["intact"] = target.digest == before
        return found


def run_all() -> None:
    for name, function in SCENARIOS.items():
        if sys.argv[3:] and name not in sys.argv[3:]:
            continue
        begun = time.monotonic()
        try:
            answer: dict[str, Any] = {"found": function()}
        except Exception:
            answer = {"failed": traceback.format_exc()}
        answer["seconds"] = round(time.monotonic() - begun, 1)
        print(json.dumps({"name": name, **answer}), flush=True)


if __name__ == "__main__":
    run_all()
