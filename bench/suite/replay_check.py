"""Showing that a replay equals a real run: programs in the guest, pages placed by its kernel.

A program runs under a memory policy (bound, interleaved, or interleaved by weight), with its
misses recorded for one thing only: where each page was placed. The stream that was recorded once,
replayed with its pages in those tiers, has to take the time that the guest took.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from bench.suite.ground_truth import RecordedStream, program_digest
from bench.suite.inputs import prepare
from bench.suite.program import load_program
from hmd.emulate.guest_command import Command
from hmd.emulate.layout_replay import Layout, replayed, tiers_of
from hmd.emulate.memory_layout import node_ranges
from hmd.emulate.miss_stream import MissRecording
from hmd.emulate.preset import Preset
from hmd.emulate.recording import MemoryPolicy, Placement, guest, run_in


@dataclass(frozen=True, slots=True)
class Verified:
    """One placement: the time in the guest and that of the replay; pages fast, as shares."""

    program: str
    preset: str
    placement: str
    fast_share: float
    guest_s: float
    replay_s: float

    @property
    def error(self) -> float:
        """The replay's, as a share of the guest's time."""
        return self.replay_s / self.guest_s - 1


def placements(preset: Preset) -> tuple[Placement, ...]:
    """Return the policies under which programs are verified on a preset."""
    fast, slow = tiers_of(preset)
    both = (0, 1)

    def weighted(fast_pages: int, slow_pages: int) -> Placement:
        weight = {fast: fast_pages, slow: slow_pages}
        return Placement(MemoryPolicy.WEIGHTED, both, tuple(weight[node] for node in both))

    return (
        Placement(MemoryPolicy.BIND, (slow,)),
        Placement(MemoryPolicy.BIND, (fast,)),
        Placement(MemoryPolicy.INTERLEAVE, both),
        weighted(1, 3),
        weighted(3, 1),
    )


def verified(
    program: RecordedStream, preset: Preset, folder: Path, say: Callable[[str], None]
) -> list[Verified]:
    """Return a program's verification, run in the guest where the folder has none yet."""
    digest = hashlib.sha256(preset.model_dump_json().encode())
    digest.update(program_digest(program.name).encode())
    path = folder / "verified" / f"{program.name}-{preset.name}-{digest.hexdigest()[:12]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        say(f"{program.name} on {preset.name}: verifying replays in the emulated machine")
        command = prepare(load_program(program.name), folder / "inputs")
        found = [asdict(each) for each in verify(program, command, preset)]
        path.write_text(json.dumps(found))
    return [Verified(**each) for each in json.loads(path.read_text())]


def verify(program: RecordedStream, command: Command, preset: Preset) -> Iterator[Verified]:
    """Run a program in the guest under each policy, and replay it likewise."""
    with guest(preset, command) as machine:
        for placement in placements(preset):
            run = run_in(machine, command, placement)
            assert run.recording is not None
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
    """Return which of a stream's pages lay in the fast tier in another recording of its program.

    Pages that the other does not have are taken to be slow.
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
