# SPDX-License-Identifier: MIT
"""``hmd advise``: the table, what follows from it, and daemons that know nothing yet."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hmd.cli.main import main
from hmd.control.status_socket import StatusSocket
from hmd.metrics.status import FAST_STEPS

GIB = 1 << 30
LESS = {"needed_bytes": [GIB, 2 * GIB, 3 * GIB], "runtime": [2.0, 1.5, 1.2, 1.1, 1.0, 0.9, 0.8]}
NONE = {"needed_bytes": [GIB, GIB, GIB], "runtime": [1.0] * len(FAST_STEPS)}

Serve = Callable[..., Path]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    servers = []

    def serve(targets: dict[str, Any], of_all: Any = None, tiers: int = 2) -> Path:
        document = {
            "tiers": [[node] for node in range(tiers)],
            "tier_bytes": [8 * GIB] * tiers,
            "demand": of_all,
            "targets": [
                {"name": name, "resident_bytes": [GIB, 3 * GIB][:tiers], "demand": demand}
                for name, demand in targets.items()
            ],
        }
        answers = {"status": lambda _: json.dumps(document).encode()}
        servers.append(StatusSocket(tmp_path / "s", answers))
        return servers[-1].path

    yield serve
    for server in servers:
        server.close()


def said(socket: Path, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["advise", "--socket", str(socket), *words]) == 0
    return capsys.readouterr().out


def test_advise_targets_that_gain_most_first(
    serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(serve({"idle": NONE, "redis": LESS}, LESS), capsys)
    assert text.index("redis") < text.index("idle")
    assert "0.80x" in text
    assert "take 20.0 % less time" in text
    assert "could be drained" not in text


def test_advise_memory_that_nobody_needs_named(
    serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(serve({"idle": NONE}, NONE), capsys)
    assert "0x of the fast memory of now (0 B) costs at most 2 % of the time" in text


def test_advise_unknown_runtimes_shown_as_unknown(
    serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(serve({"redis": {**LESS, "runtime": []}}, {**LESS, "runtime": []}), capsys)
    assert "runtimes are shown once the CPU time" in text
    assert "one memory tier" in said(serve({"redis": LESS}, LESS, tiers=1), capsys)


def test_advise_before_first_count_says_so(
    serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "nothing to advise yet" in said(serve({"redis": None}), capsys)


def test_advise_json_has_steps_and_targets(
    serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(said(serve({"redis": LESS}, LESS), capsys, "--json"))
    assert document["fast_steps"] == list(FAST_STEPS)
    assert document["targets"][0]["demand"] == LESS
