# SPDX-License-Identifier: MIT
"""Far memory in the guest under systemd, as `hmd enable --far` makes it: nbd, then zram.

    far_under_systemd.py REMEMBER MODULE...

Network, server and program are those of far_memory.py. hmd sends the program's memory out; the
server is killed meanwhile, and started again. One JSON line at the end;
tests/vm/dram_pm/test_far_under_systemd.py checks it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import daemon  # type: ignore[import-not-found]  # in the same folder as this program
import far_memory  # type: ignore[import-not-found]

BYTES = far_memory.MIB << 20
FAR = "hmd-far.service"
CONFIG = """\
tick: 1s
rescan: 2s
targets:
- name: remember
  exe: remember
  pageout: 3s
  pageout_pressure: 100%
sample:
  cpu_quota: 100%
decide:
  policy: none
migrate:
  rate: 100MiB/s
"""


def enable(*options: str) -> str:
    """Run ``hmd enable`` with far memory; returns what it shows."""
    words = ("enable", "--yes", "--accept-writable", "--sampler", "emulated")
    argv = (sys.executable, "-m", "hmd", *words, *options)
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{done.stderr}; {lines_of_far()}")
    return done.stdout


def swaps() -> list[str]:
    return [line.split()[0] for line in Path("/proc/swaps").read_text().splitlines()[1:]]


def lines_of_far() -> list[str]:
    return str(daemon.run("journalctl", "-u", FAR, "-o", "cat", "--no-pager")).splitlines()


def shown(found: dict[str, Any]) -> dict[str, Any]:
    moved = {"paged_out_bytes": found["moves"]["paged_out_bytes"]}
    return {name: found[name] for name in ("ticks", "pid")} | moved | found["far"]


def when_out(more: int = 0) -> dict[str, Any]:
    """Return what is shown once most of the program's memory has gone out, after so many bytes."""
    most = more + BYTES * 3 // 4
    return shown(daemon.when(lambda found: found["moves"]["paged_out_bytes"] > most))


def lose_and_find_the_server(remember: Any) -> dict[str, Any]:
    """Kill the server while pages are out, and start it again; return what was seen."""
    found: dict[str, Any] = {"before": when_out()}
    found["swapped_bytes"] = remember.send_out()
    far_memory.kill_server()
    remember.ask()
    down = daemon.when(lambda s: s["far"]["stopped"])
    found["down"] = shown(down)
    found["down_metrics"] = daemon.metrics()
    found["later"] = shown(daemon.when(lambda s: s["ticks"] > down["ticks"] + 3))
    far_memory.start_server()
    found["wrong_words"] = remember.read()
    found["up"] = shown(daemon.when(lambda s: not s["far"]["stopped"]))
    found["again"] = when_out(found["up"]["paged_out_bytes"])
    found["up_metrics"] = daemon.metrics()
    return found


def main() -> None:
    """Make hmd a service with far memory by nbd, lose its server; then with zram; end it all."""
    program, *modules = sys.argv[1:]
    for module in modules:
        daemon.run("busybox", "insmod", module)
    # The guest's kernel is not that of its files, and its modules are loaded.
    shutil.copy("/bin/true", "/usr/local/sbin/modprobe")
    daemon.install(CONFIG)
    drop_ins = Path(f"/etc/systemd/system/{FAR}.d")
    drop_ins.mkdir()
    (drop_ins / "50-here.conf").write_text(f"[Service]\nEnvironment=PYTHONPATH={Path.cwd()}\n")
    far_memory.make_network()
    far_memory.make_export()
    far_memory.start_server()
    (far_memory.GROUP.parent / "cgroup.subtree_control").write_text("+memory")
    remember = far_memory.Remember(shutil.copy(program, "/usr/local/bin/remember"))

    found: dict[str, Any] = {"enabled": enable("--far", f"nbd:{far_memory.SERVER}/far")}
    found["swaps"] = swaps()
    device = Path(found["swaps"][0]).name
    found["connections"] = len(list(Path(f"/sys/class/block/{device}/mq").iterdir()))
    found |= lose_and_find_the_server(remember)

    # Another engine takes its place: pages come back first.
    found["replaced"] = enable("--far", f"zram:{2 * far_memory.MIB}MiB")
    found["zram_swaps"] = swaps()
    found["zram"] = when_out()
    found["zram_swapped_bytes"] = remember.send_out()
    daemon.run(sys.executable, "-m", "hmd", "disable", "--yes")
    found["left_swaps"] = swaps()
    found["left_devices"] = [path.name for path in Path("/sys/class/block").glob("zram*")]
    remember.ask()
    found["wrong_words_of_zram"] = remember.read()
    found["journal"] = daemon.journal()
    found["far_lines"] = lines_of_far()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
