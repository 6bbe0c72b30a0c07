"""Moving pages: the mover over move_pages(2), its budget, and pageout."""

from hmd.migrate.move_status import STUCK, MoveStatus
from hmd.migrate.mover import Mover, MoverSettings
from hmd.migrate.outcome import MoveOutcome, MoverStats
from hmd.migrate.page_filter import MovableMappings, PageFilter
from hmd.migrate.pageout import Pageout, PageoutSettings
from hmd.migrate.throughput import APPLY_TICKS

__all__ = [
    "APPLY_TICKS",
    "STUCK",
    "MovableMappings",
    "MoveOutcome",
    "MoveStatus",
    "Mover",
    "MoverSettings",
    "MoverStats",
    "PageFilter",
    "Pageout",
    "PageoutSettings",
]
