# SPDX-License-Identifier: MIT
"""Variants of the suite's programs, which stand for runs of one program on other data.

    python -m bench.second_run.variants [PROGRAM:VARIANT ...]    record these, or all

``variants.yaml`` says what differs; ``suite`` is the suite's program as it is. A variant's C source
is a copy with other random seeds, so that the suite's own recordings stay valid. A recording takes
half a minute to two minutes, and is stored below build/suite as those of the suite are.
"""

from __future__ import annotations

import argparse
import re
import sys
from functools import cache
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, TypeAdapter

from bench.compare.policies import SUITE
from bench.progress import print_progress
from bench.suite.ground_truth import recording_of, stream_path
from bench.suite.program import SuiteProgram, load_program, programs_folder
from hmd.base.atomic_file import finished_file
from hmd.base.errors import ConfigError, HmdError
from hmd.base.yaml_document import parse_document, values

BASE: Final = "suite"
"""The variant that is the suite's program."""

_SEED: Final = re.compile(r"(\bstate = )(\d+)")
_FILE: Final = Path(__file__).with_name("variants.yaml")


class Variant(BaseModel):
    """What differs from the suite's program: see ``variants.yaml``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    command: tuple[str, ...] = ()
    inputs: dict[str, dict[str, int | float | str]] = {}
    seeds: int = 0
    expect: str = ""


@cache
def variants() -> dict[str, dict[str, Variant]]:
    """Return the variants of each program, by name; without ``suite``, which needs no entry."""
    document = parse_document(_FILE.read_bytes(), _FILE.name)
    return TypeAdapter(dict[str, dict[str, Variant]]).validate_python(values(document))


def variant_of(name: str, variant: str, folder: Path = SUITE) -> SuiteProgram:
    """Return a program's variant; a source with other seeds is written below ``folder``.

    Raises ConfigError for an unknown program or variant, and for other seeds where there are none.
    """
    program = load_program(name)
    if variant == BASE:
        return program
    found = variants().get(name, {}).get(variant)
    if found is None:
        known = ", ".join((BASE, *variants().get(name, {})))
        raise ConfigError(f"{name} has no variant {variant!r}: take {known}")
    inputs = {
        key: made.model_copy(update={"arguments": made.arguments | found.inputs.get(key, {})})
        for key, made in program.inputs.items()
    }
    changed: dict[str, object] = {"name": f"{name}_{variant}", "inputs": inputs}
    changed |= {"command": found.command} if found.command else {}
    changed |= {"expect": found.expect} if found.expect else {}
    if found.seeds:
        if program.compile is None:
            raise ConfigError(f"{name} is no C program of the suite: it takes no seeds")
        source = programs_folder() / program.compile
        changed["compile"] = str(_reseeded(source, found.seeds, folder / "variants" / variant))
    return program.model_copy(update=changed)


def _reseeded(source: Path, more: int, folder: Path) -> Path:
    """Write a C source with other seeds, and the suite's headers, to a folder; return its path."""
    text, count = _SEED.subn(lambda found: f"{found[1]}{int(found[2]) + more}", source.read_text())
    if not count:
        raise ConfigError(f"{source.name} has no `state = NUMBER`, to which seeds could be added")
    folder.mkdir(parents=True, exist_ok=True)
    copies = {path.name: path.read_text() for path in source.parent.glob("*.h")}
    for name, content in (copies | {source.name: text}).items():
        with finished_file(folder / name) as file:
            file.write(content.encode())
    return (folder / source.name).resolve()


def recorded_variants(name: str, folder: Path = SUITE) -> list[str]:
    """Return the variants of a program that are recorded, the suite's first."""
    known = (BASE, *variants().get(name, {}))
    return [each for each in known if stream_path(variant_of(name, each, folder), folder).exists()]


def main() -> int:
    """Record the variants that are named, or all; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.second_run.variants",
        description="Record variants of the suite's programs.",
        epilog="example: python -m bench.second_run.variants cg:other cg:smaller",
    )
    parser.add_argument("names", nargs="*", metavar="PROGRAM:VARIANT", help="default: all")
    every = [f"{name}:{variant}" for name, found in variants().items() for variant in found]
    try:
        for each in parser.parse_args().names or every:
            name, _, variant = each.partition(":")
            recording_of(variant_of(name, variant or BASE), SUITE, print_progress)
    except HmdError as error:
        print(f"variants: {error}", file=sys.stderr)
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
