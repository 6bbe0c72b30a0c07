"""Validation of the daemon's answers before they are kept or shown.

Takes parsed JSON, returns records with checked types, ranges and lengths, so that no answer can
break the page or fill memory. Unknown fields are left out; units are those of
:mod:`hmd.control.status_json`.
"""

from __future__ import annotations

from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from pydantic import model_validator as check_all

from hmd.errors import UnreachableError
from hmd.observe.limits import (
    MAX_BINS,
    MAX_FLOWS,
    MAX_LISTED,
    MAX_PROCESSES,
    MAX_TARGETS,
    MAX_TICKS,
    MAX_TICKS_KEPT,
)

Answer = TypeVar("Answer", bound="CheckedAnswer")

MAX_TIERS = 16
MAX_NODES = 1024

Text = Annotated[str, StringConstraints(max_length=4096)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Pages = Annotated[int, Field(ge=0, lt=2**31)]
Amount = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Node = Annotated[int, Field(ge=-1, lt=2**15)]
ByTier = Annotated[list[Count], Field(max_length=MAX_TIERS)]


class CheckedAnswer(BaseModel):
    """A part of an answer: exact types, finite numbers, unknown fields left out."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore", allow_inf_nan=False)


class TotalsAnswer(CheckedAnswer):
    """Sums of a process or target; ``accesses`` by tier, the last of unknown placement."""

    resident_bytes: ByTier
    fast_share: Share | None
    samples: Count
    accesses: Annotated[list[Amount], Field(max_length=MAX_TIERS + 1)]
    promoted_bytes: Count
    demoted_bytes: Count
    failed_pages: Count


class Target(TotalsAnswer):
    """A target of the configuration."""

    name: Text
    process_count: Count


class Process(TotalsAnswer):
    """A process; ``target`` is a target's name."""

    pid: Count
    start_ticks: Count
    name: Text
    target: Text


class SamplerAnswer(CheckedAnswer):
    """Source of the samples."""

    name: Text
    period: Count
    samples: Count
    lost: Count
    dropped: Count
    throttled: Count


class Reload(CheckedAnswer):
    """Result of the last reload."""

    successful: bool
    success_s: Amount
    error: Text


class MovesAnswer(CheckedAnswer):
    """All moves since the start; ``failures`` are pages by reason."""

    planned_pages: Count
    promoted_bytes: Count
    demoted_bytes: Count
    paged_out_bytes: Count
    failed_pages: Count
    deferred_pages: Count
    would_move_pages: Count
    failures: Annotated[dict[Text, Count], Field(max_length=64)]


class FlowAnswer(CheckedAnswer):
    """A target's pages moved from one node to another in one tick."""

    target: Text
    from_node: Node
    to_node: Node
    planned_pages: Count
    moved_pages: Count
    heat: float
    left: Annotated[dict[Text, Count], Field(max_length=64)]


class TickMovesAnswer(CheckedAnswer):
    """The moves of one tick."""

    tick: Count
    uptime_s: Amount
    dry_run: bool
    planned_pages: Count
    flows: Annotated[list[FlowAnswer], Field(max_length=MAX_FLOWS)]


class Heat(CheckedAnswer):
    """Pages by tier and by log2 of heat, the first bin being ``first_log2``."""

    first_log2: Annotated[int, Field(ge=-64, le=64)]
    pages: Annotated[
        list[Annotated[list[Count], Field(max_length=128)]], Field(max_length=MAX_TIERS)
    ]


class StatusAnswer(CheckedAnswer):
    """The answer to ``status``."""

    version: Text
    pid: Count
    started_s: Amount
    uptime_s: Amount
    config_file: Text
    dry_run: bool
    policy: Text
    tick_s: Amount
    ticks: Count
    stage_failures: Annotated[dict[Text, Count], Field(max_length=64)]
    cpu_s: Amount
    resident_bytes: Count
    reload: Reload
    sampler: SamplerAnswer
    tiers: Annotated[
        list[Annotated[list[Node], Field(max_length=MAX_NODES)]],
        Field(min_length=1, max_length=MAX_TIERS),
    ]
    tier_bytes: ByTier
    heat: Heat
    moves: MovesAnswer
    rounds: Annotated[list[TickMovesAnswer], Field(max_length=MAX_TICKS_KEPT)]
    targets: Annotated[list[Target], Field(max_length=MAX_TARGETS + 1)]
    processes: Annotated[list[Process], Field(max_length=MAX_LISTED)]

    @check_all(mode="after")
    def _tiers_agree(self) -> Self:
        tiers = len(self.tiers)
        rows: tuple[TotalsAnswer, ...] = (*self.targets, *self.processes)
        if len(self.tier_bytes) != tiers or len(self.heat.pages) != tiers:
            raise ValueError("columns by tier differ in length")
        if any(len(r.resident_bytes) != tiers or len(r.accesses) != tiers + 1 for r in rows):
            raise ValueError("columns by tier differ in length")
        return self

    @property
    def at_s(self) -> float:
        """Unix time of the snapshot."""
        return self.started_s + self.uptime_s


class OutlineAnswer(CheckedAnswer):
    """One process's memory in a heat map, one row per bin; ``chunk`` counts 2 MiB of address."""

    pid: Count
    start_ticks: Count
    target: Text
    chunk: Annotated[list[Annotated[int, Field(ge=0, lt=2**43)]], Field(max_length=MAX_BINS)]
    heat: list[Annotated[float, Field(ge=0, le=1e30)]]
    pages: list[Annotated[list[Pages], Field(max_length=MAX_TIERS)]]


class HeatSnapshotAnswer(CheckedAnswer):
    """All outlines of one tick; ``now_s`` is of a monotonic clock."""

    now_s: Amount
    processes: Annotated[list[OutlineAnswer], Field(max_length=MAX_PROCESSES)]


class HeatAnswer(CheckedAnswer):
    """The answer to ``heatmap``."""

    tiers: Annotated[int, Field(ge=1, le=MAX_TIERS)]
    moments: Annotated[list[HeatSnapshotAnswer], Field(max_length=MAX_TICKS)]

    @check_all(mode="after")
    def _columns_agree(self) -> Self:
        for outline in (o for moment in self.moments for o in moment.processes):
            rows = len(outline.chunk)
            if len(outline.heat) != rows or len(outline.pages) != rows:
                raise ValueError("columns differ in length")
            if any(len(pages) != self.tiers for pages in outline.pages):
                raise ValueError("pages by tier differ in length")
        return self


def read_status(document: dict[str, Any]) -> StatusAnswer:
    """Return a status answer; UnreachableError if it is invalid."""
    return _read(StatusAnswer, document, "status")


def read_heat_map(document: dict[str, Any], after_s: float = float("-inf")) -> HeatAnswer:
    """Return a heat map's answer, its last moment and those after ``after_s``.

    UnreachableError if it is invalid. An answer repeats minutes of snapshots, millions of numbers
    for large processes: known ones are not checked again.
    """
    moments = document.get("moments")
    if isinstance(moments, list):
        new = [moment for moment in moments[:-1] if not _is_old(moment, after_s)]
        document = {**document, "moments": [*new, *moments[-1:]]}
    return _read(HeatAnswer, document, "heatmap")


def _is_old(moment: Any, after_s: float) -> bool:
    now_s = moment.get("now_s") if isinstance(moment, dict) else None
    return isinstance(now_s, int | float) and now_s <= after_s


def _read(kind: type[Answer], document: dict[str, Any], command: str) -> Answer:
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))[:80] or "the whole"
        raise UnreachableError(
            f"the answer to {command!r} is not that of this version of hmd: {where}: {first['msg']}"
        ) from None
