# SPDX-License-Identifier: MIT
"""Inputs and commands of the suite's programs.

Inputs are made once, on the host. ``FOLDER/PROGRAM/INPUT`` is a file, or the folder of a command;
``INPUT.recipe`` next to it is the digest of all that it was made from. An input is made again only
when its recipe changes. The first time takes up to half a minute per program, later milliseconds.

Generators of the suite's inputs: from a seed, the same bytes on every machine.

Each function writes one file, in at most a few seconds. They draw from numpy's RandomState, whose
streams never change (NEP 19), unlike those of numpy's newer generators.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.suite.program import (
    COMPILED,
    OUTPUT,
    PLACEHOLDER,
    PYTHON,
    Input,
    SuiteProgram,
    programs_folder,
)
from hmd.base.errors import ConfigError, MissingError
from hmd.emulate.assets import compile_static
from hmd.emulate.vm.guest import BASE_ENVIRONMENT, Command

_BASES = np.frombuffer(b"ACGT", np.uint8)


def linear_data(path: Path, *, rows: int, features: int, per_row: int, seed: int) -> None:
    """Write labelled sparse rows (libsvm's format): features of Zipf's law, a noisy linear label.

    A row draws ``per_row`` of ``features``; a feature drawn twice counts once.
    """
    random = np.random.RandomState(seed)
    truth = random.standard_normal(features)
    # Shuffled: otherwise all hot features would share a few pages.
    number = random.permutation(features)
    share = random.random_sample((rows, per_row))
    drawn = number[np.minimum((features**share - 1).astype(np.int64), features - 1)]
    noise = random.standard_normal(rows)
    with path.open("w") as file:
        for row in range(rows):
            present = np.unique(drawn[row])
            label = 1 if truth[present].sum() + noise[row] > 0 else -1
            file.write(f"{label:+d} " + " ".join(f"{i + 1}:1" for i in present) + "\n")


def dense_data(path: Path, *, rows: int, features: int, seed: int) -> None:
    """Write labelled dense rows (libsvm's format); labels follow products of a few features."""
    random = np.random.RandomState(seed)
    table = random.random_sample((rows, features)).round(4)
    score = table[:, 0] * table[:, 1] + table[:, 2] - table[:, 3] * table[:, 4]
    labels = (score > np.median(score)).astype(int)
    with path.open("w") as file:
        for label, row in zip(labels, table, strict=True):
            file.write(f"{label} " + " ".join(f"{i}:{v:g}" for i, v in enumerate(row)) + "\n")


def prose(path: Path, *, size_bytes: int, words: int, seed: int) -> None:
    """Write lines of invented words with Zipf's frequencies, which compress as prose does."""
    random = np.random.RandomState(seed)
    letters = random.randint(97, 123, (words, 9)).astype(np.uint8)
    lengths = random.randint(2, 10, words)
    spelled = [row[:n].tobytes() for row, n in zip(letters, lengths, strict=True)]
    count = size_bytes // 6 + 1
    ranks = (words ** random.random_sample(count) - 1).astype(np.int64)
    text = b" ".join(spelled[rank] for rank in ranks)[:size_bytes]
    lines = [text[at : at + 80].replace(b"\n", b" ") for at in range(0, len(text), 80)]
    path.write_bytes(b"\n".join(lines) + b"\n")


def records(path: Path, *, lines: int, seed: int) -> None:
    """Write lines of a random key and a random payload."""
    random = np.random.RandomState(seed)
    keys = random.randint(0, 2**31, lines)
    payload = random.randint(0, 2**31, lines)
    with path.open("w") as file:
        file.writelines(f"{k:010d} {p:08x}\n" for k, p in zip(keys, payload, strict=True))


def genome(path: Path, *, bases: int, seed: int) -> None:
    """Write a random DNA sequence (FASTA)."""
    sequence = _BASES[np.random.RandomState(seed).randint(0, 4, bases)]
    path.write_bytes(b">chromosome\n" + sequence.tobytes() + b"\n")


def reads(path: Path, *, bases: int, seed: int, count: int, length: int, errors: int) -> None:
    """Write reads (FASTQ) of the sequence of ``genome(bases, seed)``, each with some errors."""
    sequence = _BASES[np.random.RandomState(seed).randint(0, 4, bases)]
    random = np.random.RandomState(seed + 1)
    starts = random.randint(0, bases - length, count)
    with path.open("wb") as file:
        for number, start in enumerate(starts):
            read = sequence[start : start + length].copy()
            read[random.randint(0, length, errors)] = _BASES[random.randint(0, 4, errors)]
            quality = b"I" * length
            file.write(b"@read%d_%d\n%b\n+\n%b\n" % (number, start, read.tobytes(), quality))


def redis_requests(
    path: Path, *, keys: int, requests: int, writes: float, skew: float, seed: int
) -> None:
    """Write lines ``KEY VALUE`` (set) and ``KEY`` (get); the first lines set all keys.

    Then ``requests`` follow on keys by Zipf's law, a share of ``writes`` of them sets. A key's rank
    is independent of its order of insertion.
    """
    random = np.random.RandomState(seed)
    weights = np.arange(1, keys + 1, dtype=np.float64) ** -skew
    ranks = np.searchsorted(np.cumsum(weights) / weights.sum(), random.random_sample(requests))
    asked = random.permutation(keys)[np.minimum(ranks, keys - 1)]
    changes = random.random_sample(requests) < writes
    with path.open("w") as file:
        file.writelines(f"{key} {key}\n" for key in range(keys))
        for turn, (key, change) in enumerate(zip(asked.tolist(), changes, strict=True)):
            file.write(f"{key} {turn}\n" if change else f"{key}\n")


def edges(path: Path, *, vertices: int, degree: int, seed: int) -> None:
    """Write a directed graph, one edge per line, with many edges to few vertices."""
    random = np.random.RandomState(seed)
    source = np.arange(1, vertices).repeat(degree)
    target = (source * random.random_sample(len(source)) ** 2).astype(np.int64)
    # Shuffled: otherwise the vertices with many links would share a few pages.
    number = random.permutation(vertices)
    with path.open("w") as file:
        file.writelines(f"{a} {b}\n" for a, b in zip(number[source], number[target], strict=True))


def random_bytes(path: Path, *, size_bytes: int, seed: int) -> None:
    """Write random bytes."""
    path.write_bytes(np.random.RandomState(seed).bytes(size_bytes))


def sat_formula(path: Path, *, variables: int, clauses: int, seed: int) -> None:
    """Write a random satisfiable 3-SAT formula (DIMACS) with a planted solution."""
    random = np.random.RandomState(seed)
    solution = random.randint(0, 2, variables).astype(bool)
    chosen = random.randint(0, variables, (clauses, 3))
    true = random.randint(0, 2, (clauses, 3)).astype(bool)
    # The planted solution makes one literal of each clause true.
    true[:, 0] = solution[chosen[:, 0]]
    literals = np.where(true, chosen + 1, -(chosen + 1))
    with path.open("w") as file:
        file.write(f"p cnf {variables} {clauses}\n")
        file.writelines(f"{a} {b} {c} 0\n" for a, b, c in literals)


_GENERATORS: dict[str, Callable[..., None]] = {
    function.__name__: function
    for function in (
        linear_data,
        dense_data,
        prose,
        records,
        genome,
        reads,
        redis_requests,
        edges,
        random_bytes,
        sat_formula,
    )
}


def generator(name: str) -> Callable[..., Any]:
    """Return a generator by name; raises ConfigError, which lists all names."""
    if name not in _GENERATORS:
        raise ConfigError(f"no generator {name!r}: take one of {', '.join(sorted(_GENERATORS))}")
    return _GENERATORS[name]


_GENERATOR = Path(__file__)


def prepare(program: SuiteProgram, folder: Path) -> Command:
    """Make a program's missing inputs below ``folder``; return its command.

    Raises MissingError for a missing Debian package or compiler, and for a failing generator.
    """
    _require_packages(program)
    paths = {PYTHON: sys.executable}
    if program.compile is not None:
        paths[COMPILED] = str(compile_static(programs_folder() / program.compile))
    place = folder.resolve() / program.name
    place.mkdir(parents=True, exist_ok=True)
    for name, made in program.inputs.items():
        paths[name] = str(_input(made, place / name, paths))
    load = program.load
    return Command(
        argv=_filled(program.command, paths),
        env={**BASE_ENVIRONMENT, **{k: _filled([v], paths)[0] for k, v in program.env.items()}},
        expect=program.expect,
        exit_status=program.exit_status,
        threads=program.threads,
        ready=_filled(load.ready, paths) if load else (),
        load=_filled(load.command, paths) if load else (),
    )


def missing_packages(program: SuiteProgram) -> tuple[str, ...]:
    """Return the Debian packages of a program that are not installed."""
    if not program.packages:
        return ()
    try:
        listing = subprocess.run(
            ["dpkg-query", "-W", "-f", "${db:Status-Status} ${Package}\n", *program.packages],
            capture_output=True,
            text=True,
            check=False,
        ).stdout
    except FileNotFoundError:
        raise MissingError("no dpkg-query: the suite's programs are those of Debian 12") from None
    installed = {line.split()[1] for line in listing.splitlines() if line.startswith("installed ")}
    return tuple(package for package in program.packages if package not in installed)


def _require_packages(program: SuiteProgram) -> None:
    missing = missing_packages(program)
    if missing:
        raise MissingError(
            f"program {program.name} needs Debian packages that are not installed: "
            f"run setup/suite.sh (or: apt-get install {' '.join(missing)})"
        )


def _input(made: Input, path: Path, paths: Mapping[str, str]) -> Path:
    """Return the path of an input; makes the input unless its stored recipe is current."""
    if made.file is not None:
        return programs_folder() / made.file
    recipe, note = _recipe(made, paths), path.with_name(f"{path.name}.recipe")
    if path.exists() and note.exists() and note.read_text() == recipe:
        return path
    note.unlink(missing_ok=True)
    _remove(path)
    partial = path.with_name(f"{path.name}.partial")
    _remove(partial)
    _make(made, partial, paths)
    partial.rename(path)
    note.write_text(recipe)
    return path


def _recipe(made: Input, paths: Mapping[str, str]) -> str:
    """Return a digest of what an input is made from, including the inputs that it names."""
    digest = hashlib.sha256(made.model_dump_json().encode())
    if made.generate is not None:
        digest.update(_GENERATOR.read_bytes())
    for name in sorted({name for word in made.words for name in PLACEHOLDER.findall(word)}):
        if name != OUTPUT:
            digest.update(paths[name].encode())
            note = Path(f"{paths[name]}.recipe")
            digest.update(note.read_bytes() if note.exists() else Path(paths[name]).read_bytes())
    return digest.hexdigest()


def _make(made: Input, path: Path, paths: Mapping[str, str]) -> None:
    if made.text is not None:
        path.write_text(_filled([made.text], paths)[0])
    elif made.generate is not None:
        generator(made.generate)(path, **made.arguments)
    else:
        path.mkdir()
        assert made.command is not None
        words = _filled(made.command, {**paths, OUTPUT: str(path)})
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            last = (done.stderr.strip() or "no message").splitlines()[-1]
            raise MissingError(f"cannot make {path.stem} with {words[0]}: {last}")


def _filled(words: Sequence[str], paths: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(PLACEHOLDER.sub(lambda found: paths[found[1]], word) for word in words)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
