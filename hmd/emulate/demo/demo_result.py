"""What the demonstration measured, as records that become build/demo.json and a table."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from hmd.emulate.demo.variants import Way


@dataclass(frozen=True, slots=True)
class OperationRates:
    """Operations a second by the guest's clock and by modelled time."""

    ops_per_s: float
    modelled_ops_per_s: float


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """One program, run in the four ways.

    ``fast_share_*`` are shares of LLC misses served by the fast node, from the plugin's counters,
    before hmd moved anything and after it settled. ``seconds_to_recover`` is guest time from the
    hot set's move to the settled rate again, None for a program whose hot set stays;
    ``recover_limit_s`` is what that may be: the hot bytes at a quarter of the slow node's
    bandwidth, in guest time, and two ticks.
    """

    rates: dict[Way, OperationRates]
    fast_share_before: float
    fast_share_after: float
    pages_promoted: int
    pages_demoted: int
    integrity_ok: bool
    hot_bytes: int
    fast_bytes: int
    seconds_to_recover: float | None = None
    recover_limit_s: float | None = None

    def relative(self, way: Way, to: Way) -> float:
        """Return the modelled rate of one way over another's."""
        return self.rates[way].modelled_ops_per_s / self.rates[to].modelled_ops_per_s

    def as_json(self) -> dict[str, Any]:
        """Return the program's part of demo.json."""
        rest = asdict(self)
        del rest["rates"]
        return {way.value: asdict(rates) for way, rates in self.rates.items()} | rest


@dataclass(frozen=True, slots=True)
class Goal:
    """Something that the demonstration is to show, and whether it did."""

    text: str
    reached: bool


def goals(programs: dict[str, ProgramResult]) -> list[Goal]:
    """Return what the demonstration claims, each with its figure."""
    found = []
    for name, program in programs.items():
        over = program.relative(Way.HMD, Way.FIRST_TOUCH)
        found.append(Goal(f"{name}: hmd {over:.2f} x first touch (above 1)", over > 1))
        found.append(Goal(f"{name}: every word of memory accounted for", program.integrity_ok))
        if program.recover_limit_s is not None:
            share = program.relative(Way.HMD, Way.ALL_FAST)
            found.append(Goal(f"{name}: hmd {share:.2f} x all fast (0.90 at least)", share >= 0.90))
            took, limit = program.seconds_to_recover, program.recover_limit_s
            found.append(
                Goal(
                    f"{name}: recovered {'never' if took is None else f'{took:.1f} s'} after its "
                    f"hot set moved (in {limit:.1f} s)",
                    took is not None and took <= limit,
                )
            )
    return found
