"""What people have ordered: pause, drained nodes, pins, another policy."""

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
        "1 where hmd was told to pause: it samples and moves nothing.",
        of(lambda now: float(now.control.paused)),
    ),
    gauge(
        "hmd_policy_ordered",
        "",
        "1 where the policy in force is not the configuration's.",
        of(lambda now: float(now.control.policy_override is not None)),
    ),
    gauge(
        "hmd_node_drained",
        "",
        "1 for a memory node that is drained: it is emptied and nothing is moved there.",
        _drained,
        "numa_node",
    ),
    gauge(
        "hmd_pins",
        "pins",
        "Processes and targets whose pages policies leave alone.",
        of(lambda now: now.control.pinned),
    ),
    counter(
        "hmd_orders",
        "orders",
        "Orders that came over the status socket, done and refused.",
        lambda now: {labels: float(count) for labels, count in now.control.requests.items()},
        "order",
        "outcome",
    ),
)
