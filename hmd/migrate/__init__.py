# SPDX-License-Identifier: MIT
"""Moving pages: the mover over move_pages(2), its budget, and pageout."""

from hmd.migrate.move_budget import APPLY_TICKS, MovableMappings, PageFilter
from hmd.migrate.mover import Mover, MoverSettings
from hmd.migrate.pageout import FarLimits, Pageout, PageoutSettings
from hmd.migrate.status import STUCK, MoveOutcome, MoveStatus

__all__ = [
    "APPLY_TICKS",
    "STUCK",
    "FarLimits",
    "MovableMappings",
    "MoveOutcome",
    "MoveStatus",
    "Mover",
    "MoverSettings",
    "PageFilter",
    "Pageout",
    "PageoutSettings",
]
