"""Baselines to compare policies with, each by an exact replay: first touch and static placements.

Takes a recorded program, a machine and the number of pages that fit on the fast node; gives
runtimes. The static oracle knows the whole run: it places the hottest pages by three measures of
heat, each the best for some programs, and takes the placement with which the program is fastest. A
policy that follows a program's phases may be faster. A replay takes 20 to 60 ns per miss.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from hmd.emulate.preset import Preset
from hmd.emulate.recordings.layout_replay import layout_of, replayed
from hmd.emulate.recordings.miss_stream import MissFlag, MissOutcomes, MissStream
from hmd.simulate.placed_replay import first_touch

_S_PER_PS = 1e-12


def baselines(
    stream: MissStream,
    preset: Preset,
    fast_pages: int,
    say: Callable[[str], None] | None = None,
) -> dict[str, float]:
    """Return runtimes in seconds by name: all fast, all slow, first touch, interleaved, oracle."""
    say = say or (lambda _: None)
    pages = stream.user_pages
    slow, outcomes = np.zeros(pages, np.bool_), MissOutcomes.empty(len(stream))
    found = {}
    say("all slow")
    found["all slow"] = replayed(stream, preset, slow, outcomes) * _S_PER_PS
    evens = np.concatenate([np.arange(0, pages, 2), np.arange(1, pages, 2)])
    layouts = {
        "all fast": ~slow,
        "interleaved once": layout_of(pages, evens[: min(fast_pages, (pages + 1) // 2)]),
    }
    say("first touch")
    found["first touch"] = first_touch(stream, preset, fast_pages) * _S_PER_PS
    for name, layout in layouts.items():
        say(name)
        found[name] = replayed(stream, preset, layout) * _S_PER_PS
    say("oracle")
    found["oracle"] = (
        min(
            replayed(
                stream, preset, layout_of(pages, np.argsort(-heat, kind="stable")[:fast_pages])
            )
            for heat in _heats(stream, outcomes)
        )
        * _S_PER_PS
    )
    return found


def _heats(stream: MissStream, outcomes: MissOutcomes) -> list[npt.NDArray[np.float64]]:
    """Return three measures per page: lines, lines that the CPU stalled for, and stall time."""
    own = stream.page < stream.user_pages
    page = stream.page[own]
    others = np.uint8(MissFlag.KERNEL | MissFlag.HALT | MissFlag.WRITE_BACK | MissFlag.COVERED)
    stalled = (stream.flags[own] & others) == 0
    clock_ps = outcomes.clock_ps.astype(np.float64)
    stall = np.diff(clock_ps, append=clock_ps[-1:])[own]
    return [
        np.bincount(page, weights=weight, minlength=stream.user_pages).astype(np.float64)
        for weight in (np.ones(len(page)), stalled.astype(np.float64), stall)
    ]
