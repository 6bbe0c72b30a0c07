"""Results of the demonstration, as records for build/demo.json and the table."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from hmd.emulate.demo.variants import Variant


@dataclass(frozen=True, slots=True)
class OperationRates:
    """Operations per second by the guest's clock and by modelled time."""

    ops_per_s: float
    modelled_ops_per_s: float


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """One program, run in the four variants.

    ``fast_share_*`` are shares of LLC misses served by the fast node, from the plugin's counters,
    before hmd moved anything and after it settled. ``seconds_to_recover`` is the guest time from
    the move of the hot set until the settled rate is reached again, None for a program whose hot
    set stays. Its bound ``recover_limit_s`` is the time to copy the hot bytes at a quarter of the
    slow node's bandwidth, in guest time, plus two ticks.
    """

    rates: dict[Variant, OperationRates]
    fast_share_before: float
    fast_share_after: float
    pages_promoted: int
    pages_demoted: int
    integrity_ok: bool
    hot_bytes: int
    fast_bytes: int
    seconds_to_recover: float | None = None
    recover_limit_s: float | None = None

    def relative(self, variant: Variant, to: Variant) -> float:
        """Return the modelled rate of one variant over that of another."""
        return self.rates[variant].modelled_ops_per_s / self.rates[to].modelled_ops_per_s

    def as_json(self) -> dict[str, Any]:
        """Return the program's part of demo.json."""
        rest = asdict(self)
        del rest["rates"]
        return {variant.value: asdict(rates) for variant, rates in self.rates.items()} | rest


@dataclass(frozen=True, slots=True)
class Goal:
    """A goal of the demonstration, and whether it was reached."""

    text: str
    reached: bool


def goals(programs: dict[str, ProgramResult]) -> list[Goal]:
    """Return the goals of the demonstration, each with its figure."""
    found = []
    for name, program in programs.items():
        over = program.relative(Variant.HMD, Variant.FIRST_TOUCH)
        found.append(Goal(f"{name}: hmd {over:.2f} x first touch (above 1)", over > 1))
        found.append(Goal(f"{name}: every word of memory verified", program.integrity_ok))
        if program.recover_limit_s is not None:
            share = program.relative(Variant.HMD, Variant.ALL_FAST)
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
