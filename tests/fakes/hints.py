# SPDX-License-Identifier: MIT
"""A status socket that takes the hints of the process that runs the tests."""

from __future__ import annotations

import os
from pathlib import Path

from hmd.control.commands import HintReceiver
from hmd.control.status_socket import StatusSocket
from hmd.linux.procfs import ProcessId, read_stat
from hmd.policy.use_hints import HintTable


def this_process() -> ProcessId:
    stat = read_stat(os.getpid())
    assert stat is not None
    return stat.process


def receiver_of(table: HintTable) -> HintReceiver:
    return HintReceiver(table, lambda: {this_process()})


def serve_hints(path: Path, table: HintTable) -> StatusSocket:
    return StatusSocket(path, {"hint": receiver_of(table).receive})
