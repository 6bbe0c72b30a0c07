# SPDX-License-Identifier: MIT
"""``hmd enable``: install hmd as a systemd service, after showing the changes."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hmd.base.errors import HmdError, MissingError, NotPermittedError, UsageError, os_error
from hmd.base.paths import CONFIG_FILE
from hmd.cli.output import console, print_json, print_table
from hmd.sample.sampler import CAPABILITIES, SampleSettings

if TYPE_CHECKING:
    from hmd.config import Config
    from hmd.daemon.install import InstallChanges

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
  hmd enable --far zram:8GiB    also swap on compressed memory
  hmd disable              undo it; the configuration stays
"""

SHOW_AND_APPLY = """\
--dry-run   print the changes only
--yes       do not ask
--json      print the changes as JSON
--root DIR = /   (hidden)
"""

OPTIONS = f"""\
--sampler NAME     give the service the privileges of this sampler (default: of the one in
                   /etc/hmd/hmd.yaml; with auto, of the best that works here)
--far ENGINE       also make swap for pages that are paged out, as a service: zram:SIZE (compressed
                   memory), nbd:HOST[:PORT]/EXPORT (another machine's, by its nbd server) or
                   /dev/NAME (a disk without other use)
--no-start         do not start it now
--accept-writable  install it also where users other than root may change the files that it runs
{SHOW_AND_APPLY}"""


def run(args: argparse.Namespace) -> None:
    """Plan, show, ask, apply."""
    from hmd.config import load
    from hmd.daemon.install import (
        PACKAGED_HMD,
        far_unit,
        list_untrusted,
        plan_enable,
        refusal,
        service_files,
        shipped_folder,
    )

    command = Path(sys.executable).with_name("hmd")
    if not command.is_file():
        raise MissingError(f"there is no {command}: install hmd with pip or as a package")
    # The command of the Debian package is a link into its own environment (packaging/debian).
    if PACKAGED_HMD.resolve() == command.resolve():
        command = PACKAGED_HMD
    folder = shipped_folder()
    file = args.root / CONFIG_FILE.relative_to("/")
    config = load(file) if file.is_file() else None
    places = [] if args.accept_writable else list_untrusted(service_files(command, folder))
    plan = plan_enable(
        folder,
        command,
        _sampler(args.sampler, config),
        start=not args.no_start,
        root=args.root,
        demotes_cache=config is not None and config.migrate.cache_headroom > 0,
        far=None if args.far is None else far_unit(folder, args.far, args.root),
    )
    if places:
        plan = replace(plan, notes=(*plan.notes, refusal(places)))
    carry_out(plan, args, refusal(places) if places else "")


def carry_out(plan: InstallChanges, args: argparse.Namespace, obstacle: str = "") -> None:
    """Show the changes and, unless it is a dry run, apply them; HmdError where a step fails.

    An ``obstacle`` forbids to apply them, with this reason.
    """
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
        return
    if not (args.root / "run/systemd/system").is_dir():
        raise MissingError("systemd does not run here: start the daemon with 'hmd run' instead")
    if obstacle:
        raise HmdError(obstacle)
    if not args.yes:
        if not sys.stdin.isatty():
            raise UsageError("standard input is not a terminal: add --yes to apply, or --dry-run")
        if input("Go on? [y/N] ").strip().lower() not in ("y", "yes"):
            raise HmdError("nothing was changed")
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


def _sampler(asked: str | None, config: Config | None) -> str:
    from hmd.sample.selection import list_availability

    if asked is not None:
        if asked not in CAPABILITIES:
            raise UsageError(f"no sampler {asked!r}: take one of {', '.join(CAPABILITIES)}")
        return asked
    if config is not None and config.sample.sampler != "auto":
        return config.sample.sampler
    for found in list_availability(SampleSettings()):
        if found.works:
            return found.name
    if os.geteuid() != 0:
        raise NotPermittedError(
            "this user may not try which sampler works: run it as root, or name one with --sampler"
        )
    raise MissingError("no sampler works here: 'hmd doctor' shows what each of them lacks")


def _show(plan: InstallChanges) -> None:
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
    from hmd.daemon.install import COMPILE

    compiles = words[: len(COMPILE)] == COMPILE
    try:
        # How far the compiler is, which takes a minute, is shown.
        done = subprocess.run(words, capture_output=not compiles, text=True, check=False)
    except OSError as error:
        raise os_error(error, f"cannot run {words[0]}: {error.strerror}: install systemd") from None
    if done.returncode and compiles:
        print("hmd: the service compiles its kernels itself, once it starts", file=sys.stderr)
    elif done.returncode:
        said = (done.stderr.strip() or "it said nothing").splitlines()[-1]
        raise HmdError(f"'{' '.join(words)}' failed: {said}; see 'journalctl -u hmd'")
