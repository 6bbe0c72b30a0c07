"""Admin requests: pause, drained nodes, pins, another policy."""

from __future__ import annotations

from typing import Final

from hmd.observe.metric_family import Values, counter, gauge, of
from hmd.observe.snapshot import Snapshot


def _drained(now: Snapshot) -> Values:
    nodes = {node.id: 0 for node in now.nodes} | {d.node: 1 for d in now.control.drains}
    return {(str(node),): float(drained) for node, drained in nodes.items()}


FAMILIES: Final = (
    gauge(
        "hmd_paused",
        "",
        "1 while hmd is paused: it samples, but moves no pages.",
        of(lambda now: float(now.control.paused)),
    ),
    gauge(
        "hmd_policy_overridden",
        "",
        "1 while an admin request replaces the policy of the configuration.",
        of(lambda now: float(now.control.policy_override is not None)),
    ),
    gauge(
        "hmd_node_drained",
        "",
        "1 for a drained memory node: hmd empties it and moves no pages to it.",
        _drained,
        "numa_node",
    ),
    gauge(
        "hmd_pins",
        "pins",
        "Pinned processes and targets, whose pages policies do not move.",
        of(lambda now: now.control.pinned),
    ),
    counter(
        "hmd_admin_requests",
        "requests",
        "Admin requests on the status socket, by command and outcome: done or refused.",
        lambda now: {labels: float(count) for labels, count in now.control.requests.items()},
        "command",
        "outcome",
    ),
)
