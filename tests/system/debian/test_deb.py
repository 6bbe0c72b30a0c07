# SPDX-License-Identifier: MIT
"""The Debian package: built, and installed, used and purged in a clean Debian."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from PIL import Image

from hmd import __version__
from tests.system.debian.conftest import ROOT, Debian, keep_kernels, lend_kernels

pytestmark = [
    pytest.mark.timeout(900),
]


def test_deb_installed_runs_and_purged_leaves_no_file(debian: Debian) -> None:
    before, users = debian.files(), debian.run("getent", "passwd")
    lend_kernels(debian.folder)
    assert "all kernels are compiled" in debian.run(
        "dpkg", "--force-unsafe-io", "--install", "/tmp/hmd.deb"
    )
    keep_kernels(debian.folder)
    check_installed_files(debian)
    check_command(debian)
    check_picture(debian)
    assert "ready: 0 targets" in debian.run("hmd", "run", "--once")
    edited = debian.folder / "etc/hmd/hmd.yaml"
    edited.write_text(edited.read_text() + "# mine\n")

    debian.run("dpkg", "--remove", "hmd")
    left = debian.files().keys() - before.keys()
    assert {path for path in left if "hmd" in path and not path.startswith("etc/hmd")} == set()
    assert edited.read_text().endswith("# mine\n")

    debian.run("dpkg", "--purge", "hmd")
    assert debian.files() == before
    assert debian.run("getent", "passwd") == users


def check_installed_files(debian: Debian) -> None:
    assert debian.run("getent", "passwd", "hmd").endswith(":/var/lib/hmd:/usr/sbin/nologin\n")
    assert not list(debian.folder.glob("etc/systemd/system/*/hmd.service"))
    debian.run("systemd-analyze", "verify", "--man=no", "/lib/systemd/system/hmd.service")
    share = debian.folder / "usr/share"
    for path in (
        *(
            "man/man1/hmd.1.gz",
            "man/man1/hmd-run.1.gz",
            "man/man5/hmd.yaml.5.gz",
            "man/man8/hmd.8.gz",
        ),
        *("bash-completion/completions/hmd", "fish/vendor_completions.d/hmd.fish"),
        *("zsh/vendor-completions/_hmd", "doc/hmd/copyright", "hmd/systemd/samplers/damon.conf"),
    ):
        assert (share / path).is_file(), path
    assert debian.run("dpkg-query", "-W", "-f", "${Conffiles}", "hmd").split()[0] == (
        "/etc/hmd/hmd.yaml"
    )
    assert (debian.folder / "etc/hmd/hmd.d").is_dir()


def check_command(debian: Debian) -> None:
    assert "hmd run" in debian.run("hmd", "--help")
    assert debian.run("hmd", "--version").split() == ["hmd", __version__]
    assert "histogram" in debian.run("hmd", "policy", "list")
    example = "/etc/hmd/hmd.yaml"
    said = debian.run("hmd", "config", "check", example)
    assert said.endswith(
        f"targets: there are none: hmd has nothing to do\n{example}: ok, 1 warning\n"
    )
    plan = json.loads(debian.run("hmd", "enable", "--dry-run", "--json", "--sampler", "damon"))
    assert [(file["path"], file["kind"]) for file in plan["files"]] == [
        ("/etc/hmd/hmd.yaml", "keep"),
        ("/etc/systemd/system/hmd.service.d/10-sampler.conf", "create"),
    ]
    # What a user has in PYTHONPATH is not hmd's.
    debian.run("sh", "-c", "mkdir /tmp/bad && echo raise SystemExit >/tmp/bad/numpy.py")
    assert "node" in debian.run("env", "PYTHONPATH=/tmp/bad", "hmd", "topology")


def check_picture(debian: Debian) -> None:
    debian.run("hmd", "record", "-o", "/tmp/run.hmdt", "--", "python3", "-c", "list(range(10**6))")
    folder = "MPLCONFIGDIR=/tmp/matplotlib"  # its cache of fonts, else in the user's home
    debian.run("env", folder, "hmd", "trace", "heatmap", "/tmp/run.hmdt", "-o", "/tmp/heat.png")
    with Image.open(debian.folder / "tmp/heat.png") as picture:
        colours = picture.convert("RGB").getcolors(picture.width * picture.height)
    assert colours is not None and len(colours) > 50


def test_deb_files_do_not_contain_the_build_path(package: Path, tmp_path: Path) -> None:
    subprocess.run(["dpkg-deb", "--raw-extract", str(package), str(tmp_path / "out")], check=True)
    found = subprocess.run(
        ["grep", "-rlF", "-e", str(ROOT), "-e", str(package.parent), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout == ""
