"""Moving pages: the move_pages engine and its budgets."""

from hmd.migrate.mover import Mover, MoverSettings
from hmd.migrate.outcome import MoverStats, Outcome
from hmd.migrate.page_filter import MovableMappings, PageFilter
from hmd.migrate.pageout import Pageout, PageoutSettings
from hmd.migrate.reach import APPLY_TICKS
from hmd.migrate.status import STUCK, Status

__all__ = [
    "APPLY_TICKS",
    "STUCK",
    "MovableMappings",
    "Mover",
    "MoverSettings",
    "MoverStats",
    "Outcome",
    "PageFilter",
    "Pageout",
    "PageoutSettings",
    "Status",
]
