# SPDX-License-Identifier: MIT
"""The page hmd.yaml(5): every setting of the configuration, from its schema."""

from __future__ import annotations

from config_reference import SettingRow, Topic, topics
from roff import Page, bold, italic, text

SUMMARY = "configuration of the heterogeneous memory daemon"

DESCRIPTION = """\
The configuration is one YAML file, usually /etc/hmd/hmd.yaml. Every setting is optional.

The files *.yaml in /run/hmd.d, where batch systems add targets, and then those in
/etc/hmd/hmd.d are merged into it in the order of their names: mappings merge, lists grow, values
replace.

Sizes, rates and durations need a unit (512MiB, 1GiB/s, 500ms). Shares are per cent (10%). Switches
are true or false. Unknown keys, duplicate keys and values outside their limits are errors:
'hmd config check FILE' prints each with its line.
"""

EXAMPLE = """\
targets:
  - name: redis
    exe: redis-server
    fast_min: 2GiB
  - name: analytics
    unit: analytics.service
    priority: 2.0
sample:
  cpu_quota: 2%
"""


def page(date: str, version: str) -> str:
    """Return the source of the page."""
    made = Page("hmd.yaml", 5, SUMMARY, date, version)
    made.heading("Description")
    made.prose(DESCRIPTION)
    for topic in topics():
        _topic(made, topic)
    made.heading("Example")
    made.verbatim(EXAMPLE.splitlines())
    made.heading("Files")
    made.entry(italic("/etc/hmd/hmd.yaml"), text("The daemon's configuration."))
    made.entry(italic("/etc/hmd/hmd.d/*.yaml"), text("Drop-ins, merged into it."))
    made.entry(italic("/run/hmd.d/*.yaml"), text("Targets of batch systems, until reboot."))
    made.heading("See also")
    made.paragraph("hmd(8), hmd-config(1), hmd-policy(1)")
    return made.source()


def _topic(made: Page, topic: Topic) -> None:
    made.heading(f"Section {topic.path}" if topic.path else "Settings at the top")
    if topic.path:
        made.paragraph(text(topic.effect))
    for setting in topic.settings:
        made.entry(bold(f"{setting.key}:"), text(setting.effect), text(facts(setting)))


def facts(setting: SettingRow) -> str:
    """Return what a setting takes, in one line."""
    parts = [setting.kind[:1].upper() + setting.kind[1:], setting.limits]
    taken = "; ".join(filter(None, parts))
    return f"{taken}. Default: {setting.default}" if setting.default else f"{taken}."
