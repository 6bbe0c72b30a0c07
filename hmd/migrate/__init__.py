"""Moving pages: the move_pages engine and its budgets."""

from hmd.migrate.mover import Mover, MoverSettings, PageFilter
from hmd.migrate.outcome import MoverStats, Outcome
from hmd.migrate.status import Status

__all__ = ["Mover", "MoverSettings", "MoverStats", "Outcome", "PageFilter", "Status"]
