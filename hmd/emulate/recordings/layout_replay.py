"""Replay of a miss recording with its pages placed by a layout: page frames, and the runtime.

A layout puts each page of a program on the fast or on the slow node of a preset. The timing model
prices every recorded miss on the node of its page. A replay takes 20 to 100 ns per miss.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from hmd.emulate.preset import Preset
from hmd.emulate.recordings.miss_stream import MissOutcomes, MissStream
from hmd.emulate.recordings.replay import TimingModel
from hmd.emulate.timing_params import timing_params
from hmd.units import PAGE_BYTES

Layout: TypeAlias = npt.NDArray[np.bool_]
"""True for pages on the fast node, shape ``(user_pages,)``."""

# Frames below 16 MiB belong to the BIOS and to the kernel.
_FIRST_FRAME: Final = np.uint64(4096)


def layout_of(pages: int, fast: npt.NDArray[np.int64]) -> Layout:
    """Return the layout of so many pages that has these on the fast node."""
    layout = np.zeros(pages, np.bool_)
    layout[fast] = True
    return layout


def tiers_of(preset: Preset) -> tuple[int, int]:
    """Return the nodes of the highest and of the lowest read bandwidth: (fast, slow)."""
    speed = [node.read_bandwidth_gbps for node in preset.nodes]
    return int(np.argmax(speed)), int(np.argmin(speed))


def frames(stream: MissStream, preset: Preset, layout: Layout) -> npt.NDArray[np.uint64]:
    """Return the physical address of each page, shape ``(pages,)``; the kernel's pages are slow."""
    fast, slow = (np.uint64(timing_params(preset).nodes[n].phys_start) for n in tiers_of(preset))
    start = np.full(stream.pages, slow, np.uint64)
    start[: stream.user_pages][layout] = fast
    return start + (np.arange(stream.pages, dtype=np.uint64) + _FIRST_FRAME) * np.uint64(PAGE_BYTES)


def replayed(
    stream: MissStream, preset: Preset, layout: Layout, into: MissOutcomes | None = None
) -> int:
    """Return the runtime of a program under a layout, in ps of its CPUs' modelled time.

    ``into`` receives the clock and the latency of every miss. A preset with fewer CPUs than the
    program ran on gets as many.
    """
    params = timing_params(preset)
    with TimingModel(replace(params, vcpus=max(params.vcpus, stream.cpus))) as model:
        return model.replay_misses(stream, frames(stream, preset, layout), into)
