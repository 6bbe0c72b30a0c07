# SPDX-License-Identifier: MIT
"""Memory systems: tiers, the links between them, and what kernels may compute from.

Read from YAML; presets are the files of hmd/tensors/presets. Kernels run next to the first tier. A
link joins two tiers or junctions; pages take the path of the fewest links to and from tier 0.
Bandwidths are in 10^9 bytes per second: ``in`` towards tier 0, ``out`` away from it. A link with
``half_duplex`` shares ``in`` between both directions. Before the first page of each transaction,
one move of one tensor, its path is busy for the sum of its links' ``latency_us``. A kernel that
computes in place waits ``access_us`` of a tier for each operand that has bytes there.

The rules by which the simulator prices a step: those of G10's publication, and strict ones.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Final, Self

import numpy as np
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from hmd.base.errors import ConfigError, UsageError
from hmd.base.quantities import parse_size
from hmd.base.units import MIB, PAGE_BYTES
from hmd.base.yaml_document import locate, parse_document, read_document, values
from hmd.tensors.trace import TensorTrace

UNLIMITED = 1 << 60
"""Capacity of a tier without one, in bytes."""

Gigabytes = Annotated[float, Field(ge=1e-3, le=100_000)]
Microseconds = Annotated[float, Field(ge=0, le=1e6)]


def _capacity(value: Any, info: ValidationInfo) -> int:
    """Return bytes: of a size with its unit or, for a caller in Python, of a number."""
    of_file = info.context is not None
    if not of_file and isinstance(value, int) and not isinstance(value, bool):
        return value
    return parse_size(value)


Capacity = Annotated[int, BeforeValidator(_capacity), Field(ge=0, le=UNLIMITED)]


class _Checked(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


@dataclass(frozen=True, slots=True)
class Roofline:
    """A processor: 10^12 floating-point operations, and 10^9 bytes of its memory, per second.

    Kernels take the time of a roofline model (Williams et al., CACM 2009): as long as their
    operations, or their operands at the memory's bandwidth, whichever is longer. Peak rates make
    times that no kernel undercuts.
    """

    tflops: Annotated[float, Field(gt=0, le=1e9)] = 19.5
    gbps: Annotated[float, Field(gt=0, le=1e9)] = 1555.0

    def __str__(self) -> str:
        return f"a roofline of {self.tflops:g} TFLOP/s and {self.gbps:g} GB/s"

    def nanoseconds(self, operations: float, size: float) -> int:
        """Return the time of a kernel with so many operations and bytes of operands, 1 or more."""
        return max(round(operations / self.tflops / 1e3), round(size / self.gbps), 1)

    def times_of(self, trace: TensorTrace) -> TensorTrace:
        """Return a trace whose kernels take the times of this processor."""
        work = zip(*trace.kernel_work.tolist(), strict=True)
        ticks = np.array([self.nanoseconds(count, size) for count, size in work], np.int64)
        none = np.zeros((0, 0), np.int64)
        return replace(
            trace, kernel_ticks=ticks, ticks_per_second=10**9, fault_ticks=none, device=str(self)
        )


class TensorTier(_Checked):
    """One tier. With ``read`` and ``write``, kernels can compute from it at these bandwidths.

    ``access_us`` is what each operand with bytes in a lower tier adds to a kernel.
    """

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]*$")]
    capacity: Capacity = UNLIMITED
    read: Gigabytes | None = None
    write: Gigabytes | None = None
    access_us: Microseconds = 0.0


class TierLink(_Checked):
    """One link between tiers or junctions."""

    name: str
    between: tuple[str, str]
    inwards: Annotated[Gigabytes, Field(alias="in")]
    outwards: Annotated[Gigabytes, Field(alias="out")]
    half_duplex: bool = False
    latency_us: Microseconds = 0.0


class MemorySystem(_Checked):
    """Tiers from the fastest, the links between them, and the cost of allocating in tier 0."""

    name: str
    description: str = ""
    source: str = ""
    granularity_bytes: Annotated[int, Field(ge=256, le=2 * MIB)] = PAGE_BYTES
    allocation_seconds_per_byte: Annotated[float, Field(ge=0, le=1e-6)] = 0.0
    tiers: Annotated[tuple[TensorTier, ...], Field(min_length=2, max_length=8)]
    links: Annotated[tuple[TierLink, ...], Field(min_length=1, max_length=32)]
    processor: Roofline | None = None
    """Peak rates of what computes from tier 0."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [tier.name for tier in self.tiers]
        if len(set(names)) != len(names) or {"none", "any"} & set(names):
            raise ValueError("tiers: names must differ from each other, from none and from any")
        rates = [tier.read is not None and tier.write is not None for tier in self.tiers]
        if any(rates) and not all(rates):
            raise ValueError("tiers: give read and write to all tiers, or to none")
        if self.tiers[0].access_us or (not all(rates) and any(t.access_us for t in self.tiers)):
            raise ValueError("tiers: access_us is for lower tiers that kernels compute from")
        for tier in names[1:]:
            if not self._path(tier):
                raise ValueError(f"links: none lead from {tier} to {names[0]}")
        return self

    @property
    def in_place(self) -> bool:
        """Whether kernels can compute from every tier."""
        return self.tiers[0].read is not None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tiers."""
        return tuple(tier.name for tier in self.tiers)

    def path(self, tier: int) -> tuple[int, ...]:
        """Return the links between tier 0 and a tier, by number."""
        return self._path(self.tiers[tier].name)

    def _path(self, goal: str) -> tuple[int, ...]:
        found: dict[str, tuple[int, ...]] = {self.tiers[0].name: ()}
        waiting = deque(found)
        while waiting:
            place = waiting.popleft()
            for number, link in enumerate(self.links):
                for here, there in (link.between, link.between[::-1]):
                    if here == place and there not in found:
                        found[there] = (*found[place], number)
                        waiting.append(there)
        return found.get(goal, ())

    def bandwidth(self, tier: int, *, inwards: bool) -> float:
        """Return bytes per second between a tier and tier 0, where nothing else moves."""
        links = (self.links[number] for number in self.path(tier))
        return 1e9 * min(
            link.inwards if inwards or link.half_duplex else link.outwards for link in links
        )

    def latency_seconds(self, tier: int) -> float:
        """Return what a transaction between a tier and tier 0 takes before its first page."""
        return sum(self.links[number].latency_us for number in self.path(tier)) / 1e6

    def transfer_rate(self, tier: int, size: float, *, inwards: bool) -> float:
        """Return the bytes per second of successive transactions of so many bytes each."""
        rate = self.bandwidth(tier, inwards=inwards)
        return size / (self.latency_seconds(tier) + size / rate) if size > 0 else rate

    def changed(
        self, capacities: dict[str, int] | None = None, rates: dict[str, float] | None = None
    ) -> MemorySystem:
        """Return the system with other capacities (bytes) and link rates (GB/s, both ways)."""
        capacities, rates = capacities or {}, rates or {}
        tiers = tuple(
            tier.model_copy(update={"capacity": capacities.get(tier.name, tier.capacity)})
            for tier in self.tiers
        )
        links = tuple(
            link.model_copy(
                update={
                    "inwards": rates.get(link.name, link.inwards),
                    "outwards": rates.get(link.name, link.outwards),
                }
            )
            for link in self.links
        )
        return self.model_copy(update={"tiers": tiers, "links": links})


def preset_names() -> tuple[str, ...]:
    """Return the names of the shipped memory systems, sorted."""
    folder = resources.files("hmd.tensors") / "presets"
    names = (Path(entry.name) for entry in folder.iterdir())
    return tuple(sorted(name.stem for name in names if name.suffix == ".yaml"))


def load_system(name: str) -> MemorySystem:
    """Return a shipped memory system by name, or one from a YAML file; raises ConfigError."""
    if name in preset_names():
        shipped = resources.files("hmd.tensors") / "presets" / f"{name}.yaml"
        document = parse_document(shipped.read_bytes(), name)
    elif Path(name).exists():
        document = read_document(Path(name))
    else:
        names = ", ".join(preset_names())
        raise ConfigError(f"no memory system {name!r}: take {names}, or a .yaml file")
    try:
        return MemorySystem.model_validate(values(document), context={"file": name})
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(str(part) for part in problem["loc"])
        message = problem["msg"].removeprefix("Value error, ")
        place = str(locate(document, problem["loc"]))
        raise ConfigError(": ".join(part for part in (place, field, message) if part)) from None


@dataclass(frozen=True, slots=True)
class PricingRules:
    """What a step costs beyond its kernels' times.

    ``overlap``: a kernel that faults computes while its pages arrive, and ends no earlier than its
    time plus the handling of faults. Otherwise it computes after the last page arrived.
    ``keep_running``: pages of the running kernel are not pushed out. ``drop_dead``: dead tensors
    leave all tiers without a move. ``whole_pages``: a link carries whole pages per slot, the rest
    of its bandwidth is lost. ``allows_loss``: data that is read later may be freed, and is
    allocated again without its content. ``fault_seconds`` per kernel with faults, plus
    ``slow_fault_seconds`` where one comes from a tier below the second.
    """

    name: str
    overlap: bool
    keep_running: bool
    drop_dead: bool
    whole_pages: bool
    allows_loss: bool
    fault_seconds: float
    slow_fault_seconds: float


G10: Final = PricingRules("g10", True, False, False, True, True, 0.0, 0.0)
"""The rules of G10's simulator, as its published figures follow from them (arXiv:2310.09443)."""

STRICT: Final = PricingRules("strict", False, True, True, False, False, 45e-6, 20e-6)
"""Rules without the publication's simplifications: faults stall, and links keep their rates."""

RULES: Final = {rules.name: rules for rules in (G10, STRICT)}


def rules_named(name: str) -> PricingRules:
    """Return the rules of a name; raises UsageError for one that there is not."""
    if name not in RULES:
        raise UsageError(f"no pricing rules {name!r}: take {' or '.join(RULES)}")
    return RULES[name]
