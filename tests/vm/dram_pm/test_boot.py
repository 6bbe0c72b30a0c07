# SPDX-License-Identifier: MIT
"""The emulated machine: nodes, files, commands and shutdown."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hmd.emulate.vm.boot import Machine
from hmd.emulate.vm.qemu import node_ranges

MIB = 1 << 20

# An array that ends where memory ends: a masked load of its last rows reads none beyond them.
SORT_AT_THE_END_OF_MEMORY = """
import ctypes, mmap
import numpy as np
page = mmap.PAGESIZE
memory = np.frombuffer(mmap.mmap(-1, 2 * page), np.uint8)
after = ctypes.c_void_p(memory.ctypes.data + page)
assert ctypes.CDLL(None).mprotect(after, page, 0) == 0  # PROT_NONE
for kind in (np.uint64, np.int32, np.float32):
    column = memory[:page].view(kind)[-100:]
    column[:] = np.arange(100)[::-1]
    column.sort()
    assert column.tolist() == list(range(100))
"""


def lines(machine: Machine, command: str) -> list[str]:
    return machine.run(["sh", "-c", command], timeout=60, check=True).stdout.splitlines()


def test_kernel_nodes_and_cpus_equal_preset(machine: Machine) -> None:
    nodes = "/sys/devices/system/node"
    assert lines(machine, f"cat {nodes}/online {nodes}/has_cpu") == ["0-1", "0"]
    assert lines(machine, f"cat {nodes}/node0/cpulist") == ["0-1"]
    assert lines(machine, f"cat {nodes}/node1/distance") == ["20 10"]
    total = lines(machine, f"awk '/MemTotal/ {{print $4}}' {nodes}/node*/meminfo")
    assert all(0.9 * 640 * 1024 < int(kib) <= 640 * 1024 for kib in total)


def test_kernel_node_speeds_equal_preset(machine: Machine) -> None:
    slow = machine.preset.nodes[1]
    folder = "/sys/devices/system/node/node1/access0/initiators"
    reported = lines(machine, f"cd {folder}; cat read_latency read_bandwidth write_bandwidth")
    read, write = slow.read_bandwidth_gbps * 1000, slow.write_bandwidth_gbps * 1000
    assert [int(value) for value in reported] == [slow.read_latency_ns, round(read), round(write)]


def test_kernel_two_speeds_two_memory_tiers(machine: Machine) -> None:
    tiers = "/sys/devices/virtual/memory_tiering"
    assert lines(machine, f"cat {tiers}/memory_tier*/nodelist") == ["0", "1"]


def test_kernel_node_ranges_equal_timing_model(machine: Machine) -> None:
    ranges = node_ranges([node.size for node in machine.preset.nodes])
    srat = re.compile(r"SRAT: Node (\d+) .*mem (0x\w+)-(0x\w+)")
    reported = [match for line in lines(machine, "dmesg") if (match := srat.search(line))]
    for match in reported:
        low, high = ranges[int(match[1])]
        assert low <= int(match[2], 16) < int(match[3], 16) < high
    assert {match[1] for match in reported} == {"0", "1"}


def test_numpy_sorts_up_to_the_end_of_memory(machine: Machine) -> None:
    machine.run([sys.executable, "-c", SORT_AT_THE_END_OF_MEMORY], timeout=60, check=True)


def test_guest_host_files_readable_and_writes_discarded(machine: Machine, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.write_text(Path(__file__).read_text())
    for here in (Path(__file__).resolve(), copy):
        assert lines(machine, f"head -1 {here}")[0] == copy.read_text().splitlines()[0]
        probe = here.with_name("written-in-the-guest")
        assert lines(machine, f"echo in > {probe}; cat {probe}") == ["in"]
        assert not probe.exists()


def test_share_written_by_guest_and_host_seen_by_both(
    machine: Machine, machine_share: Path
) -> None:
    machine.run(["sh", "-c", f"echo from inside > {machine_share}/a; sync"], check=True)
    assert (machine_share / "a").read_text() == "from inside\n"
    (machine_share / "b").write_text("from outside\n")
    assert lines(machine, f"cat {machine_share}/b") == ["from outside"]


def test_command_stdout_stderr_and_exit_code_returned(machine: Machine) -> None:
    done = machine.run(["sh", "-c", "echo out; echo err >&2; exit 7"], timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == ("out\n", "err\n", 7)


def test_command_killed_by_signal_returncode_negative(machine: Machine) -> None:
    assert machine.run(["sh", "-c", "kill -TERM $$"], timeout=60).returncode == -signal.SIGTERM


def test_command_not_found_exits_127(machine: Machine) -> None:
    done = machine.run(["/no/such"], timeout=60)
    assert done.returncode == 127
    assert "cannot run /no/such" in done.stderr


def test_command_stdin_in_several_chunks_complete(machine: Machine) -> None:
    text = "".join(f"{i}\n" for i in range(60_000))  # five chunks
    assert machine.run(["md5sum"], input=text, timeout=60).stdout == (
        subprocess.run(["md5sum"], input=text, capture_output=True, text=True, check=True).stdout
    )


def test_command_unread_stdin_exits_zero(machine: Machine) -> None:
    assert machine.run(["true"], input="x" * 300_000, timeout=60).returncode == 0


def test_command_large_output_complete(machine: Machine) -> None:
    assert len(machine.run(["seq", "200000"], timeout=60).stdout.splitlines()) == 200_000


def test_command_env_and_cwd_applied(machine: Machine) -> None:
    done = machine.run(["sh", "-c", "echo $COLOUR; pwd"], env={"COLOUR": "red"}, cwd="/usr/bin")
    assert done.stdout == "red\n/usr/bin\n"


def test_command_timeout_kills_command_and_children(machine: Machine) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        machine.run(["sh", "-c", "sleep 4242 & sleep 4242"], timeout=1)
    deadline = time.monotonic() + 30
    while lines(machine, "pgrep -c -f '^sleep 4242' || true") != ["0"]:
        assert time.monotonic() < deadline


def test_job_running_other_command_runs_concurrently(machine: Machine) -> None:
    out = bytearray()
    job = machine.start(["cat"], stdin=True, stdout=out.extend, stderr=out.extend)
    assert lines(machine, "echo meanwhile") == ["meanwhile"]
    assert job.poll() is None
    job.write(b"late")
    job.close_stdin()
    assert job.wait(60) == 0
    assert bytes(out) == b"late"


def test_numactl_bound_pages_on_node(machine: Machine) -> None:
    program = (
        "import mmap,re;m=mmap.mmap(-1,32<<20);m.write(b'x'*(32<<20));"
        "print(max((int(n) for n in re.findall(r'N1=(\\d+)',open('/proc/self/numa_maps').read()))))"
    )
    bound = machine.run(["numactl", "-m", "1", "/usr/bin/python3", "-c", program], timeout=60)
    assert int(bound.stdout) >= (32 * MIB) // 4096 // 512  # counted in huge pages, at least


def descendants(pid: int) -> set[int]:
    """Return a process and its descendants, from /proc."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def open_files(pids: set[int]) -> set[str]:
    found = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            found.add(str(link.readlink()))
    return found


def listing() -> set[Path]:
    return {path for folder in ("/dev/shm", "/tmp", "/run") for path in Path(folder).iterdir()}


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(condition: object, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "did not come true"
        time.sleep(0.05)


LAUNCHER = """
import sys
from hmd.emulate.vm.boot import Machine
from hmd.emulate.preset import load
with Machine(load("dram-pm")) as machine:
    print("up", flush=True)
    machine.run(["sleep", "1000"])
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_launcher_killed_no_process_or_file_left(number: signal.Signals) -> None:
    before = listing()
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    # Not as a context manager: a failure below would wait in its __exit__ for ever.
    try:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "up\n"
        family = descendants(launcher.pid)
        assert len(family) >= 2
        held = open_files(family)
        launcher.send_signal(number)
        launcher.wait(60)
    finally:
        launcher.kill()
        launcher.communicate()
    until(lambda: not any(alive(pid) for pid in family))
    assert not any("hmd" in path.name for path in listing() - before)
    assert not any(path.startswith(("/dev/shm/", "/tmp/hmd")) for path in held)


def test_job_output_sink_fails_only_that_job_ends(machine: Machine) -> None:
    def full(_: bytes) -> None:
        raise OSError("no space left")

    other = machine.start(["sleep", "1"], stdout=full, stderr=full)
    job = machine.start(["sh", "-c", "echo out; sleep 600"], stdout=full, stderr=full)
    with pytest.raises(OSError, match="no space left"):
        job.wait(60)
    assert other.wait(60) == 0
