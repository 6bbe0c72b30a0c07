# SPDX-License-Identifier: MIT
"""``hmd dashboard`` as a process, with a real daemon and real traces."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hmd.base.errors import Exit
from hmd.cli.dashboard_command import _sweep
from hmd.cli.main import main
from hmd.control.client import ask
from tests.system.dashboard.chromium import Chromium

TIMEOUT_S = 60.0
FAULTER = """
import mmap, time
print("up", flush=True)
while True:
    memory = mmap.mmap(-1, 4 << 20)
    for page in range(0, len(memory), 4096):
        memory[page] = 1
    time.sleep(0.02)
    memory.close()
"""


def wait_for(what: Callable[[], Any], description: str) -> Any:
    deadline_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline_s:
        if answer := what():
            return answer
        time.sleep(0.05)
    raise AssertionError(f"waited {TIMEOUT_S:.0f} s without result for: {description}")


class Dashboard:
    """``hmd dashboard`` on a free port."""

    def __init__(self, *options: str) -> None:
        hmd = [sys.executable, "-m", "hmd"]
        self.process = subprocess.Popen(
            [*hmd, "dashboard", "--listen", "127.0.0.1:0", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("the page is at http://127.0.0.1:"), self.process.communicate()
        self.url = line.split()[4]

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=20) as answer:
            return json.load(answer)

    def end(self) -> tuple[int, str]:
        self.process.send_signal(signal.SIGINT)
        _, errors = self.process.communicate(timeout=TIMEOUT_S)
        return self.process.returncode, errors


@pytest.fixture
def dashboard() -> Iterator[Callable[..., Dashboard]]:
    """Start dashboards; those that a failed test leaves are killed."""
    started: list[Dashboard] = []

    def start(*options: str) -> Dashboard:
        started.append(Dashboard(*options))
        return started[-1]

    yield start
    for left in started:
        left.process.kill()
        left.process.communicate()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Start a real daemon on this host, again where one was killed."""
    socket, config = tmp_path / "run/hmd.sock", tmp_path / "hmd.yaml"
    started: list[subprocess.Popen[bytes]] = []
    with subprocess.Popen([sys.executable, "-c", FAULTER], stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        program.stdout.readline()
        config.write_text(
            f"tick: 50ms\ntargets: [{{name: faulter, pid: {program.pid}}}]\n"
            f"sample: {{sampler: faults, period: 1}}\nobserve: {{metrics: off, socket: {socket}}}\n"
        )

        def start() -> subprocess.Popen[bytes]:
            command = [sys.executable, "-m", "hmd", "run", "--config", str(config)]
            with (tmp_path / "log").open("ab") as log:
                started.append(subprocess.Popen(command, stderr=log, env=os.environ))
            return started[-1]

        yield start
        for process in started:
            process.kill()
            process.wait()
        program.kill()


def test_dashboard_follows_daemon_start_kill_and_restart(
    daemon: Callable[[], subprocess.Popen[bytes]],
    dashboard: Callable[..., Dashboard],
    tmp_path: Path,
) -> None:
    socket = tmp_path / "run/hmd.sock"
    page = dashboard("--socket", str(socket))
    wait_for(lambda: "no daemon answers" in page.get("state.json")["error"], "a poll")
    with Chromium(tmp_path / "chromium") as browser:
        browser.open(page.url)
        browser.wait_for("document.body?.dataset.state === 'lost'")
        first = daemon()
        process = "document.querySelector('#facts div:nth-child(2) dd')?.textContent"
        browser.wait_for(f"document.body.dataset.state === 'live' && {process} === '{first.pid}'")
        browser.wait_for("document.getElementById('heat-high').textContent !== ''")
        notices = browser.run("document.getElementById('notices').innerText")
        assert "Only one memory tier" in notices
        assert "No PMU" in notices
        row = "document.querySelector('#targets tbody tr')"
        assert browser.run(f"{row}.cells[0].textContent") == "faulter"

        def shows_what_is_resident() -> bool:
            # Both grow while the sweep finds the program's pages.
            shown = browser.run(f"{row}.cells[2].textContent")
            resident = ask(socket, "status")["targets"][0]["resident_bytes"][0]
            near = pytest.approx(resident / 2**20, rel=0.5)
            return shown.endswith("MiB") and float(shown.split()[0]) == near

        wait_for(shows_what_is_resident, "the program's memory")
        first.kill()
        browser.wait_for("document.getElementById('state').textContent.includes('is old')")
        second = daemon()
        browser.wait_for(f"document.body.dataset.state === 'live' && {process} === '{second.pid}'")
        assert browser.wrong == []
    assert page.end() == (130, "")


def test_dashboard_sweep_equals_that_of_estimate(
    traces: list[Path],
    capsys: pytest.CaptureFixture[str],
    dashboard: Callable[..., Dashboard],
    tmp_path: Path,
) -> None:
    words = [str(file) for file in traces]
    assert main(["estimate", "--sweep", "--json", *words]) == Exit.OK
    estimated = json.loads(capsys.readouterr().out)
    del estimated["schema"], estimated["made_by"]
    assert json.loads(_sweep(traces)) == {**estimated, "slow": words[0], "fast": words[1]}
    page = dashboard("--socket", str(tmp_path / "none"), "--traces", *words)
    assert page.get("sweep.json")["sweep"] == estimated["sweep"]
    with Chromium(tmp_path / "chromium") as browser:
        browser.open(page.url)
        browser.wait_for("document.querySelector('#sweep circle') !== null")
        assert "all slow: 0 B, 400.00 ms" in browser.run(
            "document.getElementById('sweep').textContent"
        )
        assert browser.wrong == []
    code, _ = page.end()
    assert code == 130


def test_dashboard_with_missing_trace_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = str(tmp_path / "none.hmdt")
    assert main(["dashboard", "--traces", missing, missing]) == Exit.FAILURE
    assert "none.hmdt" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--listen", "0.0.0.0:9743"], "take a loopback address and a port"),
        (["--listen", "[::]:9743"], "take a loopback address and a port"),
        (["--listen", "9743"], "take a loopback address and a port"),
        (["--listen", "127.0.0.1:70000"], "take a loopback address and a port"),
        (["--minutes", "0"], "take a number from 1 to 1440"),
        (["--minutes", "long"], "take a number from 1 to 1440"),
    ],
)
def test_dashboard_with_invalid_arguments_is_a_usage_error(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["dashboard", *words])
    assert left.value.code == Exit.USAGE
    assert message in capsys.readouterr().err


def test_dashboard_without_permission_ends_with_one_line(tmp_path: Path) -> None:
    """Else a page waits for ever for a daemon that does not answer this user."""
    path = tmp_path / "hmd.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        path.chmod(0o600)
        for folder in (tmp_path, *tmp_path.parents):
            folder.chmod(folder.stat().st_mode | 0o011)
        code = (
            "import os, sys; os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
            "from hmd.cli.main import main; sys.exit(main(sys.argv[1:]))"
        )
        words = ["dashboard", "--listen", "127.0.0.1:0", "--socket", str(path)]
        done = subprocess.run(
            [sys.executable, "-c", code, *words],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == Exit.NOT_PERMITTED
    assert done.stderr.count("\n") == 1
    assert "permission denied" in done.stderr
