"""Overrides of a preset: by ``--node`` and ``--cpus`` of the command line, and of one size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from hmd.emulate.preset import MAX_CPUS, Preset, first_problem
from hmd.errors import ConfigError

NODE_FIELDS = {
    "name": "name",
    "size": "size",
    "cpus": "cpus",
    "read-latency": "read_latency_ns",
    "write-latency": "write_latency_ns",
    "read-bandwidth": "read_bandwidth_gbps",
    "write-bandwidth": "write_bandwidth_gbps",
    "granularity": "granularity_bytes",
}
"""Fields of ``--node`` and the preset's fields that they set (ns, GB/s, bytes)."""


def with_nodes(base: Preset, flags: Sequence[str]) -> Preset:
    """Return ``base`` with its nodes replaced by flags such as ``size=1GiB,cpus=0-1``.

    Fields that a flag omits come from the base's node of the same position, or from its last
    node. CPUs are an exception: a node has only those that its flag names, and where no flag
    names any, the first node has all CPUs of the base. Raises ConfigError.
    """
    given = [node_fields(flag) for flag in flags]
    if given and not any("cpus" in fields for fields in given):
        given[0]["cpus"] = tuple(range(base.cpus))
    nodes = []
    for position, fields in enumerate(given):
        like = base.nodes[min(position, len(base.nodes) - 1)].model_dump()
        like |= {"cpus": (), "source": f"--node {flags[position]}"}
        if position >= len(base.nodes):
            like["name"] = f"node{position}"
        nodes.append(like | fields)
    document = base.model_dump() | {"nodes": nodes}
    if len(nodes) != len(base.nodes):
        document["distances"] = None
    try:
        return Preset.model_validate(document)
    except ValidationError as error:
        raise ConfigError(f"--node: {first_problem(error)}") from None


def with_cpus(preset: Preset, count: int) -> Preset:
    """Return the preset with ``count`` CPUs distributed over the nodes that have CPUs."""
    holders = [i for i, node in enumerate(preset.nodes) if node.cpus]
    if not len(holders) <= count <= MAX_CPUS:
        raise ConfigError(f"--cpus: take {len(holders)} to {MAX_CPUS} for {preset.name}")
    cpus = {
        holder: tuple(range(count * k // len(holders), count * (k + 1) // len(holders)))
        for k, holder in enumerate(holders)
    }
    nodes = tuple(
        node.model_copy(update={"cpus": cpus.get(i, ())}) for i, node in enumerate(preset.nodes)
    )
    return preset.model_copy(update={"nodes": nodes})


def with_node_size(preset: Preset, node: int, size: int) -> Preset:
    """Return the preset with so many bytes on the node at this position."""
    nodes = list(preset.nodes)
    nodes[node] = nodes[node].model_copy(update={"size": size})
    return preset.model_copy(update={"nodes": tuple(nodes)})


def node_fields(flag: str) -> dict[str, Any]:
    """Return the preset's fields that one ``--node`` flag sets; raises ``ConfigError``."""
    fields: dict[str, Any] = {}
    last = ""
    for part in flag.split(","):
        name, equals, value = part.partition("=")
        if not equals and last == "cpus":  # the comma of cpus=0,2
            fields["cpus"] += f",{name}"
            continue
        if not equals or name not in NODE_FIELDS:
            known = ", ".join(NODE_FIELDS)
            raise ConfigError(f"--node: {part!r} is not FIELD=VALUE with a field of {known}")
        last = NODE_FIELDS[name]
        fields[last] = value
    return fields
