# SPDX-License-Identifier: MIT
"""The answers to ``status`` and ``heatmap`` as JSON: written by the daemon, checked by clients.

Their types, :class:`~hmd.metrics.status.Status` and :class:`~hmd.metrics.heat_map.HeatMap`, bound
every number, text and length, so that no answer can break the dashboard or fill its memory.
Unknown keys are ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from hmd.base.errors import UnreachableError
from hmd.linux.procfs import ProcessId
from hmd.metrics.heat_map import HeatMap
from hmd.metrics.status import AccessTotals, Status

Answer = TypeVar("Answer", Status, HeatMap)


@cache
def _status_codec() -> TypeAdapter[Status]:
    """Return what writes and checks a status; building it takes some milliseconds."""
    return TypeAdapter(Status)


@cache
def _heat_map_codec() -> TypeAdapter[HeatMap]:
    return TypeAdapter(HeatMap)


def status_answer(now: Status, visible: Callable[[ProcessId], bool] = lambda _: True) -> bytes:
    """Return the status as JSON, with the processes and their pins that the caller may see."""
    control = now.control
    shown = replace(
        now,
        processes=tuple(p for p in now.processes if visible(ProcessId(p.pid, p.start_ticks))),
        control=replace(
            control,
            pins=tuple(
                pin
                for pin in control.pins
                if not pin.pid or visible(ProcessId(pin.pid, pin.start_ticks))
            ),
        ),
    )
    return _status_codec().dump_json(shown, by_alias=True)


def status_document(now: Status, **selected: Any) -> dict[str, Any]:
    """Return the status as plain values; ``selected`` as pydantic's ``exclude={"nodes"}``."""
    document: dict[str, Any] = _status_codec().dump_python(
        now, mode="json", by_alias=True, **selected
    )
    return document


def read_status(answer: bytes) -> Status:
    """Return the status of an answer; UnreachableError if it is invalid."""
    status = _read(_status_codec(), answer, "status")
    tiers = len(status.tiers)
    rows: tuple[AccessTotals, ...] = (*status.targets, *status.processes)
    _check(
        len(status.tier_bytes) == len(status.heat.pages) == tiers
        and all(len(r.resident_bytes) == len(r.accesses) - 1 == tiers for r in rows),
        "status",
    )
    return status


def read_heat_map(answer: bytes) -> HeatMap:
    """Return the heat map of an answer; UnreachableError if it is invalid."""
    heat_map = _read(_heat_map_codec(), answer, "heatmap")
    processes = [process for moment in heat_map.moments for process in moment.processes]
    _check(
        all(
            len(p.bin) == len(p.heat) == len(p.pages)
            and all(len(pages) == heat_map.tiers for pages in p.pages)
            for p in processes
        ),
        "heatmap",
    )
    return heat_map


def _read(codec: TypeAdapter[Answer], answer: bytes, command: str) -> Answer:
    try:
        return codec.validate_json(answer)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))[:80] or "the whole"
        raise _invalid(command, f"{where}: {first['msg']}") from None


def _check(columns_agree: bool, command: str) -> None:
    if not columns_agree:
        raise _invalid(command, "columns differ in length")


def _invalid(command: str, reason: str) -> UnreachableError:
    return UnreachableError(
        f"the answer to {command!r} is not that of this version of hmd: {reason}"
    )
