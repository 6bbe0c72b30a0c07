# SPDX-License-Identifier: MIT
"""Replays compared with runs in the guest, whose kernel places the pages.

A program runs under a memory policy (bind, interleave, or weighted interleave), recorded only for
the placement of its pages. The earlier recording, replayed with its pages on those nodes, must take
the time that the run took.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from bench.suite.ground_truth import RecordedStream, replay_digest
from bench.suite.inputs import prepare
from bench.suite.program import load_program
from hmd.emulate.preset import Preset
from hmd.emulate.recordings.misses import MissRecording
from hmd.emulate.recordings.recorder import Placement, guest, run_in
from hmd.emulate.recordings.replay import Layout, replayed, tiers_of
from hmd.emulate.vm.guest import Command
from hmd.emulate.vm.qemu import node_ranges


@dataclass(frozen=True, slots=True)
class Verified:
    """One placement: times of the guest and of the replay, and the share of fast pages."""

    program: str
    preset: str
    placement: str
    fast_share: float
    guest_s: float
    replay_s: float

    @property
    def error(self) -> float:
        """Error of the replay, as a share of the guest's time."""
        return self.replay_s / self.guest_s - 1


def placements(preset: Preset) -> tuple[Placement, ...]:
    """Return the memory policies for the verification on a preset."""
    fast, slow = tiers_of(preset)
    both = (0, 1)

    def weighted(fast_pages: int, slow_pages: int) -> Placement:
        weight = {fast: fast_pages, slow: slow_pages}
        return Placement("weighted", both, tuple(weight[node] for node in both))

    return (
        Placement("bind", (slow,)),
        Placement("bind", (fast,)),
        Placement("interleave", both),
        weighted(1, 3),
        weighted(3, 1),
    )


def verified(
    program: RecordedStream, preset: Preset, folder: Path, say: Callable[[str], None]
) -> list[Verified]:
    """Return a program's verification; runs it in the guest unless it is stored."""
    digest = hashlib.sha256(preset.model_dump_json().encode())
    digest.update(replay_digest(program.name).encode())
    path = folder / "verified" / f"{program.name}-{preset.name}-{digest.hexdigest()[:12]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        say(f"{program.name} on {preset.name}: verifying replays in the emulated machine")
        command = prepare(load_program(program.name), folder / "inputs")
        found = [asdict(each) for each in verify(program, command, preset)]
        path.write_text(json.dumps(found))
    return [Verified(**each) for each in json.loads(path.read_text())]


def verify(program: RecordedStream, command: Command, preset: Preset) -> Iterator[Verified]:
    """Run a program in the guest under each policy, and replay the same placement."""
    with guest(preset, command) as machine:
        for placement in placements(preset):
            run = run_in(machine, command, placement)
            layout = placed(program, run.recording, preset)
            yield Verified(
                program.name,
                preset.name,
                str(placement),
                float(layout.mean()),
                run.busy_s,
                replayed(program.stream, preset, layout) * 1e-12,
            )


def placed(program: RecordedStream, recording: MissRecording, preset: Preset) -> Layout:
    """Return the layout of another recording of a program, over the pages of its stream.

    Pages that the other recording lacks are slow.
    """
    fast, _ = tiers_of(preset)
    start, end = node_ranges([node.size for node in preset.nodes])[fast]
    theirs = recording.stream.page_address[: recording.stream.user_pages]
    frame = recording.page_paddr[: recording.stream.user_pages]
    ours = program.stream.page_address[: program.stream.user_pages]
    place = np.minimum(np.searchsorted(theirs, ours), len(theirs) - 1)
    known = theirs[place] == ours
    inside = (frame[place] >= np.uint64(start)) & (frame[place] < np.uint64(end))
    return np.asarray(known & inside)
