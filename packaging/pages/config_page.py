"""The page hmd.yaml(5): every setting of the configuration, from its schema."""

from __future__ import annotations

from roff import Page, bold, italic, text

from hmd.config.config_reference import SettingRow, Topic, topics

SUMMARY = "configuration of the heterogeneous memory daemon"

DESCRIPTION = """\
A YAML file, usually /etc/hmd/hmd.yaml. The files *.yaml of the folder of the same name with the
suffix .d (/etc/hmd/hmd.d) are laid over it in the order of their names. Every setting may be left
out.

Sizes need a unit (512MiB, 10GiB), rates too (1GiB/s), durations too (500ms, 2s, 1min), shares are
per cent (10%). Switches are true or false. A key that is unknown or given twice is refused, and
so is a value out of its limits: 'hmd config check FILE' names every mistake with its line.
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
    made.entry(italic("/etc/hmd/hmd.d/*.yaml"), text("Laid over it."))
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
