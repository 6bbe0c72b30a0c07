"""The rules by which the simulator prices a step: those of G10's publication, and strict ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hmd.errors import UsageError


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
