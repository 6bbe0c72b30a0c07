# SPDX-License-Identifier: MIT
"""The QEMU command line of an emulated machine, and what the machine reports of itself.

The command line is a pure function of a preset and descriptors.
Files are inherited descriptors (/proc/self/fd/N), so that a killed launcher leaves no file behind.

QEMU's pc machine places the nodes one after another from address 0, with a hole below 4 GiB: of
more than 3.5 GiB, the part above 3 GiB continues at 4 GiB (hw/i386/pc_piix.c, pc_init1; the
guest's ACPI SRAT agrees). A node that spans the hole has one range that includes the hole, where
no memory is; ranges never overlap.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hmd.base.units import GIB
from hmd.emulate.preset import Preset
from hmd.linux.emulator_memory import NodeCounters, SharedMemory

# A fast, quiet boot; no watchdog, which would take a slow machine for a hung one.
KERNEL_PARAMETERS = (
    "panic=-1",
    "reboot=t",
    "mitigations=off",
    "nokaslr",
    "tsc=reliable",
    "nowatchdog",
    "rcupdate.rcu_cpu_stall_suppress=1",
    "random.trust_cpu=on",
    "cryptomgr.notests",
    "8250.nr_uarts=1",
    "i8042.noaux",
    "i8042.nokbd",
    "console=ttyS0",
    # The machine is for tiering policies: those that need NUMA balancing enable it.
    "numa_balancing=disable",
)


@dataclass(frozen=True, slots=True)
class TimingPlugin:
    """The timing model's plugin, its parameters, and the memory it shares with host and guest."""

    plugin: Path
    shared_fd: int
    shared_bytes: int
    params_fd: int
    dilation: float
    recording_fd: int | None = None
    step_ns: float = 0


@dataclass(frozen=True, slots=True)
class BootFiles:
    """Files that QEMU opens: the kernel by path, the others by inherited descriptor."""

    kernel: Path
    initramfs_fd: int
    agent_fd: int
    console_fd: int
    shares: tuple[tuple[str, Path, bool], ...]  # 9p tag, directory, writable
    model: TimingPlugin | None = None
    monitor_fd: int | None = None
    counted_clock: bool = False


def command_line(
    qemu: str,
    preset: Preset,
    files: BootFiles,
    *,
    verbose: bool,
    append: Sequence[str] = (),
    absent: Collection[int] = (),
) -> list[str]:
    """Return the whole command line, program first.

    Nodes that are ``absent`` have a memory backend with the id ``ramN``, to be plugged later.
    """
    parameters = [*KERNEL_PARAMETERS, "loglevel=7" if verbose else "quiet loglevel=3", *append]
    cores = _cores_per_socket(preset)
    words = [
        qemu,
        *("-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"),
        *("-name", "hmd,debug-threads=on"),  # threads of CPUs have names, as in `top -H`
        *("-machine", "pc,hmat=on,i8042=off,usb=off,vmport=off"),
        *_accelerator(counted_clock=files.counted_clock),
        # Five-level paging costs one memory access per TLB miss; no machine of this size needs it.
        # With fast strings the kernel clears and copies pages by `rep stosb` and `rep movsb`,
        # which emulation turns into one access per byte; without them it moves words.
        *("-cpu", "max,la57=off,erms=off,fsrm=off,fsrs=off"),
        *("-smp", f"{preset.cpus},sockets={preset.cpus // cores},cores={cores},threads=1"),
        *("-m", _memory(preset, absent)),
        *("-kernel", str(files.kernel), "-initrd", f"/proc/self/fd/{files.initramfs_fd}"),
        *("-append", " ".join(parameters)),
        *("-chardev", f"file,id=console,path=/proc/self/fd/{files.console_fd}"),
        *("-serial", "chardev:console"),
        *("-device", "virtio-serial-pci", "-chardev", f"socket,id=agent,fd={files.agent_fd}"),
        *("-device", "virtserialport,chardev=agent,name=hmd.agent"),
        *_numa(preset, absent),
    ]
    if files.monitor_fd is not None:
        words += ["-chardev", f"socket,id=monitor,fd={files.monitor_fd}"]
        words += ["-mon", "chardev=monitor,mode=control"]
    for tag, folder, writable in files.shares:
        words += _share(tag, folder, writable)
    if files.model is not None:
        words += _model(files.model)
    return words


def _accelerator(*, counted_clock: bool) -> list[str]:
    """Return threads and clock: by the host's clock, or one nanosecond per instruction."""
    if not counted_clock:
        return ["-accel", "tcg,thread=multi,tb-size=256"]
    # Counting is exact with one thread for all CPUs only; without sleep, idle time passes at once.
    return ["-accel", "tcg,thread=single,tb-size=256", "-icount", "shift=0,sleep=off"]


def _cores_per_socket(preset: Preset) -> int:
    """Return CPUs per socket: one socket per node if nodes have equal runs of CPUs, else one."""
    holders = [node.cpus for node in preset.nodes if node.cpus]
    count = len(holders[0])
    alike = all(
        cpus == tuple(range(position * count, (position + 1) * count))
        for position, cpus in enumerate(holders)
    )
    return count if alike else 1


def _memory(preset: Preset, absent: Collection[int]) -> str:
    """Return the memory at boot, with slots for memory that is plugged later."""
    later = sum(preset.nodes[node].size for node in absent)
    slots = f",slots={len(absent)},maxmem={preset.size_bytes}B" if absent else ""
    return f"{preset.size_bytes - later}B{slots}"


def _numa(preset: Preset, absent: Collection[int]) -> Iterator[str]:
    """Yield nodes, CPUs, distances and HMAT; latency before bandwidth, as QEMU requires."""
    initiators = [i for i, node in enumerate(preset.nodes) if node.cpus]
    for i, node in enumerate(preset.nodes):
        yield from ("-object", f"memory-backend-ram,id=ram{i},size={node.size}B")
        memory = "" if i in absent else f",memdev=ram{i}"
        yield from ("-numa", f"node,nodeid={i}{memory},initiator={preset.nearest_initiator(i)}")
    cores = _cores_per_socket(preset)
    for i, node in enumerate(preset.nodes):
        for cpu in node.cpus:
            place = f"socket-id={cpu // cores},core-id={cpu % cores}"
            yield from ("-numa", f"cpu,node-id={i},{place}")
    for i in range(len(preset.nodes)):
        for j in range(len(preset.nodes)):
            yield from ("-numa", f"dist,src={i},dst={j},val={preset.distance(i, j)}")
    step = _bandwidth_step(preset)
    for initiator in initiators:
        for target, node in enumerate(preset.nodes):
            pair = f"hmat-lb,initiator={initiator},target={target},hierarchy=memory"
            far_ns = node.far_ns if preset.nearest_initiator(target) != initiator else 0
            for way, latency in (("read", node.read_latency_ns), ("write", node.write_latency_ns)):
                total = round(latency + far_ns)
                yield from ("-numa", f"{pair},data-type={way}-latency,latency={total}")
            for way, speed in (
                ("read", node.read_bandwidth_gbps),
                ("write", node.write_bandwidth_gbps),
            ):
                # The kernel shows the table's MiB/s as MB/s, so the entries are MB/s.
                megabytes = round(speed * 1000 / step) * step
                yield from ("-numa", f"{pair},data-type={way}-bandwidth,bandwidth={megabytes}M")


def _bandwidth_step(preset: Preset) -> int:
    """Return the unit of HMAT's bandwidths in MB/s: an entry has 16 bits."""
    peak = max(max(n.read_bandwidth_gbps, n.write_bandwidth_gbps) for n in preset.nodes) * 1000
    step = 1
    while peak / step > 65000:
        step *= 2
    return step


def _share(tag: str, folder: Path, writable: bool) -> list[str]:
    read_only = "" if writable else ",readonly=on"
    path = str(folder).replace(",", ",,")
    return [
        "-fsdev",
        f"local,id={tag},path={path},security_model=passthrough,multidevs=remap{read_only}",
        "-device",
        f"virtio-9p-pci,fsdev={tag},mount_tag={tag}",
    ]


def _model(model: TimingPlugin) -> list[str]:
    shared, params = f"/proc/self/fd/{model.shared_fd}", f"/proc/self/fd/{model.params_fd}"
    plugin = str(model.plugin).replace(",", ",,")
    optional = f",step={model.step_ns:g}" if model.step_ns else ""
    if model.recording_fd is not None:
        optional += f",recording=/proc/self/fd/{model.recording_fd}"
    return [
        "-object",
        f"memory-backend-file,id=shared,share=on,mem-path={shared},size={model.shared_bytes}B",
        "-device",
        "ivshmem-plain,memdev=shared",
        "-plugin",
        f"{plugin},shared={shared},params={params},dilation={model.dilation:g}{optional}",
    ]


_ALL_BELOW = 0xE0000000
_LOW_BYTES = 0xC0000000
_HIGH_START = 4 * GIB


def counters_document(shared: SharedMemory, node_names: list[str] | None = None) -> dict[str, Any]:
    """Return modelled seconds and the counters by node and by CPU since the model started.

    Times are seconds. Misses are those of user mode, 64 bytes each. ``behind_s`` is the guest time
    by which emulation was slower than ``dilation`` allows.
    """
    cpus = [shared.counters(cpu) for cpu in range(shared.vcpus)]
    names = node_names or [str(node) for node in range(shared.nodes)]
    return {
        "modelled_s": shared.clock_ps * 1e-12,
        "dilation": shared.dilation,
        "nodes": [
            {"node": node, "name": names[node]} | _of_node([cpu.nodes[node] for cpu in cpus])
            for node in range(shared.nodes)
        ],
        "cpus": [
            {
                "cpu": number,
                "instructions": cpu.instructions,
                "loads": cpu.loads,
                "stores": cpu.stores,
                "llc_hits": cpu.llc_hits,
                "busy_s": cpu.busy_ps * 1e-12,
                "sampling_s": cpu.sampling_ps * 1e-12,
                "shootdown_s": cpu.shootdown_ps * 1e-12,
                "page_walks": cpu.page_walks,
                "paced_s": cpu.paced_ns * 1e-9,
                "behind_s": cpu.behind_ns * 1e-9,
                "load_samples": cpu.load_samples,
                "store_samples": cpu.store_samples,
                "lost_samples": cpu.lost_samples,
                "nodes": [_of_node([node]) for node in cpu.nodes],
            }
            for number, cpu in enumerate(cpus)
        ],
    }


def _of_node(counters: list[NodeCounters]) -> dict[str, Any]:
    """Return the sum of a node's counters over CPUs."""
    sums: dict[str, Any] = {
        name: sum(getattr(one, name) for one in counters) for name in NodeCounters._fields
    }
    sums["stall_s"] = sums.pop("stall_ps") * 1e-12
    return sums


def node_ranges(sizes_bytes: Sequence[int]) -> list[tuple[int, int]]:
    """Return [start, end) guest-physical of each node, in the pc machine's default layout."""
    low_bytes = _LOW_BYTES if sum(sizes_bytes) > _ALL_BELOW else _ALL_BELOW

    def address(offset: int) -> int:
        return offset if offset < low_bytes else offset - low_bytes + _HIGH_START

    ranges = []
    offset = 0
    for size in sizes_bytes:
        ranges.append((address(offset), address(offset + size - 1) + 1))
        offset += size
    return ranges
