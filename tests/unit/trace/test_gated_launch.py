"""A program that waits at the gate until its recorder is ready."""

import errno
import os
import sys
import time
from pathlib import Path

import pytest

from hmd.errors import TargetError
from hmd.trace.gated_launch import Launched, attach


def test_nothing_runs_before_the_release(tmp_path: Path) -> None:
    sign = tmp_path / "ran"
    child = Launched(["touch", str(sign)])
    time.sleep(0.1)
    assert not sign.exists()
    child.release()
    assert child.wait(10) == 0
    assert sign.exists()
    child.close()


def test_one_that_has_ended_can_be_looked_at_until_it_is_waited_for() -> None:
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
def test_exit_codes_are_a_shells(script: str, code: int) -> None:
    child = Launched(["sh", "-c", script])
    child.release()
    assert child.wait(10) == code
    child.close()


def test_waiting_ends_with_the_time() -> None:
    child = Launched(["sleep", "60"])
    child.release()
    assert child.wait(0.05) is None
    child.kill()
    assert child.wait(0) == 137
    child.close()


def test_what_cannot_run_is_told() -> None:
    child = Launched(["/no/such/program"])
    with pytest.raises(TargetError, match="cannot run /no/such/program: No such file"):
        child.release()
    child.close()


def test_a_child_at_the_gate_ends_with_its_recorder() -> None:
    child = Launched(["touch", "/nowhere"])
    pid = child.pid
    child.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_preparation_is_the_childs() -> None:
    child = Launched(
        [sys.executable, "-c", "import os; raise SystemExit(os.nice(0))"],
        lambda: (os.nice(3), None)[1],
    )
    child.release()
    assert child.wait(10) == (os.nice(0) + 3) % 256
    child.close()


def test_a_child_that_cannot_be_prepared_is_told() -> None:
    def prepare() -> None:
        raise OSError(errno.EINVAL, "no such node")

    child = Launched(["true"], prepare)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # its end of the gate is closed
    with pytest.raises(TargetError, match="Invalid argument"):
        child.release()
    child.close()


def test_no_process_to_attach_to() -> None:
    child = Launched(["true"])
    child.release()
    child.wait(10)
    child.close()
    with pytest.raises(TargetError, match="no process"):
        attach(child.pid)


def test_an_attached_process_is_seen_to_end() -> None:
    child = Launched(["sleep", "0.2"])
    watched = attach(child.pid)
    assert not watched.wait(0.0)
    child.release()
    assert watched.wait(10)
    watched.close()
    child.close()
