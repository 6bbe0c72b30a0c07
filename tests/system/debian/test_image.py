# SPDX-License-Identifier: MIT
"""The container image: built from its recipe on the clean Debian, and run.

No registry is asked: the base image of the recipe is the clean Debian, by the recipe's name for it.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hmd import __version__
from tests.system.debian.conftest import KERNELS, ROOT, keep_kernels

RECIPE = ROOT / "packaging/container/Containerfile"

pytestmark = [
    pytest.mark.timeout(900),
]


class Images:
    """Images in a store of their own."""

    def __init__(self, folder: Path) -> None:
        self._where = ("--root", str(folder / "store"), "--runroot", str(folder / "run"))

    def run(self, *words: str, log: bool = False) -> str:
        """Run buildah; return what it printed, or what it logged."""
        done = subprocess.run(
            ["buildah", *self._where, "--storage-driver=vfs", *words],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stderr if log else done.stdout


@pytest.fixture(scope="module")
def image(
    clean: Path, package: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Images, str]]:
    """A container of the image, to run commands in."""
    folder = tmp_path_factory.mktemp("image")
    images = Images(folder)
    base = re.search(r"^FROM (\S+)$", RECIPE.read_text(), re.MULTILINE)
    assert base is not None
    scratch = images.run("from", "scratch").strip()
    images.run("add", "--quiet", scratch, str(clean), "/")
    if KERNELS.exists():
        images.run("add", "--quiet", scratch, str(KERNELS), "/usr/lib/hmd")
    images.run("commit", "--quiet", "--rm", scratch, f"docker.io/library/{base[1]}")
    context = folder / "context"
    (context / "build/deb").mkdir(parents=True)
    shutil.copy(package, context / "build/deb")
    build = ("build", "--quiet", "--isolation=chroot", "--pull-never", "--tag=hmd")
    images.run(*build, f"--file={RECIPE}", str(context))
    # Not as docs/how-to/clusters.md has it: a chroot's capabilities are set after its filter,
    # which ours forbids.
    start = ("from", "--pull-never", "--security-opt=seccomp=unconfined")
    container = images.run(*start, "localhost/hmd").strip()
    keep_kernels(Path(images.run("mount", container).strip()))
    images.run("umount", container)
    yield images, container
    shutil.rmtree(folder)


def test_image_runs_hmd_as_entrypoint(image: tuple[Images, str]) -> None:
    images, container = image
    config = json.loads(images.run("inspect", "--type=image", "localhost/hmd"))["OCIv1"]["config"]
    assert config["Entrypoint"] == ["hmd"]
    assert config["Cmd"] == ["run"]
    assert config["ExposedPorts"] == {"9742/tcp": {}}
    assert "NUMBA_CPU_NAME=x86-64-v2" in config["Env"]
    run = ("run", "--isolation=chroot", "--cap-add=CAP_SYS_ADMIN", container, *config["Entrypoint"])
    assert images.run(*run, "--version").strip() == f"hmd {__version__}"
    assert "ready: 0 targets" in images.run(*run, *config["Cmd"], "--once", log=True)


def test_image_contains_no_build_files(image: tuple[Images, str]) -> None:
    images, container = image
    left = images.run(
        *("run", "--isolation=chroot", container, "sh", "-c"),
        "ls /tmp /var/lib/apt/lists /root; command -v gcc; true",
    )
    assert "hmd_" not in left
    assert "Packages" not in left
    assert "gcc" not in left


def test_image_has_its_kernels_compiled_for_any_cpu(image: tuple[Images, str]) -> None:
    """A pod has files that it cannot write, and would compile at each of its starts."""
    images, container = image
    code = "from hmd.policy.registry import _import_kernels as i; i(None)\n"
    code += "from hmd.base.numba_kernels import uncompiled; print(uncompiled())"
    words = ("run", "--isolation=chroot", container, "/usr/lib/hmd/bin/python", "-c", code)
    assert images.run(*words) == "{}\n"
