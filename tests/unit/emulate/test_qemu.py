# SPDX-License-Identifier: MIT
from pathlib import Path

import pytest

from hmd.emulate.preset import Preset, load, preset_names, with_nodes
from hmd.emulate.vm.qemu import BootFiles, TimingPlugin, command_line


def words_of(preset: Preset, **files: object) -> list[str]:
    given = {"kernel": Path("/k"), "initramfs_fd": 5, "agent_fd": 6, "console_fd": 7, "shares": ()}
    return command_line("qemu", preset, BootFiles(**{**given, **files}), verbose=False)  # type: ignore[arg-type]


def after(words: list[str], flag: str) -> list[str]:
    return [words[i + 1] for i, word in enumerate(words) if word == flag]


def test_qemu_nodes_have_memory_and_initiator() -> None:
    nodes = [word for word in after(words_of(load("three-tier")), "-numa") if "memdev" in word]
    assert nodes == [f"node,nodeid={i},memdev=ram{i},initiator=0" for i in range(3)]


def test_qemu_hmat_latency_before_bandwidth_per_target() -> None:
    lines = [word for word in after(words_of(load("dram-pm")), "-numa") if "hmat-lb" in word]
    slow = [line.split("memory,")[1] for line in lines if "target=1" in line]
    assert slow == [
        "data-type=read-latency,latency=305",
        "data-type=write-latency,latency=305",
        "data-type=read-bandwidth,bandwidth=39400M",
        "data-type=write-bandwidth,bandwidth=13900M",
    ]


def test_qemu_one_socket_per_node_if_nodes_have_equal_cpus() -> None:
    even = with_nodes(load("dram-pm"), ["cpus=0-1", "cpus=2-3"])
    assert after(words_of(even), "-smp") == ["4,sockets=2,cores=2,threads=1"]
    uneven = with_nodes(load("dram-pm"), ["cpus=0,2", "cpus=1"])
    words = words_of(uneven)
    assert after(words, "-smp") == ["3,sockets=3,cores=1,threads=1"]
    assert "cpu,node-id=0,socket-id=2,core-id=0" in after(words, "-numa")


def test_qemu_files_passed_as_inherited_descriptors() -> None:
    words = words_of(load("dram-pm"), model=TimingPlugin(Path("/p.so"), 9, 1 << 20, 10, 20))
    assert after(words, "-initrd") == ["/proc/self/fd/5"]
    assert any("mem-path=/proc/self/fd/9,size=1048576B" in word for word in words)
    plugin = "/p.so,shared=/proc/self/fd/9,params=/proc/self/fd/10,dilation=20"
    assert after(words, "-plugin") == [plugin]
    assert not any("/dev/shm" in word or "/tmp" in word for word in words)


def test_qemu_root_read_only_and_commas_escaped() -> None:
    shares = (("root", Path("/"), False), ("rw0", Path("/a,b"), True))
    root, writable = after(words_of(load("dram-pm"), shares=shares), "-fsdev")
    assert root.endswith("readonly=on")
    assert "path=/a,,b," in writable
    assert "readonly" not in writable


@pytest.mark.parametrize("name", preset_names())
def test_qemu_hmat_bandwidth_fits_16_bits_and_near_preset(name: str) -> None:
    preset = load(name)
    values = [
        int(word.split("bandwidth=")[1].removesuffix("M"))
        for word in after(words_of(preset), "-numa")
        if "read-bandwidth,bandwidth=" in word
    ]
    unit = min(value & -value for value in values)
    assert max(values) / unit < 65535
    initiators = sum(bool(node.cpus) for node in preset.nodes)
    for value, node in zip(values, preset.nodes * initiators, strict=True):
        assert value == pytest.approx(node.read_bandwidth_gbps * 1000, rel=0.001)


def test_qemu_absent_node_slot_and_no_memory() -> None:
    preset = load("three-tier")
    words = command_line(
        "qemu",
        preset,
        BootFiles(Path("/k"), 5, 6, 7, (), monitor_fd=8),
        verbose=False,
        absent={2},
    )
    later = preset.nodes[2].size
    assert after(words, "-m") == [
        f"{preset.size_bytes - later}B,slots=1,maxmem={preset.size_bytes}B"
    ]
    nodes = [word for word in after(words, "-numa") if word.startswith("node,")]
    assert nodes[1:] == ["node,nodeid=1,memdev=ram1,initiator=0", "node,nodeid=2,initiator=0"]
    assert f"memory-backend-ram,id=ram2,size={later}B" in after(words, "-object")
    assert after(words, "-mon") == ["chardev=monitor,mode=control"]
    assert "-mon" not in words_of(preset)


def test_qemu_latency_of_far_nodes_has_the_link() -> None:
    words = after(words_of(load("two-socket")), "-numa")
    latency = {
        tuple(int(field.split("=")[1]) for field in word.split(",")[1:3]): int(word.split("=")[-1])
        for word in words
        if "read-latency" in word
    }
    assert latency[0, 0] == latency[1, 1] == 101
    assert latency[0, 1] == latency[1, 0] == 162
    assert latency[0, 2] == latency[1, 3] == 305
    assert latency[0, 3] == latency[1, 2] == 366
