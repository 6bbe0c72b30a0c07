"""``hmd enable``: install hmd as a systemd service, after showing the changes."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hmd.errors import Exit, HmdError, MissingError, UsageError, os_error

if TYPE_CHECKING:
    from hmd.cli.main import Subparsers
    from hmd.install.changes import InstallChanges

DESCRIPTION = """\
Make hmd a systemd service that starts at boot, and start it.

Prints what it would write and run, and asks before it does so. An existing configuration is kept.
The service gets the privileges that its sampler needs.
"""

EXAMPLES = """\
examples:
  hmd enable --dry-run     print the changes only
  hmd enable               print the changes, ask, apply them
  hmd enable --yes         apply without asking (for scripts)
  hmd enable --no-start    start at the next boot
  hmd disable              undo it; the configuration stays
"""


def add_parser(subparsers: Subparsers) -> None:
    """Register ``hmd enable``."""
    parser = subparsers.add_parser(
        "enable",
        help="install hmd as a service; shows the changes first",
        description=DESCRIPTION,
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "--sampler",
        metavar="NAME",
        help="give the service the privileges of this sampler (default: of the one in "
        "/etc/hmd/hmd.yaml; with auto, of the best that works here)",
    )
    parser.add_argument("--no-start", action="store_true", help="do not start it now")
    parser.add_argument(
        "--accept-writable",
        action="store_true",
        help="install it also where users other than root may change the files that it runs",
    )
    add_plan_arguments(parser)
    parser.set_defaults(func=run)


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of commands that show changes and apply them."""
    parser.add_argument("--dry-run", action="store_true", help="print the changes only")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--json", action="store_true", help="print the changes as JSON")
    parser.add_argument("--root", type=Path, default=Path("/"), help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Plan, show, ask, apply."""
    from hmd.install.changes import PACKAGED_HMD, plan_enable
    from hmd.install.shipped_files import shipped_folder
    from hmd.install.trusted_files import refusal, service_files, untrusted

    command = Path(sys.executable).with_name("hmd")
    if not command.is_file():
        raise MissingError(f"there is no {command}: install hmd with pip or as a package")
    # The command of the Debian package is a link into its own environment (packaging/debian).
    if PACKAGED_HMD.resolve() == command.resolve():
        command = PACKAGED_HMD
    folder = shipped_folder()
    places = [] if args.accept_writable else untrusted(service_files(command, folder))
    plan = plan_enable(
        folder,
        command,
        _sampler(args.sampler, args.root),
        start=not args.no_start,
        root=args.root,
        demotes_cache=_demotes_cache(args.root),
    )
    if places:
        plan = replace(plan, notes=(*plan.notes, refusal(places)))
    return carry_out(plan, args, refusal(places) if places else "")


def carry_out(plan: InstallChanges, args: argparse.Namespace, obstacle: str = "") -> int:
    """Show the changes and, unless it is a dry run, apply them; HmdError where a step fails.

    An ``obstacle`` forbids to apply them, with this reason.
    """
    from hmd.cli.output import print_json

    if args.json:
        print_json(
            {
                "before": plan.before,
                "files": [{"path": file.path, "kind": file.kind} for file in plan.files],
                "commands": plan.commands,
                "notes": plan.notes,
            }
        )
    else:
        _show(plan)
    if args.dry_run:
        return Exit.OK
    _check_machine(args.root)
    if obstacle:
        raise HmdError(obstacle)
    if not args.yes:
        _ask()
    for words in plan.before:
        _run(words)
    for file in plan.changes:
        try:
            file.apply()
        except OSError as error:
            raise os_error(
                error, f"cannot write {file.path}: {error.strerror}: run it as root", HmdError
            ) from None
    for words in plan.commands:
        _run(words)
    return Exit.OK


def _sampler(asked: str | None, root: Path) -> str:
    """Return the sampler that the service will use."""
    from hmd.config import load
    from hmd.install.changes import CONFIG
    from hmd.sample.auto_select import SampleSettings, available
    from hmd.sample.capabilities import CAPABILITIES

    if asked is not None:
        if asked not in CAPABILITIES:
            raise UsageError(f"no sampler {asked!r}: take one of {', '.join(CAPABILITIES)}")
        return asked
    config = root / CONFIG.relative_to("/")
    if config.is_file():
        configured = load(config).sample.sampler
        if configured != "auto":
            return configured
    for found in available(SampleSettings()):
        if found.works and CAPABILITIES[found.name].automatic:
            return found.name
    raise MissingError("no sampler works here: 'hmd doctor' shows what each of them lacks")


def _demotes_cache(root: Path) -> bool:
    """Return whether the configuration asks for headroom from page cache."""
    from hmd.config import load
    from hmd.install.changes import CONFIG

    config = root / CONFIG.relative_to("/")
    return config.is_file() and load(config).migrate.cache_headroom > 0


def _check_machine(root: Path) -> None:
    if not (root / "run/systemd/system").is_dir():
        raise MissingError("systemd does not run here: start the daemon with 'hmd run' instead")


def _ask() -> None:
    if not sys.stdin.isatty():
        raise UsageError("standard input is not a terminal: add --yes to apply, or --dry-run")
    if input("Go on? [y/N] ").strip().lower() not in ("y", "yes"):
        raise HmdError("nothing was changed")


def _show(plan: InstallChanges) -> None:
    from hmd.cli.output import console, print_table

    rows: list[tuple[str, object]] = [("run", " ".join(words)) for words in plan.before]
    rows += [(file.kind, file.path) for file in plan.files]
    rows += [("run", " ".join(words)) for words in plan.commands]
    print_table(("step", "what"), rows)
    out = console()
    for file in plan.changes:
        if file.kind == "change":
            out.print(file.diff(), markup=False)
    for note in plan.notes:
        out.print(note, markup=False)


def _run(words: tuple[str, ...]) -> None:
    import subprocess

    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError as error:
        raise os_error(error, f"cannot run {words[0]}: {error.strerror}: install systemd") from None
    if done.returncode:
        said = (done.stderr.strip() or "it said nothing").splitlines()[-1]
        raise HmdError(f"'{' '.join(words)}' failed: {said}; see 'journalctl -u hmd'")
