# SPDX-License-Identifier: MIT
"""``hmd doctor``: check what hmd needs of this machine, and show what to change."""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from hmd.base.errors import Diagnostic, Exit, Severity, UnavailableError
from hmd.cli.output import console, print_json, print_table
from hmd.sample.sampler import CAPABILITIES, SampleSettings

DESCRIPTION = (
    "Check sampling, privileges, memory tiers, kernel features, and other systems that move pages."
)

EXAMPLES = """\
examples:
  hmd doctor          what works, what does not, and the command that changes it
  hmd doctor --json   the same for programs; exit code 4 if something needed is missing
  hmd doctor --report machine.tar.gz   also a file to attach to a report of an error

The file has the findings, and the files of /proc and /sys that they follow from: CPU model, nodes,
PMUs, features. It has no names of hosts, users or programs, no serial numbers, no addresses.

levels:
  ok    works         warn  hmd works, with less effect      fail  hmd cannot work
"""

OPTIONS = """\
--json         print JSON
--report FILE  write the findings and what they follow from into a tar file, without personal data
--proc DIR = /proc   (hidden)
--sysfs DIR = /sys   (hidden)
"""


def run(args: argparse.Namespace) -> int:
    """Print all diagnostics; ``Exit.MISSING`` where one of them is a failure."""
    found = examine(args.proc, args.sysfs)
    failed = any(finding.level == Severity.FAIL for _, finding in found)
    findings = [{"section": section, **asdict(finding)} for section, finding in found]
    document = {"works": not failed, "findings": findings}
    if args.report is not None:
        _write_report(args.report, document, args.proc, args.sysfs)
    if args.json:
        print_json(document)
    else:
        _print(found, failed)
        if args.report is not None:
            print(f"Wrote the report to {args.report}: attach it to an issue.")
    return Exit.MISSING if failed else Exit.OK


def _write_report(path: Path, document: Mapping[str, object], proc: Path, sysfs: Path) -> None:
    from hmd import __version__
    from hmd.linux.machine_report import collect_files, write_report

    about = {"hmd": __version__, "machine": platform.machine(), **document}
    report = {"report.json": json.dumps(about, indent=1) + "\n"}
    write_report(path, report | collect_files(proc, sysfs))


def examine(proc: Path, sysfs: Path) -> list[tuple[str, Diagnostic]]:
    """Return the diagnostics, each with its section."""
    from hmd.linux import checks
    from hmd.linux.swap import far_memory_findings

    sections = {
        "memory": [_unless_missing("memory tiers", lambda: checks.topology_finding(sysfs))],
        "sampling": [_unless_missing("sampler", lambda: _sampler(proc, sysfs))],
        "privileges": checks.privilege_findings(checks.read_privileges(proc)),
        "kernel": checks.feature_findings(proc, sysfs),
        "far memory": far_memory_findings(proc, sysfs),
        "competing": checks.competing_findings(proc, sysfs),
    }
    return [(section, finding) for section, found in sections.items() for finding in found]


def _unless_missing(name: str, find: Callable[[], Diagnostic]) -> Diagnostic:
    try:
        return find()
    except UnavailableError as error:
        return Diagnostic(name, Severity.FAIL, str(error))


def _sampler(proc: Path, sysfs: Path) -> Diagnostic:
    """Open each sampler that the daemon could use, and close it again."""
    from hmd.sample.selection import list_availability

    name = "sampler"
    samplers = list_availability(SampleSettings(), proc, sysfs)
    best = next((s for s in samplers if s.works), None)
    if best is None:
        return Diagnostic(name, Severity.FAIL, "none works", "; ".join(s.detail for s in samplers))
    # Its absence is not worth a line: most machines are not emulated ones.
    before = samplers[: samplers.index(best)]
    better = [s for s in before if not CAPABILITIES[s.name].modelled_clock]
    refused = [f"not {s.name}: {s.detail}" for s in better]
    state = f"{best.name}: {best.detail}"
    if CAPABILITIES[best.name].counts_accesses:
        return Diagnostic(name, Severity.OK, state)
    if CAPABILITIES[best.name].ranks_heat:
        return Diagnostic(name, Severity.OK, state, "; ".join(refused))
    return Diagnostic(
        name,
        Severity.WARN,
        state,
        f"page faults show first touches, not which pages stay hot; {'; '.join(refused)}",
        "sample on a machine with a PMU or with DAMON (CONFIG_DAMON_VADDR), or try `hmd emulate`",
    )


def _print(found: Sequence[tuple[str, Diagnostic]], failed: bool) -> None:
    from rich.text import Text

    styles = {Severity.OK: "green", Severity.WARN: "yellow", Severity.FAIL: "bold red"}
    rows = [
        (Text(f.level, style=styles[f.level]), section, f.name, f.state) for section, f in found
    ]
    print_table(("level", "section", "finding", "state"), rows)
    out = console()
    for section, finding in found:
        if finding.level == Severity.OK and not (section == "sampling" and finding.why):
            continue
        level = (f"{finding.level} ", styles[finding.level])
        out.print(Text.assemble(level, f"{finding.name}: {finding.why or finding.state}"))
        if finding.action:
            out.print(Text(f"     {finding.action}", style="bold"))
    out.print("hmd cannot work here yet." if failed else "hmd can work here.")
