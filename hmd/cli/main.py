"""The ``hmd`` command: finds the families, parses, runs one, and turns errors into exit codes.

The family of ``hmd NAME`` is ``NAME_command.py`` of this package, with ``add_parser(subparsers)``;
it registers its subparser and sets ``func``, a function of the parsed arguments that returns an
``Exit`` code. Families import what is heavy inside ``func``, so that ``hmd --help`` costs argparse
and nothing more.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn, TypeAlias

from hmd import __version__
from hmd.errors import Exit, HmdError

GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "The daemon",
        (
            *("run", "status", "top", "heatmap", "dashboard"),
            *("config", "policy", "enable", "disable"),
        ),
    ),
    ("Orders to the daemon", ("pause", "resume", "drain", "undrain", "pin", "unpin")),
    ("Traces", ("record", "trace", "estimate", "simulate", "tune")),
    ("The machine", ("topology", "doctor", "migrate")),
    ("The emulated machine", ("emulate", "demo")),
)
"""Families by the heading under which ``hmd --help`` lists them; each is a module here."""

INTERRUPTED = 130
"""128 + SIGINT, what a shell expects of a command left by Ctrl-C."""

BROKEN_PIPE = 141
"""128 + SIGPIPE, what a shell expects of a command whose reader has gone."""

EPILOG = """\
examples:
  hmd doctor                                 what this machine can do, and what to change
  hmd config check /etc/hmd/hmd.yaml         every mistake, with file and line
  hmd run --config /etc/hmd/hmd.yaml         run the daemon in the foreground
  hmd top                                    watch pages move
  hmd emulate --preset dram-pm -- COMMAND    run COMMAND on an emulated DRAM+PM machine

exit codes:
  0  done                            4  the machine lacks something; the message says what
  1  failed                          5  the target process or node is not there
  2  wrong usage                     6  no daemon answers on the status socket
  3  wrong configuration           130  interrupted
"""


class CommandParser(argparse.ArgumentParser):
    """A parser that keeps the line breaks of its texts and takes no abbreviated options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        kwargs.setdefault("allow_abbrev", False)
        super().__init__(*args, **kwargs)

    def error(self, message: str) -> NoReturn:
        """Print one line and the way to the help, and exit with ``Exit.USAGE``."""
        self.exit(Exit.USAGE, f"hmd: {message} (see '{self.prog} --help')\n")


Subparsers: TypeAlias = "argparse._SubParsersAction[CommandParser]"
"""What ``add_parser`` of a family gets."""


class TopParser(CommandParser):
    """The parser of ``hmd`` itself; its help lists the families in groups."""

    families: Subparsers

    def format_help(self) -> str:
        """Return usage, families by group, options, examples and exit codes."""
        summaries = {a.dest: a.help or "" for a in self.families._get_subactions()}
        lines = [f"usage: {self.prog} COMMAND [options]", "", str(self.description), ""]
        for heading, names in GROUPS:
            present = [name for name in names if name in summaries]
            if present:
                lines += [f"{heading}:"]
                lines += [f"  {name:<10} {summaries[name]}" for name in present] + [""]
        lines += [
            "Options:",
            "  -h, --help  this text; 'hmd COMMAND --help' tells more",
            "  --version   print the version",
            "",
            str(self.epilog),
        ]
        return "\n".join(lines)


def build_parser() -> TopParser:
    """Return the parser with every family registered."""
    parser = TopParser(
        prog="hmd",
        description="hmd keeps the hot pages of running programs in fast memory.",
        epilog=EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"hmd {__version__}")
    parser.set_defaults(func=lambda _: help_for_nothing(parser))
    parser.families = parser.add_subparsers(metavar="COMMAND", parser_class=CommandParser)
    for _, names in GROUPS:
        for name in names:
            import_module(f"hmd.cli.{name}_command").add_parser(parser.families)
    return parser


def help_for_nothing(parser: argparse.ArgumentParser) -> int:
    """Print the help to one who gave no command."""
    parser.print_help(sys.stderr)
    return Exit.USAGE


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code and lets no expected error through."""
    try:
        args = build_parser().parse_args(argv)
        code = int(args.func(args))
        sys.stdout.flush()
    except HmdError as error:
        sys.stderr.writelines(f"hmd: {line}\n" for line in str(error).splitlines())
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Python flushes stdout once more at exit; give it somewhere to go (docs: signal, SIGPIPE).
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    return code
