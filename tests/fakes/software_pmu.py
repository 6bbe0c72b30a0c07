# SPDX-License-Identifier: MIT
"""A PMU for machines that have none: software events of the kernel, found through a sysfs tree.

The event numbers are those of perf_event_open(2), PERF_TYPE_SOFTWARE. Page faults sample the
address that was touched, so they can stand for loads and minor faults for stores.
"""

from __future__ import annotations

from pathlib import Path

from hmd.linux.procfs import parse_ids

ONLINE = Path("/sys/devices/system/cpu/online").read_text().strip()
CPUS = len(parse_ids(ONLINE))
"""The host's CPUs: a sampler opens an event on each, whatever the affinity of the tests."""
FAULTS, MINOR_FAULTS, CLOCK, NONSENSE = "event=0x2", "event=0x5", "event=0x0", "event=0xff"


class SoftwarePmu:
    """A /sys and a /proc of an Intel CPU at 2 GHz whose PMU is the kernel's software events.

    Its model is in no table, so that loads are those that sysfs names.

    Everything but the hardware is real: perf_event_open, rings, the table of processes.
    """

    def __init__(self, root: Path) -> None:
        self.sysfs, self.proc = root / "sys", root / "proc"
        self.proc.mkdir(parents=True)
        self._write(self.sysfs / "devices/system/cpu/online", ONLINE)
        cpuinfo = (
            "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 254\ncpu MHz\t\t: 2000.0\n"
        )
        self._write(self.proc / "cpuinfo", cpuinfo)
        # The table of processes is the real one.
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                (self.proc / entry.name).symlink_to(entry)

    def device(self, name: str = "cpu", cpus: str | None = None, **events: str) -> None:
        device = self.sysfs / "bus/event_source/devices" / name
        self._write(device / "type", "1")
        self._write(device / "format/event", "config:0-7")
        self._write(device / "format/ldlat", "config1:0-15")
        self._write(device / "caps/max_precise", "3")
        if cpus is not None:
            self._write(device / "cpus", cpus)
        for event, terms in events.items():
            self._write(device / "events" / event.replace("_", "-"), terms)

    def amd(self) -> None:
        """Make it an AMD CPU whose IBS is the CPU clock."""
        cpuinfo = (self.proc / "cpuinfo").read_text()
        self._write(self.proc / "cpuinfo", cpuinfo.replace("GenuineIntel", "AuthenticAMD"))
        device = self.sysfs / "bus/event_source/devices/ibs_op"
        self._write(device / "type", "1")
        self._write(device / "format/cnt_ctl", "config:1")

    @staticmethod
    def _write(path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
