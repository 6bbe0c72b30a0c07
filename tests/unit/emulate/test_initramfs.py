# SPDX-License-Identifier: MIT
import lzma
from pathlib import Path

import pytest

from hmd.base.errors import MissingError
from hmd.emulate.assets import Kernel
from hmd.emulate.vm import images


def make_kernel(root: Path, modules: dict[str, str], builtin: str = "") -> Kernel:
    """A tree of modules, each with the names that it depends on."""
    folder = root / "lib/modules/6.1-test"
    for path, depends in modules.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        image = b"\x7fELF...\0license=GPL\0depends=" + depends.encode() + b"\0name=x\0"
        file.write_bytes(lzma.compress(image) if path.endswith(".xz") else image)
    (folder / "modules.builtin").write_text(builtin)
    return Kernel("6.1-test", root / "boot/vmlinuz-6.1-test", folder)


def test_load_order_dependencies_first(tmp_path: Path) -> None:
    kernel = make_kernel(
        tmp_path,
        {"fs/9p.ko.xz": "9pnet,net-fs", "net/9pnet.ko": "net-fs", "fs/net-fs.ko.xz": ""},
    )
    order = images.load_order(kernel, ["9p"])
    assert [name for name, _ in order] == ["net_fs", "9pnet", "9p"]
    assert all(image.startswith(b"\x7fELF") for _, image in order)


def test_load_order_builtin_modules_left_out(tmp_path: Path) -> None:
    kernel = make_kernel(tmp_path, {"a.ko": "b"}, builtin="kernel/fs/b.ko\n")
    assert [name for name, _ in images.load_order(kernel, ["a"])] == ["a"]


def test_load_order_kernel_without_9p_named_in_error(tmp_path: Path) -> None:
    kernel = make_kernel(tmp_path, {"a.ko": ""})
    with pytest.raises(MissingError, match=r"6\.1-test has no module 9p.*not the cloud one"):
        images.load_order(kernel, ["9p"])
