"""A program's replay on a simulated memory: pages are placed as the program allocates them.

Takes the misses, the memory, and the frame of each page on both nodes; gives a replay in which a
page is on the node that had room when it was allocated: at its first access, and again at the next
access after the program gave it back. First touch is this and nothing else.
"""

from __future__ import annotations

import numpy as np

from hmd.emulate.preset import Preset
from hmd.emulate.recordings.layout_replay import Layout, frames, replayed
from hmd.emulate.recordings.miss_replay import END, MissReplay
from hmd.emulate.recordings.miss_stream import MissOutcomes, MissStream
from hmd.emulate.recordings.replay import TimingModel
from hmd.emulate.timing_params import timing_params
from hmd.simulate.access_rows import first_rows
from hmd.simulate.simulated_memory import FAST, SLOW, SimulatedMemory


class PlacedReplay:
    """The replay of ``stream`` on ``model``, whose pages ``memory`` places.

    ``reserved`` pages of the fast node are kept from allocations. ``frames`` has the physical
    address of each page on the fast and on the slow node; ``outcomes`` receives clock and latency
    of every miss.
    """

    def __init__(
        self,
        model: TimingModel,
        stream: MissStream,
        preset: Preset,
        memory: SimulatedMemory,
        outcomes: MissOutcomes | None,
    ) -> None:
        pages = stream.user_pages
        self.memory = memory
        self.frames = [frames(stream, preset, np.full(pages, fast)) for fast in (True, False)]
        self.replay: MissReplay = model.misses(stream, self.frames[SLOW].copy(), outcomes)
        self.reserved = 0
        self.allocate()

    def allocate(self) -> None:
        """Place the pages that are not accessed yet, or not since they were given back."""
        row = self.replay.next
        self.memory.free_until(row)
        pages = self.memory.allocate_ahead(row, self.reserved)
        for node in (FAST, SLOW):
            there = pages[self.memory.node[pages] == node]
            self.replay.page_paddr[there] = self.frames[node][there]

    def run(self, until_ps: int = END) -> int:
        """Replay as ``MissReplay.run`` does; returns the busy time so far, in ps."""
        while True:
            row = self.memory.next_free_row
            busy_ps = self.replay.run(until_ps, row)
            if self.replay.next < row or self.replay.done:
                return busy_ps
            self.allocate()


def first_touch(
    stream: MissStream, preset: Preset, fast_pages: int, into: MissOutcomes | None = None
) -> int:
    """Return the runtime under first touch, in ps: no page moves. As ``replayed`` otherwise."""
    if stream.frees is None:
        return replayed(stream, preset, first_touched(stream, fast_pages), into)
    with TimingModel(timing_params(preset)) as model:
        memory = SimulatedMemory(stream, fast_pages)
        return PlacedReplay(model, stream, preset, memory, into).run()


def first_touched(stream: MissStream, fast_pages: int) -> Layout:
    """Return the pages that first touch puts on the fast node of a program that frees none."""
    layout = np.zeros(stream.user_pages, np.bool_)
    layout[np.argsort(first_rows(stream), kind="stable")[:fast_pages]] = True
    return layout
