# SPDX-License-Identifier: MIT
"""``hmd profile``: what is known of programs from their former runs."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from math import ceil
from typing import TYPE_CHECKING, Any, Final

from hmd.base.errors import HmdError, TargetError, UsageError, os_error
from hmd.base.paths import STATE_FOLDER
from hmd.cli.output import format_bytes, format_seconds, format_share, print_json, print_table

if TYPE_CHECKING:
    from hmd.profiles.profile import Profile
    from hmd.profiles.store import ProfileStore

DESCRIPTION = """\
List, show, export, import and forget profiles: what the daemon has learned of programs from their
former runs, where 'learn' is set in its configuration. Needs no running daemon, but the permission
to read the folder: that of root or of the daemon's user.
"""

EXAMPLES = """\
examples:
  hmd profile list                              programs, the last used first
  hmd profile show cg                           which of its memory is hot, and when
  hmd profile export cg cg.profile              for another machine, or to go back to
  hmd profile import cg-0-3f2a90c1b4d5e6f7.profile   the file's name says of which program it is
  hmd profile import cg.profile --key cg-1000-3f2a90c1b4d5e6f7
  hmd profile forget cg                         begin anew, as after a change of the program
  hmd profile list --directory /shared/hmd/profiles

A NAME is that of a program or the beginning of its key, NAME-USER-DIGEST. Exit code 4 if there is
no folder, 5 if there is no such profile, 7 if the folder or a file may not be read.
"""

FOLDER: Final = STATE_FOLDER / "profiles"
DIRECTORY = f"""\
--directory DIR = {FOLDER}
               the folder of the profiles (profiles.directory; default {FOLDER})
"""
NAME = f"NAME  a program, or the beginning of its key\n{DIRECTORY}"
IMPORT = """\
FILE           a profile that was exported
--key KEY      the program's key, instead of the name of FILE
"""
JSON = "--json  print JSON"

_WIDTH: Final = 36
_SHADES: Final = " ·░▒▓█"

ACTIONS = {
    "list": ("list programs with a profile", f"{DIRECTORY}{JSON}"),
    "show": ("show which memory of a program is hot, and when", f"{NAME}{JSON}"),
    "export": ("write a profile to a file", f"{NAME}FILE  the file to write"),
    "import": ("add a profile from a file", f"{IMPORT}{DIRECTORY}"),
    "forget": ("remove a profile", NAME),
}


def _store(args: argparse.Namespace) -> ProfileStore:
    """Return the folder; its owner's files are trusted, as this is for a person who looks at it."""
    from hmd.profiles.store import ProfileStore, unreadable

    try:
        return ProfileStore(args.directory, {args.directory.stat().st_uid})
    except OSError as error:
        raise unreadable(args.directory, error) from None


def _profile(store: ProfileStore, key: str) -> Profile:
    """Return a profile without putting a damaged one aside."""
    from hmd.profiles.profile import Profile

    return Profile.from_bytes(store.read(key) or b"", str(store.path_of(key)))


def run_list(args: argparse.Namespace) -> None:
    """Print what is known of all programs."""
    store = _store(args)
    found: list[dict[str, Any]] = []
    for one in store.entries():
        row = {**asdict(one), "runs": None, "run_s": None, "objects": None, "problem": None}
        try:
            profile = _profile(store, one.key)
            row |= {"runs": profile.runs, "run_s": profile.seconds, "objects": len(profile.objects)}
        except HmdError as error:
            row["problem"] = str(error)
        found.append(row)
    if args.json:
        print_json({"directory": args.directory, "profiles": found})
        return
    numbers = ("user", "runs", "a run takes", "objects", "size")
    rows = []
    for row in found:
        name, uid, _ = row["key"].rsplit("-", 2)
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(row["used_s"]))
        known = ("-", "-", "-")
        if not row["problem"]:
            known = (f"{row['runs']:.1f}", format_seconds(row["run_s"]), row["objects"])
        rows.append((name, row["key"], used, uid, *known, format_bytes(row["size_bytes"])))
    print_table(("program", "key", "last used", *numbers), rows, right=numbers)
    for row in found:
        if row["problem"]:
            print(row["problem"])


def run_show(args: argparse.Namespace) -> None:
    """Print the objects of a profile, and when they are hot."""
    from hmd.profiles.profile import summary

    store = _store(args)
    key = store.resolve(args.name)
    profile = _profile(store, key)
    objects = summary(profile)
    if args.json:
        found = {"key": key, "runs": profile.runs, "run_s": profile.seconds}
        found["saved_s"] = profile.saved_s
        print_json({**found, "objects": [one._asdict() for one in objects]})
        return
    print(
        f"{key}: {profile.runs:.1f} runs, of which older ones count less;"
        f" a run takes {format_seconds(profile.seconds)};"
        f" moves by it saved {profile.saved_s:.3g} s, less what they cost"
    )
    pictures = ("from its first byte to its last", "from the begin of a run to its end")
    rows = [
        (
            f"{one.kind} {one.name}",
            format_bytes(one.size_bytes),
            format_share(one.share),
            _picture(one.by_block.tolist()),
            _picture(one.by_phase.tolist()),
        )
        for one in objects
    ]
    print_table(("memory", "size", "accesses", *pictures), rows, right=("size", "accesses"))


def _picture(values: Sequence[float]) -> str:
    """Return values as at most ``_WIDTH`` shades, the greatest the darkest."""
    width = min(_WIDTH, len(values))
    edges = [len(values) * column // width for column in range(width + 1)]
    means = [sum(values[begin:end]) / (end - begin) for begin, end in pairwise(edges)]
    darkest, most = len(_SHADES) - 1, max(means) or 1.0
    return "".join(_SHADES[ceil(darkest * mean / most)] for mean in means)


def run_export(args: argparse.Namespace) -> None:
    """Write a profile to a file."""
    from hmd.base.atomic_file import finished_file

    store = _store(args)
    key = store.resolve(args.name)
    if (data := store.read(key)) is None:
        raise TargetError(f"the profile of {key} has just been removed")
    with finished_file(args.file, private=True) as file:
        file.write(data)
    print(f"wrote {args.file}: to import it elsewhere, --key {key}")


def run_import(args: argparse.Namespace) -> None:
    """Add a profile from a file."""
    from hmd.profiles.profile import MAX_BYTES, Profile
    from hmd.profiles.programs import KEY

    key = args.key or args.file.name.removesuffix(".profile")
    if not KEY.fullmatch(key):
        raise UsageError(
            f"{key[:80]!r} is no key of a program: name it with --key, as 'hmd profile list' shows"
            " it where the program has run"
        )
    try:
        with args.file.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise os_error(error, f"cannot read {args.file}: {error.strerror}") from None
    profile = Profile.from_bytes(data, str(args.file))
    store = _store(args)
    store.write(key, data)
    print(f"imported {key}: {len(profile.objects)} objects, {profile.runs:.1f} runs")


def run_forget(args: argparse.Namespace) -> None:
    """Remove a profile."""
    store = _store(args)
    key = store.resolve(args.name)
    store.remove(key)
    print(f"forgot {key}")
