# SPDX-License-Identifier: MIT
"""The ``hmd`` command: parses the arguments, runs one command, turns errors into exit codes.

``GROUPS`` lists the commands. The module of a command has ``DESCRIPTION`` and ``EXAMPLES`` for its
help, ``OPTIONS`` as :func:`hmd.cli.arguments.add_options` reads them, with ``REQUIRED`` and
``TYPES`` where it has such, and ``run``: a function of the parsed arguments that returns an exit
code where it is not 0. One of several actions has ``ACTIONS`` instead, by name a summary and
options, and ``run_NAME`` for each. One that needs more has ``add_arguments(parser)``, which adds
the options and sets ``func``. ``hmd NAME`` imports the module of NAME alone, and that imports
numpy, numba and the like inside ``run``: ``hmd --version`` and ``hmd --help`` cost argparse and
nothing more.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Final, NoReturn

from hmd import __version__
from hmd.base.errors import Exit, HmdError, PageSizeError, unavailable_code

INTERRUPTED = 130
"""128 + SIGINT, what a shell reports for a command that Ctrl-C ended."""

BROKEN_PIPE = 141
"""128 + SIGPIPE, what a shell reports for a command whose reader has exited."""

WRITE_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG})
"""What write(2) fails with: no space, over quota, a device error, over a size limit."""


GROUPS: Final[Mapping[str, Mapping[str, str]]] = {
    "The daemon": {
        "run": "run the daemon",
        "status": "show the daemon's state and where each process's pages are",
        "top": "watch processes' memory and page moves, live",
        "heatmap": "draw heat and tier of a process's memory over time",
        "explain": "show why pages of a process are where they are",
        "profile": "show, move and forget what is known of programs from former runs",
        "report": "show what hmd did in the last hour or week: worth it?",
        "advise": "show how much fast memory targets need, and who gains by more",
        "dashboard": "serve a live page of the daemon's state to a browser",
        "config": "check and show the configuration",
        "policy": "list the policies and their settings; use another policy",
        "enable": "install hmd as a service; shows the changes first",
        "disable": "stop the service and remove its files",
    },
    "Admin requests to the daemon": {
        "pause": "stop moving pages until resumed",
        "resume": "move pages again",
        "drain": "empty a memory node before maintenance or hot-remove",
        "undrain": "let pages move to a drained node again",
        "pin": "keep a process's pages in place or on a node",
        "unpin": "let policies move a pinned process's pages",
    },
    "Traces": {
        "record": "record a program's memory accesses",
        "trace": "show, plot, export and import recorded traces",
        "estimate": "predict the runtime of a placement from two traces",
        "simulate": "simulate policies on a recorded program",
        "tune": "search a policy's best settings on recorded programs",
        "train": "train the learned policy on recorded programs",
    },
    "Training steps": {
        "plan": "plan the memory of a training step ahead",
        "tensors": "record and show the kernels and tensors of a training step",
    },
    "The machine": {
        "numa": "show on which nodes the memory of all processes or cgroups is",
        "topology": "show memory nodes, their latency, bandwidth and tiers",
        "doctor": "show what this machine lacks and how to fix it",
        "migrate": "move the memory of a process to a node",
    },
    "The emulated machine": {
        "emulate": "run a command on an emulated machine with two memory tiers",
        "demo": "run two programs with and without hmd on an emulated machine",
    },
}
"""All commands with their summaries, by the headings and in the order of ``hmd --help``."""

COMMANDS: Final = {name: text for group in GROUPS.values() for name, text in group.items()}

EPILOG = """\
examples:
  hmd doctor                                 what this machine can do, and what to change
  hmd config check /etc/hmd/hmd.yaml         every mistake, with file and line
  hmd run --config /etc/hmd/hmd.yaml         run the daemon in the foreground
  hmd top                                    watch pages move
  hmd emulate --preset dram-pm -- COMMAND    run COMMAND on an emulated DRAM+PM machine

exit codes:
  0  done                            6  no daemon answers on the status socket
  1  failed                          7  not permitted; the message says what is needed
  2  wrong usage                    75  not now (busy, no memory or descriptors): try again
  3  wrong configuration           130  interrupted (SIGINT)
  4  missing: a kernel feature,    141  the reader of the output has gone (SIGPIPE)
     device or package
  5  no such process, target or node
"""


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'NAME'?`` for a mistyped word, empty where no name is close."""
    import difflib

    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else ""


class CommandParser(argparse.ArgumentParser):
    """A parser that keeps the line breaks of its texts and suggests names for mistyped ones."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        """Print one line that names the help to read, and exit with ``Exit.USAGE``."""
        self.exit(Exit.USAGE, f"hmd: {message} (see '{self.prog} --help')\n")

    # argparse hands what a subparser does not know to the parser above it, whose error would name
    # the wrong help; here the parser that meets an unknown option reports it.
    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse; exits with ``Exit.USAGE`` for an argument that the command does not have."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            word = unknown[0].partition("=")[0]
            options = self._option_string_actions if word.startswith("-") else ()
            if word in options:
                self.error(f"{word} stands behind '--', where no options are: put it before")
            self.error(f"unknown argument {unknown[0]!r}{suggestion(word, options)}")
        return found, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            names = ", ".join(action.choices)
            hint = suggestion(str(value), action.choices) or f"; there are {names}"
            self.error(f"no command {value!r}{hint}")
        super()._check_value(action, value)


class TopParser(CommandParser):
    """The parser of ``hmd`` itself; its help lists the commands of the table in groups."""

    def format_help(self) -> str:
        """Return usage, commands by group, options, examples and exit codes."""
        lines = [f"usage: {self.prog} COMMAND [options]", "", str(self.description), ""]
        for heading, group in GROUPS.items():
            lines += [f"{heading}:"]
            lines += [f"  {name:<10} {summary}" for name, summary in group.items()] + [""]
        lines += [
            "Options:",
            "  -h, --help     print this text; 'hmd COMMAND --help' or 'hmd help COMMAND' for one",
            "  -V, --version  print the version",
            "",
            str(self.epilog),
        ]
        return "\n".join(lines)


def build_parser(names: Iterable[str] = COMMANDS) -> TopParser:
    """Return the parser with these commands, all of ``COMMANDS`` unless given."""
    parser = TopParser(
        prog="hmd",
        description="hmd keeps the hot pages of running programs in fast memory.",
        epilog=EPILOG,
    )
    parser.add_argument(
        "-V", "--version", action="version", version=f"hmd {__version__}", help="print the version"
    )
    parser.set_defaults(func=lambda _: _help_without_command(parser))
    families = parser.add_subparsers(metavar="COMMAND", parser_class=CommandParser)
    for name in names:
        command = _load(name)
        added = families.add_parser(
            name, help=COMMANDS[name], description=command.DESCRIPTION, epilog=command.EXAMPLES
        )
        if hasattr(command, "add_arguments"):
            command.add_arguments(added)
        else:
            _add_arguments(added, command)
    return parser


def _add_arguments(parser: argparse.ArgumentParser, command: Any) -> None:
    """Add the arguments that the texts of a command's module list, or its actions with theirs."""
    from hmd.cli.arguments import add_action, add_options

    parser.usage = getattr(command, "USAGE", None)
    required, types = getattr(command, "REQUIRED", ()), getattr(command, "TYPES", {})
    if actions := getattr(command, "ACTIONS", None):
        family = parser.add_subparsers(metavar="|".join(actions), required=True)
        for name, (summary, options) in actions.items():
            run = getattr(command, f"run_{name}")
            needed = required.get(name, ()) if required else ()
            add_action(family, name, summary, run, options, needed, **types)
    else:
        add_options(parser, command.OPTIONS, required, **types)
        parser.set_defaults(func=command.run)


def _load(name: str) -> Any:
    """Return the module of a command, or its entry in ``admin_request.ADMIN_COMMANDS``."""
    if find_spec(f"hmd.cli.{name}_command"):
        return import_module(f"hmd.cli.{name}_command")
    return import_module("hmd.cli.admin_request").ADMIN_COMMANDS[name]


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse a command line without ``hmd`` itself; imports the named command's module alone.

    ``help [COMMAND]`` is ``[COMMAND] --help``. Exits with ``Exit.USAGE`` for wrong usage.
    """
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    first = words[0] if words else ""
    parser = build_parser([first] if first in COMMANDS else [])
    if first.startswith("-") and first not in parser._option_string_actions:
        parser.error(f"unknown option {first!r}: options of a command stand after its name")
    if words and not first.startswith("-") and first not in COMMANDS:
        parser.error(f"no command {first!r}{suggestion(first, COMMANDS)}")
    return parser.parse_args(words)


def _help_without_command(parser: argparse.ArgumentParser) -> int:
    parser.print_help(sys.stderr)
    return Exit.USAGE


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code and lets no expected error through."""
    _open_standard_streams()
    try:
        try:
            words = sys.argv[1:] if argv is None else list(argv)
            args = parse(words)
            from hmd.cli.output import note_invocation

            note_invocation(words, args)
            code = int(args.func(args) or Exit.OK)
        finally:
            sys.stdout.flush()  # also of --help, which exits
    except HmdError as error:
        if isinstance(error, PageSizeError) and argv is None:
            _run_again(error.page_bytes)
        sys.stderr.writelines(f"hmd: {line}\n" for line in str(error).splitlines())
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return BROKEN_PIPE
    except OSError as error:
        return _report_os_error(error)
    return code


def _run_again(page_bytes: int) -> None:
    """Run this command line with pages of another size; returns if their size was set already.

    Kernels are compiled for one size: those of others are kept in a cache of their own.
    """
    from hmd.base.units import PAGE_SIZE_VARIABLE

    if PAGE_SIZE_VARIABLE in os.environ:
        return
    caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    environment = {
        "NUMBA_CACHE_DIR": str(caches / f"hmd/pages-{page_bytes}"),
        **os.environ,
        PAGE_SIZE_VARIABLE: str(page_bytes),
    }
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)


def _report_os_error(error: OSError) -> Exit:
    """Print one line for an error of a file or of stdout; raises any other one."""
    if error.filename is not None:
        sys.stderr.write(f"hmd: {os.fsdecode(error.filename)}: {error.strerror}\n")
        return unavailable_code(error.errno)
    if error.errno not in WRITE_ERRORS:
        raise error
    _discard_output()
    sys.stderr.write(f"hmd: cannot write the output: {error.strerror}\n")
    return Exit.FAILURE


def _open_standard_streams() -> None:
    """Give descriptors that the caller closed (``>&-``) somewhere to go: Python has None there.

    Characters that stdout's encoding lacks, and file names that are no text, are printed escaped.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def _discard_output() -> None:
    """Let Python's last flush of stdout, at exit, go nowhere (docs: signal, SIGPIPE)."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
