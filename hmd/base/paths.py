# SPDX-License-Identifier: MIT
"""Where the service's files are unless told otherwise: on these, clients and daemon agree."""

from __future__ import annotations

from pathlib import Path
from typing import Final

SOCKET: Final = Path("/run/hmd/hmd.sock")
"""The status socket."""

CONFIG_FILE: Final = Path("/etc/hmd/hmd.yaml")

STATE_FOLDER: Final = Path("/var/lib/hmd")
"""What outlives a restart, and the home of the daemon's user."""
