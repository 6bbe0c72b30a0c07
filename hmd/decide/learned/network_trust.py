"""Trust in the network: how far its answers are taken, by what they proved on this very program.

Takes the network's answers of each tick and the samples that follow; gives rates. A network may be
wrong of a program that is unlike those of its training. Its answers, octaves on a rate, are
therefore taken times a factor of 0, 1/4, 1/2, 3/4 or 1: the one under which the samples of the
ticks that followed were the most likely, of the last ticks, per process. This is a choice among
experts by their likelihood (Vovk, "Aggregating strategies", COLT 1990). Rates keep their sum per
process, so that the likelihood of Poisson counts does not depend on it. Costs 8 bytes per page, and
about 15 ns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from hmd.decide.process_slots import ProcessSlots, carried
from hmd.machine.process_id import ProcessId

if TYPE_CHECKING:
    from hmd.heat.view.page_state import PageState
    from hmd.heat.view.page_view import PageView

# What a tick keeps of earlier evidence.
_MEMORY: Final = 0.95
# In bits, by factor: before there are samples, half of an answer is taken.
_PRIOR: Final = np.array([-8.0, -2.0, 0.0, -2.0, -8.0])
_FACTORS: Final = np.linspace(0.0, 1.0, len(_PRIOR))

Values = npt.NDArray[np.float64]


class NetworkTrust:
    """Keeps the answers of the last ticks, and how likely they made the samples since."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        from hmd.decide.learned.trust_kernel import FOLLOWED, LEVELS

        self._tick = -1
        self._kept: PageState | None = None
        self._slots = ProcessSlots()
        # By process: bits by factor; of each tick that is followed, what factors did to sums.
        self._evidence = np.zeros((0, LEVELS))
        self._norms = np.zeros((0, FOLLOWED, LEVELS))
        self._known = np.zeros((0, FOLLOWED))

    def factor(self, process: ProcessId) -> float:
        """Return the factor at which answers for a process are taken."""
        slot = self._slots.find(process)
        evidence = self._evidence[slot] if slot >= 0 else np.zeros_like(_PRIOR)
        return float(_FACTORS[np.argmax(evidence + _PRIOR)])

    def corrected(
        self, pages: PageView, octaves: npt.NDArray[np.float32]
    ) -> npt.NDArray[np.float32]:
        """Return the rates of a view, corrected by ``octaves``, both of shape ``(n,)``.

        The first call of a tick learns from its samples, and its answers are kept.
        """
        from hmd.decide.learned.trust_kernel import FOLLOWED, LEVELS, AnsweredRows, correct_rates
        from hmd.heat.view.page_state import PageState

        if pages.tick < self._tick:  # a new table: the daemon's configuration has changed
            self._clear()
        if self._kept is None:
            self._kept = PageState(np.int8, 0, FOLLOWED)
        kept, number = self._kept.in_place(pages)
        self._follow(pages.processes)
        news = pages.tick != self._tick
        if news:
            self._learn(pages, kept, number)
            self._tick = pages.tick
        level = np.argmax(self._evidence + _PRIOR, axis=1)
        sums, rate = np.zeros((len(level), LEVELS)), np.empty(len(pages), np.float32)
        slot = pages.tick % FOLLOWED
        rows = AnsweredRows(pages.rate, octaves, pages.size, pages.process, number)
        correct_rates(rows, level, kept, slot if news else -1, sums, rate)
        if news:
            before = np.where(sums[:, :1] > 0, sums[:, :1], 1.0)
            self._norms[:, slot] = np.log2(np.where(sums > 0, sums, before) / before)
            self._known[:, slot] = 1.0
        return rate

    def _follow(self, processes: tuple[ProcessId, ...]) -> None:
        """Bring what is known of processes to their present slots."""
        before = self._slots.follow(processes)
        if before is not None:
            self._evidence = carried(self._evidence, before)
            self._norms = carried(self._norms, before)
            self._known = carried(self._known, before)

    def _learn(
        self, pages: PageView, kept: npt.NDArray[np.int8], number: npt.NDArray[np.int64]
    ) -> None:
        """Add the evidence of a tick's samples."""
        from hmd.decide.learned.trust_kernel import FOLLOWED, weigh_answers

        said = np.zeros((len(pages.processes), 2))
        weigh_answers(pages.tick_samples, number, pages.process, kept, self._known, said)
        said /= FOLLOWED
        # Log likelihoods in bits relative to factor 0, the mean over the ticks followed.
        norms = (self._norms * self._known[:, :, None]).sum(axis=1)
        self._evidence *= _MEMORY
        self._evidence += said[:, :1] * _FACTORS - said[:, 1:] * norms
