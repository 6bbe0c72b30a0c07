# SPDX-License-Identifier: MIT
"""Gated launch: a program waits until its recorder is ready."""

import errno
import os
import sys
import time
from pathlib import Path

import pytest

from hmd.base.errors import TargetError
from hmd.trace.session import Launched, attach


def test_launched_before_release_program_not_run(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    child = Launched(["touch", str(marker)])
    time.sleep(0.1)
    assert not marker.exists()
    child.release()
    assert child.wait(10) == 0
    assert marker.exists()
    child.close()


def test_launched_ended_program_in_proc_until_waited_for() -> None:
    child = Launched(["sh", "-c", "exit 3"])
    assert not child.exited(0.0)
    child.release()
    assert child.exited(10)
    assert Path(f"/proc/{child.pid}/stat").exists()
    assert child.wait(0) == 3
    assert child.exited(0.0)
    assert not Path(f"/proc/{child.pid}/stat").exists()
    child.close()


@pytest.mark.parametrize(("script", "code"), [("exit 7", 7), ("kill -TERM $$", 143), ("true", 0)])
def test_launched_exit_code_as_in_shell(script: str, code: int) -> None:
    child = Launched(["sh", "-c", script])
    child.release()
    assert child.wait(10) == code
    child.close()


def test_launched_wait_timeout_returns_none() -> None:
    child = Launched(["sleep", "60"])
    child.release()
    assert child.wait(0.05) is None
    child.kill()
    assert child.wait(0) == 137
    child.close()


def test_launched_missing_program_reported() -> None:
    child = Launched(["/no/such/program"])
    with pytest.raises(TargetError, match="cannot run /no/such/program: No such file"):
        child.release()
    child.close()


def test_launched_closed_before_release_process_ends() -> None:
    child = Launched(["touch", "/nowhere"])
    pid = child.pid
    child.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_launched_preparation_runs_in_child() -> None:
    child = Launched(
        [sys.executable, "-c", "import os; raise SystemExit(os.umask(0))"],
        lambda: (os.umask(0o037), None)[1],
    )
    child.release()
    assert child.wait(10) == 0o037
    child.close()


def test_launched_failed_preparation_reported() -> None:
    def prepare() -> None:
        raise OSError(errno.EINVAL, "no such node")

    child = Launched(["true"], prepare)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # its end of the gate is closed
    with pytest.raises(TargetError, match="Invalid argument"):
        child.release()
    child.close()


def test_attach_ended_process_refused() -> None:
    child = Launched(["true"])
    child.release()
    child.wait(10)
    child.close()
    with pytest.raises(TargetError, match="no process"):
        attach(child.pid)


def test_attached_process_end_detected() -> None:
    child = Launched(["sleep", "0.2"])
    watched = attach(child.pid)
    assert not watched.wait(0.0)
    child.release()
    assert watched.wait(10)
    watched.close()
    child.close()
