# SPDX-License-Identifier: MIT
"""The page hmd(8): the daemon as a service."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from command_pages import options
from parsers import top
from roff import Page, bold, italic, text

SUMMARY = "the heterogeneous memory daemon"

DESCRIPTION = """\
hmd samples which memory pages running programs access, keeps the heat of each page, decides which
pages belong in which memory tier, and migrates them while the programs run. It serves the programs
that the targets of its configuration select; without a target it idles.

hmd.service runs it as the user hmd with a few capabilities, in a sandbox. The daemon notifies the
service manager of readiness and status, and of its watchdog once per tick: a daemon that hangs is
killed and restarted.

'hmd doctor' checks the machine, 'hmd status' and 'hmd top' show what the daemon does, and
http://127.0.0.1:9742/metrics exports it to Prometheus.
"""

STARTING = """\
    hmd doctor
    hmd config check /etc/hmd/hmd.yaml
    systemctl enable --now hmd
    systemctl reload hmd
"""

SIGNALS = (
    ("SIGHUP", "Reload the configuration; on any error the old one stays in effect."),
    ("SIGTERM, SIGINT", "Stop; pages stay where they are."),
)

FILES = (
    ("/etc/hmd/hmd.yaml", "The configuration, hmd.yaml(5)."),
    ("/etc/hmd/hmd.d/*.yaml", "Drop-ins, merged into it in the order of their names."),
    ("/run/hmd.d/*.yaml", "Targets that batch systems add, until reboot."),
    ("/run/hmd/hmd.sock", "The status socket of 'hmd status' and 'hmd top'."),
    ("/var/cache/hmd", "Machine code of kernels that the installation lacks."),
    ("/var/lib/hmd", "What outlives a restart: admin requests, the history of 'hmd report'."),
    ("/var/lib/hmd/profiles", "What is known of programs from former runs: hmd-profile(1)."),
    ("/var/lib/hmd-emulate/kernel", "The kernel of 'hmd emulate', unpacked by root."),
    ("/etc/systemd/system/hmd.service.d", "Drop-ins of the unit, such as those of samplers above."),
)

ENVIRONMENT = (
    ("NUMBA_CACHE_DIR", "Where machine code is kept; hmd.service sets /var/cache/hmd."),
    ("STATE_DIRECTORY", "Folder of what outlives a restart, unless state_dir is set; of systemd."),
    ("NOTIFY_SOCKET, WATCHDOG_USEC", "Set by the service manager, sd_notify(3)."),
)

STATUS = """\
As for all commands of hmd(1). With 2, 3, 4 and 7 (wrong usage, a wrong configuration, a missing
feature, an operation that is not permitted) the service is not restarted, because that would not
help.
"""


def page(date: str, version: str, systemd: Path) -> str:
    """Return the source of the page; ``systemd`` is the folder of the units."""
    run = next(family for family in top().commands() if family.words == ("run",))
    made = Page("hmd", 8, SUMMARY, date, version)
    made.heading("Synopsis")
    made.paragraph(f"{bold('systemctl')} start|stop|reload|status {bold('hmd')}")
    made.paragraph(f"{bold('hmd run')} [options]")
    made.heading("Description")
    made.prose(DESCRIPTION)
    made.heading("Starting it")
    made.verbatim(line.strip() for line in STARTING.splitlines())
    options(made, run)
    _list(made, "Signals", SIGNALS)
    made.heading("Samplers that need more")
    made.paragraph(
        text("These samplers need privileges that hmd.service does not grant. The drop-ins are")
        + f" {italic('share/hmd/systemd/samplers/*.conf')}"
        + text(" below /usr or where hmd is installed.")
    )
    for name, need in samplers(systemd / "samplers"):
        made.entry(bold(name), text(need))
    _list(made, "Files", FILES)
    _list(made, "Environment", ENVIRONMENT)
    made.heading("Exit status")
    made.prose(STATUS)
    made.heading("See also")
    made.paragraph("hmd(1), hmd.yaml(5), systemctl(1), move_pages(2), perf_event_open(2)")
    return made.source()


def samplers(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield each drop-in's sampler and the comment at its head."""
    for path in sorted(folder.glob("*.conf")):
        head = []
        for line in path.read_text().splitlines():
            if not line.startswith("#"):
                break
            head.append(line.removeprefix("#").strip())
        yield path.stem, " ".join(head)


def _list(made: Page, heading: str, entries: tuple[tuple[str, str], ...]) -> None:
    made.heading(heading)
    for term, meaning in entries:
        made.entry(bold(term), text(meaning))
