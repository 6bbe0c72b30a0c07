"""The truth about a program: how long it takes with its pages placed in any way, by the model.

A program's misses are recorded once, in the emulated machine; every layout's runtime is then a
replay by the same timing model on the host. Both are kept in a folder, by digests of what they
are of, so that a broken run goes on where it ended. Recording costs a minute or two a program,
a replay 20 to 100 ns a miss.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.suite import input_generators
from bench.suite.inputs import prepare
from bench.suite.program import load_program, programs_folder
from hmd.emulate import replay
from hmd.emulate.layout_replay import Layout, replayed
from hmd.emulate.miss_stream import MissStream
from hmd.emulate.preset import Preset, load
from hmd.emulate.recording import ALL_SLOW, RECORDED_ON, guest, run_in, widest_core
from hmd.errors import HmdError

_BATCH = 8  # layouts between two notes of what is known
_TIMING = Path(replay.__file__).with_name("timing")


@dataclass(frozen=True, slots=True)
class RecordedStream:
    """A program's stream, and how long emulating the run that it was recorded from took."""

    name: str
    stream: MissStream
    host_s: float


def recorded(name: str, folder: Path, say: Callable[[str], None]) -> RecordedStream:
    """Return a program's stream, recorded in the emulated machine where it is not there yet."""
    path = folder / "streams" / f"{name}-{program_digest(name)}.npz"
    note = path.with_suffix(".json")
    path.parent.mkdir(parents=True, exist_ok=True)
    if not (path.exists() and note.exists()):
        say(f"{name}: recording its misses in the emulated machine")
        command = prepare(load_program(name), folder / "inputs")
        with guest(widest_core(load(RECORDED_ON)), command) as machine:
            run = run_in(machine, command, ALL_SLOW)
        assert run.recording is not None
        run.recording.stream.write(path)
        note.write_text(json.dumps({"host_s": run.host_s, "instructions": run.instructions}))
    return RecordedStream(
        name, MissStream.read(path), float(json.loads(note.read_text())["host_s"])
    )


def program_digest(name: str) -> str:
    """Return a digest of all that a program's stream depends on: itself, its inputs, the model."""
    digest = hashlib.sha256()
    sources = [path for path in programs_folder().iterdir() if path.stem.split("_")[0] == name]
    for path in sorted([*sources, Path(input_generators.__file__), *_TIMING.glob("*.[ch]")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def require_same_cache(preset: Preset) -> None:
    """Raise ``HmdError`` where a preset's caches are not those that streams are recorded with."""
    base = load(RECORDED_ON)
    same = (
        preset.cache.size == base.cache.size
        and preset.cache.ways == base.cache.ways
        and preset.core.prefetch_streams == base.core.prefetch_streams
        and preset.core.instruction_ns == base.core.instruction_ns
    )
    if not same:
        raise HmdError(f"preset {preset.name} has other caches than {RECORDED_ON}: record with it")


def runtimes(
    program: RecordedStream,
    preset: Preset,
    layouts: Mapping[str, Layout],
    folder: Path,
    say: Callable[[str], None],
    threads: int = 2,
) -> dict[str, float]:
    """Return the runtime of each layout in seconds; what is known already is not replayed."""
    digest = hashlib.sha256(preset.model_dump_json().encode())
    digest.update(program_digest(program.name).encode())
    path = folder / "truth" / f"{program.name}-{preset.name}-{digest.hexdigest()[:12]}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    known: dict[str, float] = json.loads(path.read_text()) if path.exists() else {}
    keys = {name: f"{name}-{_digest_of(layout)}" for name, layout in layouts.items()}
    missing = [name for name in layouts if keys[name] not in known]
    with ThreadPoolExecutor(threads) as pool:
        for batch in _batches(missing, _BATCH):
            found = pool.map(lambda n: replayed(program.stream, preset, layouts[n]), batch)
            known |= {keys[n]: ps * 1e-12 for n, ps in zip(batch, found, strict=True)}
            partial = path.with_suffix(".partial")
            partial.write_text(json.dumps(known))
            partial.replace(path)
            say(f"{program.name} on {preset.name}: {len(known)} layouts replayed")
    return {name: known[keys[name]] for name in layouts}


def _digest_of(layout: npt.NDArray[np.bool_]) -> str:
    return hashlib.sha256(np.packbits(layout).tobytes()).hexdigest()[:8]


def _batches(names: list[str], size: int) -> Iterable[list[str]]:
    return (names[i : i + size] for i in range(0, len(names), size))
