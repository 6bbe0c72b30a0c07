# SPDX-License-Identifier: MIT
"""A program of the suite: one YAML file, next to its C source or script.

A file describes the program's memory behaviour, its source, how it runs, and the output of a
successful run. ``load_program`` returns the validated ``SuiteProgram`` of a name, from which
``bench.suite.inputs`` makes inputs and command.

Every program runs on one CPU, or on one per thread (``threads``), does a fixed amount of work and
uses fixed random seeds: two runs without address randomisation touch the same addresses in the same
order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from hmd.base.errors import ConfigError
from hmd.base.yaml_document import parse_document, values
from hmd.emulate.preset import first_problem

PLACEHOLDER = re.compile(r"\{([a-z][a-z0-9_]*)\}")
"""``{name}`` in an argument is replaced by the path of an input, or by one of the three below."""

COMPILED = "program"
"""The placeholder for the C program that ``compile`` names: the program, or a server's client."""

PYTHON = "python"
"""The placeholder for hmd's own Python, with the packages of its environment."""

OUTPUT = "out"
"""The placeholder, in an input's own command, for the folder that the command fills."""

MemoryClass = Literal["moving hot set", "stable hot set", "streaming", "no contrast"]
"""What a program's memory behaviour offers to tiering: a hot set that moves or stays, sequential
passes over all memory, or accesses that are uniform at random."""

_Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
_Words = Annotated[tuple[str, ...], Field(min_length=1)]


class _CheckedProgram(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Input(_CheckedProgram):
    """Source of one input: exactly one of a text, a file of the suite, a generator, a command.

    ``text`` may contain placeholders of earlier inputs. ``generate`` is a function of
    bench.suite.inputs, called with ``arguments``. ``command`` runs on the host and fills
    the folder ``{out}``.
    """

    text: str | None = None
    file: str | None = None
    generate: str | None = None
    arguments: dict[str, int | float | str] = {}
    command: _Words | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        ways = [self.text, self.file, self.generate, self.command]
        if sum(way is not None for way in ways) != 1:
            raise ValueError("takes exactly one of text, file, generate, command")
        if self.arguments and self.generate is None:
            raise ValueError("arguments go with generate")
        return self

    @property
    def words(self) -> tuple[str, ...]:
        """Text that may contain placeholders."""
        return (self.text,) if self.text is not None else self.command or ()


class Load(_CheckedProgram):
    """The load of a server: runs once ``ready`` succeeds, and ends the server when it ends."""

    ready: _Words
    command: _Words


class SuiteProgram(_CheckedProgram):
    """A program of the suite; ``load`` is for servers, of which the server is measured.

    ``long_command`` is a longer run, for measurements of systems that move pages meanwhile. A
    program that is ``held_out`` is kept out of the choice of all terms and coefficients.
    """

    name: _Name
    description: Annotated[str, Field(min_length=40)]
    memory_class: Annotated[MemoryClass, Field(alias="class")]
    source: Annotated[str, Field(min_length=4)]
    packages: tuple[str, ...] = ()
    compile: str | None = None
    inputs: dict[_Name, Input] = {}
    command: _Words
    long_command: tuple[str, ...] = ()
    env: dict[str, str] = {}
    load: Load | None = None
    expect: Annotated[str, Field(min_length=2)]
    exit_status: Annotated[int, Field(ge=0, le=125)] = 0
    threads: Annotated[int, Field(ge=1, le=15)] = 1
    held_out: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        known = {PYTHON, COMPILED} if self.compile else {PYTHON}
        for name, made in self.inputs.items():
            if name in (PYTHON, COMPILED, OUTPUT):
                raise ValueError(f"inputs.{name}: the name stands for something else")
            _refuse_unknown(made.words, known | ({OUTPUT} if made.command else set()))
            known.add(name)
        _refuse_unknown([*self._words()], known)
        return self

    def _words(self) -> Iterator[str]:
        yield from (*self.command, *self.long_command)
        yield from self.env.values()
        if self.load:
            yield from (*self.load.ready, *self.load.command)


def program_names() -> tuple[str, ...]:
    """Return the sorted names of all programs of the suite."""
    names = (Path(entry.name) for entry in programs_folder().iterdir())
    return tuple(sorted(name.stem for name in names if name.suffix == ".yaml"))


def load_program(name: str) -> SuiteProgram:
    """Return the program of this name; raises ConfigError, which lists all names."""
    if name not in program_names():
        raise ConfigError(f"no program {name!r} in the suite: take {', '.join(program_names())}")
    return parse((programs_folder() / f"{name}.yaml").read_bytes(), f"{name}.yaml")


def parse(data: bytes, origin: str) -> SuiteProgram:
    """Return the program in YAML bytes; raises ConfigError, which names ``origin``."""
    document = parse_document(data, origin)
    try:
        return SuiteProgram.model_validate(values(document))
    except ValidationError as error:
        raise ConfigError(first_problem(error, document)) from None


def programs_folder() -> Path:
    """Return the folder of the suite's YAML files, C sources and scripts."""
    folder: Any = resources.files("bench.suite") / "programs"
    return Path(folder)


def _refuse_unknown(words: tuple[str, ...] | list[str], known: set[str]) -> None:
    for word in words:
        for name in PLACEHOLDER.findall(word):
            if name not in known:
                raise ValueError(f"{{{name}}} names no input above it")
