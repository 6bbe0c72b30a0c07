"""Inputs and commands of the suite's programs.

Inputs are made once, on the host. ``FOLDER/PROGRAM/INPUT`` is a file, or the folder of a command;
``INPUT.recipe`` next to it is the digest of all that it was made from. An input is made again only
when its recipe changes. The first time takes up to half a minute per program, later milliseconds.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.suite import input_generators
from bench.suite.program import (
    COMPILED,
    OUTPUT,
    PLACEHOLDER,
    PYTHON,
    Input,
    SuiteProgram,
    programs_folder,
)
from hmd.emulate.c_compiler import compile_static
from hmd.emulate.virtual_machine.guest_command import BASE_ENVIRONMENT, Command
from hmd.errors import MissingError

_GENERATOR = Path(input_generators.__file__)


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
        input_generators.generator(made.generate)(path, **made.arguments)
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
