# SPDX-License-Identifier: MIT
"""``hmd emulate`` on the command line; each test boots a machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SMALL = ["--node", "size=256MiB,cpus=0", "--node", "size=128MiB"]


def emulate(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "hmd", "emulate", *SMALL, *arguments]
    return subprocess.run(
        argv, input=text, capture_output=True, text=True, timeout=250, check=False
    )


def test_emulate_command_stdio_files_and_exit_code_as_on_host(tmp_path: Path) -> None:
    report, kept = tmp_path / "report.json", tmp_path / "kept"
    script = 'echo "$GREETING"; cat; echo bad >&2; pwd; echo done > kept; exit 5'
    done = emulate(
        *("--json", str(report), "--cwd", str(tmp_path), "--rw", str(tmp_path)),
        *("--env", "GREETING=hello", "--", "sh", "-c", script),
        text="from outside\n",
    )
    assert done.returncode == 5, done.stderr
    assert done.stdout == f"hello\nfrom outside\n{tmp_path}\n"
    assert done.stderr == "bad\n"
    assert kept.read_text() == "done\n"
    document = json.loads(report.read_text())
    assert (document["exit_code"], document["timed_out"]) == (5, False)
    assert document["modelled_s"] > 0
    assert [node["name"] for node in document["nodes"]] == ["DRAM", "Optane"]
    assert document["cpus"][0]["instructions"] > 0


def test_recording_runs_a_command_of_this_folder_here(tmp_path: Path) -> None:
    (tmp_path / "count").write_text("#!/bin/sh\nexec sort -c numbers\n")
    (tmp_path / "count").chmod(0o755)
    (tmp_path / "numbers").write_text("".join(f"{n:09}\n" for n in range(100_000)))
    done = subprocess.run(
        [sys.executable, "-m", "hmd", "simulate", "--record", "x.misses", "--", "./count"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert " misses, " in done.stdout


def test_emulate_timeout_exits_124() -> None:
    done = emulate("--no-model", "--timeout", "1", "--", "sleep", "1000")
    assert done.returncode == 124
    assert "had not ended after 1 s" in done.stderr


def test_emulate_guest_panic_reported_in_one_line() -> None:
    done = emulate("--no-model", "--", "sh", "-c", "echo c > /proc/sysrq-trigger; sleep 1000")
    assert done.returncode == 1
    assert done.stderr.startswith("hmd: the emulated machine ended")
    assert "Traceback" not in done.stderr
