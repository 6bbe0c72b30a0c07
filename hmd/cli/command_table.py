"""The commands of ``hmd`` by name: the module of each, and its line in ``hmd --help``.

``hmd COMMAND`` imports the module of that command and no other; ``hmd --help`` and
``hmd --version`` import none. The summaries therefore stand here as well as in the parsers; a
test compares them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """One command; ``module`` is a file of this package, ``NAME_command`` unless given."""

    name: str
    summary: str
    shared_module: str = ""

    @property
    def module(self) -> str:
        """The module whose ``add_parser`` registers the command."""
        return f"hmd.cli.{self.shared_module or f'{self.name}_command'}"


@dataclass(frozen=True, slots=True)
class CommandGroup:
    """The commands under one heading of ``hmd --help``."""

    heading: str
    commands: tuple[CommandEntry, ...]


GROUPS: Final = (
    CommandGroup(
        "The daemon",
        (
            CommandEntry("run", "run the daemon"),
            CommandEntry("status", "show the daemon's state and where each process's pages are"),
            CommandEntry("top", "watch processes' memory and page moves, live"),
            CommandEntry("heatmap", "draw heat and tier of a process's memory over time"),
            CommandEntry("explain", "show why pages of a process are where they are"),
            CommandEntry("dashboard", "serve a live page of the daemon's state to a browser"),
            CommandEntry("config", "check and show the configuration"),
            CommandEntry("policy", "list the policies and their settings; use another policy"),
            CommandEntry("enable", "install hmd as a service; shows the changes first"),
            CommandEntry("disable", "stop the service and remove its files"),
        ),
    ),
    CommandGroup(
        "Admin requests to the daemon",
        (
            CommandEntry("pause", "stop moving pages until resumed", "admin_request"),
            CommandEntry("resume", "move pages again", "admin_request"),
            CommandEntry("drain", "empty a memory node before maintenance or hot-remove"),
            CommandEntry("undrain", "let pages move to a drained node again", "admin_request"),
            CommandEntry("pin", "keep a process's pages in place or on a node", "admin_request"),
            CommandEntry("unpin", "let policies move a pinned process's pages", "admin_request"),
        ),
    ),
    CommandGroup(
        "Traces",
        (
            CommandEntry("record", "record a program's memory accesses"),
            CommandEntry("trace", "show, plot, export and import recorded traces"),
            CommandEntry("estimate", "predict the runtime of a placement from two traces"),
            CommandEntry("simulate", "simulate policies on a recorded program"),
            CommandEntry("tune", "search a policy's best settings on recorded programs"),
            CommandEntry("train", "train the learned policy on recorded programs"),
        ),
    ),
    CommandGroup(
        "Training steps",
        (
            CommandEntry("plan", "plan the memory of a training step ahead"),
            CommandEntry("tensors", "record and show the kernels and tensors of a training step"),
        ),
    ),
    CommandGroup(
        "The machine",
        (
            CommandEntry("topology", "show memory nodes, their latency, bandwidth and tiers"),
            CommandEntry("doctor", "show what this machine lacks and how to fix it"),
            CommandEntry("migrate", "move the memory of a process to a node"),
        ),
    ),
    CommandGroup(
        "The emulated machine",
        (
            CommandEntry("emulate", "run a command on an emulated machine with two memory tiers"),
            CommandEntry("demo", "run two programs with and without hmd on an emulated machine"),
        ),
    ),
)
"""All commands, by the headings and in the order of ``hmd --help``."""

COMMANDS: Final = {entry.name: entry for group in GROUPS for entry in group.commands}


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'NAME'?`` for a mistyped word, empty where no name is close."""
    import difflib

    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else ""
