"""What the status socket answers at once, in its own thread, as far as the caller may see it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from hmd.control.status_json import status_answer
from hmd.control.status_socket import Queries
from hmd.control.visibility import visible_to
from hmd.observe.health import TickHealth
from hmd.observe.heat_history import HeatHistory
from hmd.observe.snapshot import Snapshot


def socket_queries(
    latest: Callable[[], Snapshot],
    heat_map: HeatHistory,
    health: Callable[[], TickHealth],
    proc: Path,
) -> Queries:
    """Return the queries by name; ``status`` and ``heatmap`` depend on who asks."""
    return {
        "health": lambda _: json.dumps(health()._asdict()).encode(),
        "status": lambda asked: status_answer(latest(), visible_to(asked.peer, proc)),
        "heatmap": lambda asked: heat_map.answer(asked.arguments, visible_to(asked.peer, proc)),
    }
