# SPDX-License-Identifier: MIT
"""Presets: descriptions of emulated machines in YAML, validated field by field.

A preset describes the nodes (size, CPUs, latencies, bandwidths, loaded latency), the core (reorder
window, line fill buffers), the last-level cache and the cost of sampling, each with the published
source of its figures. ``load`` takes the name of a file in hmd/emulate/presets, or a path, and
raises ConfigError with file, line and field. Adding a topology is adding a file there.
``with_cpus`` and its like return a preset with other CPUs, nodes or sizes, as ``--cpus`` and
``--node`` ask for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from hmd.base.errors import ConfigError
from hmd.base.quantities import Size
from hmd.base.units import MIB
from hmd.base.yaml_document import Mapping, locate, parse_document, values

_PRESETS = Path(__file__).with_name("presets")
MAX_NODES = 8
MAX_CPUS = 16

Nanoseconds = Annotated[float, Field(gt=0, le=60_000)]
GigabytesPerSecond = Annotated[float, Field(ge=0.1, le=10_000)]

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


def parse_cpus(value: Any) -> tuple[int, ...]:
    """Return CPU numbers of ``0-1,4``, a list of numbers, or nothing; raises ``ValueError``."""
    if value is None or value in ("", "none"):
        return ()
    if isinstance(value, list | tuple):
        return tuple(int(number) for number in value)
    cpus: list[int] = []
    for part in str(value).split(","):
        match = re.fullmatch(r"\s*(\d{1,4})(?:-(\d{1,4}))?\s*", part)
        if not match:
            raise ValueError(f"{value!r} is not a list of CPUs such as 0-1 or 0,2")
        cpus.extend(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(cpus)


Cpus = Annotated[tuple[int, ...], BeforeValidator(parse_cpus)]


class _CheckedPreset(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LoadPoint(_CheckedPreset):
    """Latency under load: ``factor`` times the idle latency at a share of the peak bandwidth."""

    utilisation: Annotated[float, Field(gt=0, lt=1)]
    factor: Annotated[float, Field(ge=1, le=100)]


class NodePreset(_CheckedPreset):
    """One node. Bandwidths are sequential, of all CPUs together, in 10^9 bytes per second.

    CPUs of other sockets wait ``far_ns`` longer.
    """

    name: str
    size: Annotated[Size, Field(ge=64 * MIB)]
    cpus: Cpus = ()
    read_latency_ns: Nanoseconds
    write_latency_ns: Nanoseconds
    far_ns: Annotated[float, Field(ge=0, le=60_000)] = 0
    read_bandwidth_gbps: GigabytesPerSecond
    write_bandwidth_gbps: GigabytesPerSecond
    granularity_bytes: Annotated[int, Field(ge=64, le=4096)] = 64
    loaded: Annotated[tuple[LoadPoint, ...], Field(max_length=8)] = ()
    source: str

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.size % (2 * MIB):
            raise ValueError("size is not a multiple of 2MiB")
        if self.granularity_bytes & (self.granularity_bytes - 1):
            raise ValueError("granularity_bytes is not a power of two")
        for before, after in zip(self.loaded, self.loaded[1:], strict=False):
            if after.utilisation <= before.utilisation or after.factor < before.factor:
                raise ValueError("loaded does not ascend in utilisation and factor")
        return self


class CorePreset(_CheckedPreset):
    """One CPU's memory-level parallelism: reorder window, line fill buffers, prefetch streams."""

    instruction_ns: Annotated[float, Field(gt=0, le=100)]
    reorder_window: Annotated[int, Field(ge=1, le=1024)]
    line_fill_buffers: Annotated[int, Field(ge=1, le=64)]
    prefetch_streams: Annotated[int, Field(ge=1, le=32)]
    source: str


class CachePreset(_CheckedPreset):
    """The last-level cache of all CPUs, or ``count`` caches of which CPU i uses number i % count.

    Several caches model several sockets or core complexes. ``first_size`` is the size of number 0
    where it differs from that of the others.
    """

    count: Annotated[int, Field(ge=1, le=MAX_CPUS)] = 1
    size: Size
    first_size: Size | None = None
    ways: Annotated[int, Field(ge=1, le=64)]
    hit_ns: Annotated[float, Field(ge=0, le=1000)]
    source: str


class SamplingPreset(_CheckedPreset):
    """What the PMU's samples cost the CPU that they are taken on.

    A record costs ``record_ns``; every ``buffer_records`` records, the kernel empties the buffer
    in an interrupt of ``interrupt_ns``. AMD's IBS has no buffer: 1. ``pmu`` ``ibs`` tags ops, and
    has a record only where a tagged op missed; ``pebs`` counts misses, or with ``loads: latency``
    tags one load at a time, of those that a free tag sees one in ``tag_interval``.
    """

    pmu: Literal["pebs", "ibs"] = "pebs"
    tag_interval: Annotated[int, Field(ge=1, le=1 << 16)] = 16

    record_ns: Annotated[float, Field(ge=0, le=10_000)]
    interrupt_ns: Annotated[float, Field(ge=0, le=100_000)]
    buffer_records: Annotated[int, Field(ge=1, le=1 << 20)]
    source: str


class TlbPreset(_CheckedPreset):
    """Data TLBs of a CPU: first level of 4 KiB and of 2 MiB pages, second level of both.

    A load starts ``second_ns`` later where the second level has its translation, and ``walk_ns``
    later where the page is walked and the leaf entry is cached. 0 ``entries``: no TLB.
    """

    entries: Annotated[int, Field(ge=0, le=256)]
    ways: Annotated[int, Field(ge=1, le=32)]
    huge_entries: Annotated[int, Field(ge=1, le=256)]
    huge_ways: Annotated[int, Field(ge=1, le=32)]
    second_entries: Annotated[int, Field(ge=1, le=4096)]
    second_ways: Annotated[int, Field(ge=1, le=32)]
    second_ns: Annotated[float, Field(ge=0, le=1000)]
    walk_ns: Annotated[float, Field(ge=0, le=1000)]
    source: str


class ShootdownPreset(_CheckedPreset):
    """What an interprocessor interrupt costs beyond the instructions of the kernel."""

    send_ns: Annotated[float, Field(ge=0, le=100_000)]
    receive_ns: Annotated[float, Field(ge=0, le=100_000)]
    source: str


class Preset(_CheckedPreset):
    """A machine to emulate; parts that are not given are those of preset_defaults.yaml."""

    name: str
    description: str
    core: CorePreset
    cache: CachePreset
    sampling: SamplingPreset
    tlb: TlbPreset
    shootdown: ShootdownPreset
    nodes: Annotated[tuple[NodePreset, ...], Field(min_length=1, max_length=MAX_NODES)]
    distances: tuple[tuple[int, ...], ...] | None = None

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, given: Any) -> Any:
        return {**_defaults(), **given} if isinstance(given, dict) else given

    @model_validator(mode="after")
    def _check(self) -> Self:
        cpus = [cpu for node in self.nodes for cpu in node.cpus]
        if not cpus or sorted(cpus) != list(range(len(cpus))):
            raise ValueError("the nodes' cpus must be 0 to n-1, each on one node")
        if len(cpus) > MAX_CPUS:
            raise ValueError(f"more than {MAX_CPUS} CPUs")
        if self.distances is not None:
            _check_distances(self.distances, len(self.nodes))
        return self

    @property
    def cpus(self) -> int:
        """Number of CPUs."""
        return sum(len(node.cpus) for node in self.nodes)

    @property
    def size_bytes(self) -> int:
        """Memory of all nodes."""
        return sum(node.size for node in self.nodes)

    def nearest_initiator(self, node: int) -> int:
        """Return the node with CPUs that is on a node's socket: itself, or else the nearest."""
        holders = [i for i, each in enumerate(self.nodes) if each.cpus]
        return node if node in holders else min(holders, key=lambda i: self.distance(i, node))

    def far_cpus(self, node: int) -> tuple[int, ...]:
        """Return the CPUs of other sockets than a node's."""
        return tuple(set(range(self.cpus)) - set(self.nodes[self.nearest_initiator(node)].cpus))

    def distance(self, source: int, target: int) -> int:
        """Return the ACPI SLIT distance between nodes; 20 if the preset has none."""
        if self.distances is not None:
            return self.distances[source][target]
        return 10 if source == target else 20


def preset_names() -> tuple[str, ...]:
    """Return the names of the shipped presets, sorted: the YAML files of hmd/emulate/presets."""
    return tuple(sorted(path.stem for path in _PRESETS.glob("*.yaml")))


def load(name: str) -> Preset:
    """Return a shipped preset by name, or one from a YAML file; raises ``ConfigError``."""
    if name in preset_names():
        return parse((_PRESETS / f"{name}.yaml").read_bytes(), f"{name}.yaml")
    path = Path(name)
    if not path.suffix and not path.exists():
        names = ", ".join(preset_names())
        raise ConfigError(f"no preset {name!r}: take one of {names}, or a .yaml file")
    try:
        return parse(path.read_bytes(), name)
    except OSError as error:
        raise ConfigError(f"{name}: cannot be read: {error.strerror}") from None


def parse(data: bytes, origin: str) -> Preset:
    """Return the preset in YAML bytes; errors name ``origin``."""
    document = parse_document(data, origin)
    try:
        return Preset.model_validate(values(document))
    except ValidationError as error:
        raise ConfigError(first_problem(error, document)) from None


@cache
def _defaults() -> Any:
    file = Path(__file__).with_name("preset_defaults.yaml")
    return values(parse_document(file.read_bytes(), file.name))


def first_problem(error: ValidationError, document: Mapping | None = None) -> str:
    """Return one line for the first problem: file and line, field, message."""
    problem = error.errors()[0]
    location = problem["loc"]
    message = problem["msg"].removeprefix("Value error, ")
    place = [str(locate(document, location))] if document is not None else []
    field = [".".join(str(part) for part in location)] if location else []
    return ": ".join([*place, *field, message])


def _check_distances(rows: tuple[tuple[int, ...], ...], count: int) -> None:
    if len(rows) != count or any(len(row) != count for row in rows):
        raise ValueError(f"distances is not a table of {count} rows of {count}")
    for i, row in enumerate(rows):
        if row[i] != 10 or any(not 10 < d < 255 for j, d in enumerate(row) if j != i):
            raise ValueError("distances must be 10 to the node itself and 11 to 254 to others")


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
