# SPDX-License-Identifier: MIT
"""True runtimes of programs under any placement of pages, by the timing model.

A program's misses are recorded once in the emulated machine; the runtime of a layout is then a
replay by the same timing model on the host. Both are stored by digest, so that an interrupted run
continues. A recording takes a minute or two per program, a replay 20 to 100 ns per miss.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.suite import inputs as suite_inputs
from bench.suite.inputs import prepare
from bench.suite.program import SuiteProgram, load_program, programs_folder
from hmd.base.errors import HmdError
from hmd.emulate.assets import OF_HOST
from hmd.emulate.preset import Preset, load
from hmd.emulate.recordings import replay
from hmd.emulate.recordings.misses import MissStream
from hmd.emulate.recordings.recorder import ALL_SLOW, RECORDED_ON, guest, run_in, widest_core
from hmd.emulate.recordings.replay import Layout, replayed

_NOT_RECORDED = {"description", "memory_class", "source", "long_command", "held_out"}
_INCLUDE = re.compile(r'^#include "(.+)"$', re.MULTILINE)
_BATCH = 8  # layouts between two writes of the results
_TIMING = Path(replay.__file__).parents[1] / "timing"


@dataclass(frozen=True, slots=True)
class RecordedStream:
    """A program's miss recording, in memory or in a file, and the host time of the recorded run."""

    name: str
    source: MissStream | Path
    host_s: float

    @property
    def stream(self) -> MissStream:
        """The recording, which is read when it is first needed."""
        return _read_stream(self.source) if isinstance(self.source, Path) else self.source


@lru_cache(maxsize=1)
def _read_stream(path: Path) -> MissStream:
    return MissStream.read(path)


def recorded(name: str, folder: Path, say: Callable[[str], None]) -> RecordedStream:
    """Return a program's miss recording; records it in the emulated machine if it is missing."""
    return recording_of(load_program(name), folder, say)


def recording_of(program: SuiteProgram, folder: Path, say: Callable[[str], None]) -> RecordedStream:
    """As ``recorded``, of a program that may be none of the suite's files."""
    name = program.name
    path = stream_path(program, folder)
    note = path.with_suffix(".json")
    path.parent.mkdir(parents=True, exist_ok=True)
    if not (path.exists() and note.exists()):
        say(f"{name}: recording its misses in the emulated machine")
        command = prepare(program, folder / "inputs")
        with guest(widest_core(load(RECORDED_ON)), command) as machine:
            run = run_in(machine, command, ALL_SLOW)
        run.recording.stream.write(path)
        note.write_text(json.dumps({"host_s": run.host_s, "instructions": run.instructions}))
    return RecordedStream(name, path, float(json.loads(note.read_text())["host_s"]))


def stream_path(program: SuiteProgram, folder: Path) -> Path:
    """Return where a program's miss recording is stored, whether it is there or not."""
    return folder / "streams" / f"{program.name}-{digest_of(program)}.npz"


def program_digest(name: str) -> str:
    """Return a digest of all that a program's stream depends on: itself, its inputs, the plugin.

    Descriptions, comments and docstrings do not count, so that rewording them invalidates no
    recording.
    """
    return digest_of(load_program(name))


def digest_of(program: SuiteProgram) -> str:
    """As ``program_digest``; the folder of the program's source does not count."""
    source = None if program.compile is None else Path(program.compile).name
    named = program.model_copy(update={"compile": source})
    digest = hashlib.sha256(named.model_dump_json(exclude=_NOT_RECORDED).encode())
    recorder = (path for path in _TIMING.glob("*.[ch]") if path.name not in OF_HOST)
    for path in sorted([*source_files(program), *recorder]):
        digest.update(f"{path.name}\0{code_of(path)}".encode())
    return digest.hexdigest()[:12]


def replay_digest(name: str) -> str:
    """Return a digest of what replays of a program's stream depend on, but the preset."""
    parts = [program_digest(name), *(code_of(_TIMING / source) for source in OF_HOST)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def source_files(program: SuiteProgram) -> set[Path]:
    """Return the files of the suite from which a program and its inputs are made."""
    inputs = program.inputs.values()
    found = {programs_folder() / made.file for made in inputs if made.file is not None}
    if any(made.generate is not None for made in inputs):
        found.add(Path(suite_inputs.__file__))
    if program.compile is not None:
        found |= _with_includes(programs_folder() / program.compile)
    return found


def _with_includes(source: Path) -> set[Path]:
    """Return a C file and the suite's files that it includes, directly or not."""
    included = [source.parent / name for name in _INCLUDE.findall(source.read_text())]
    return {source}.union(*map(_with_includes, included))


def code_of(path: Path) -> str:
    """Return a source without comments, blank lines and, in Python, docstrings."""
    text = path.read_text()
    if path.suffix == ".py":
        return _python_code(text)
    if path.suffix in (".c", ".h"):
        text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)
    return "\n".join(line.rstrip() for line in text.splitlines() if line.strip())


def _python_code(text: str) -> str:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                node.body = node.body[1:] or [ast.Pass()]
    return ast.unparse(tree)


def require_same_cache(preset: Preset) -> None:
    """Raise HmdError for a preset whose caches differ from those of recordings."""
    base = load(RECORDED_ON)
    same = (
        preset.cache.size == base.cache.size
        and preset.cache.ways == base.cache.ways
        and preset.core.prefetch_streams == base.core.prefetch_streams
        and preset.core.instruction_ns == base.core.instruction_ns
    )
    if not same:
        raise HmdError(
            f"preset {preset.name} has other caches than {RECORDED_ON}, the preset of recordings"
        )


def runtimes(
    program: RecordedStream,
    preset: Preset,
    layouts: Mapping[str, Layout],
    folder: Path,
    say: Callable[[str], None],
    threads: int = 2,
) -> dict[str, float]:
    """Return the runtime of each layout in seconds; replays only layouts without a result."""
    digest = hashlib.sha256(preset.model_dump_json().encode())
    digest.update(replay_digest(program.name).encode())
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
