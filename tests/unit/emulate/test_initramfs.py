import lzma
from pathlib import Path

import pytest

from hmd.emulate import initramfs
from hmd.emulate.assets import Kernel
from hmd.errors import MissingError


def a_kernel(root: Path, modules: dict[str, str], builtin: str = "") -> Kernel:
    """A tree of modules, each with the names that it depends on."""
    folder = root / "lib/modules/6.1-test"
    for path, depends in modules.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        image = b"\x7fELF...\0license=GPL\0depends=" + depends.encode() + b"\0name=x\0"
        file.write_bytes(lzma.compress(image) if path.endswith(".xz") else image)
    (folder / "modules.builtin").write_text(builtin)
    return Kernel("6.1-test", root / "boot/vmlinuz-6.1-test", folder)


def test_modules_come_after_what_they_depend_on(tmp_path: Path) -> None:
    kernel = a_kernel(
        tmp_path,
        {"fs/9p.ko.xz": "9pnet,net-fs", "net/9pnet.ko": "net-fs", "fs/net-fs.ko.xz": ""},
    )
    order = initramfs.load_order(kernel, ["9p"])
    assert [name for name, _ in order] == ["net_fs", "9pnet", "9p"]
    assert all(image.startswith(b"\x7fELF") for _, image in order)


def test_what_is_built_in_is_not_loaded(tmp_path: Path) -> None:
    kernel = a_kernel(tmp_path, {"a.ko": "b"}, builtin="kernel/fs/b.ko\n")
    assert [name for name, _ in initramfs.load_order(kernel, ["a"])] == ["a"]


def test_a_kernel_without_9p_is_named(tmp_path: Path) -> None:
    kernel = a_kernel(tmp_path, {"a.ko": ""})
    with pytest.raises(MissingError, match=r"6\.1-test has no module 9p.*not the cloud one"):
        initramfs.load_order(kernel, ["9p"])
