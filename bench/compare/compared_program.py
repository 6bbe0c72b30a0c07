"""A program as the comparison runs it: for long enough that systems can move its pages.

A program of the suite that is too short for that has a longer run of its own (``long_command``).
"""

from __future__ import annotations

import hashlib

from bench.suite.ground_truth import program_digest
from bench.suite.program import SuiteProgram, load_program


def compared_program(name: str) -> SuiteProgram:
    """Return a program of the suite with its long command; ConfigError for an unknown name."""
    program = load_program(name)
    if not program.long_command:
        return program
    return program.model_copy(update={"command": program.long_command})


def compared_digest(name: str) -> str:
    """Return a digest of all that a run depends on but the machine and the system."""
    program, recorded = load_program(name), program_digest(name)
    if not program.long_command:
        return recorded
    text = "\0".join([recorded, *program.long_command])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def can_be_simulated(name: str) -> bool:
    """Whether the simulator can replay a recording of what the comparison runs.

    It replays one thread, and recordings are of the suite's shorter runs.
    """
    program = load_program(name)
    return program.threads == 1 and not program.long_command
