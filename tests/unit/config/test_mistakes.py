# SPDX-License-Identifier: MIT
"""Each mistake in a file is one line that names the file, the line and the key."""

import os
from pathlib import Path

import pytest

from hmd.base.errors import ConfigError
from hmd.config import load, loads
from hmd.policy import registry

TARGET = "targets:\n- name: a\n  pid: 1\n"

*_FIRST, _LAST = (repr(name) for name in registry.names())
CHOICES = f"{', '.join(_FIRST)} or {_LAST}"

MISTAKES = {
    "unknown key": (
        "tick: 1s\ntragets: []\n",
        ["f:2: tragets: unknown setting; did you mean 'targets'?"],
    ),
    "key of a section without it": (
        "tiers: [[0], [1]]\n",
        ["f:1: tiers: unknown setting; did you mean 'machine.tiers'?"],
    ),
    "unknown key far from any": ("zebra: 1\n", ["f:1: zebra: unknown setting"]),
    "unprintable unknown key": (
        '"a\\nb": 1\n',
        ["f:1: 'a\\nb': unknown setting"],
    ),
    "unknown key below": (
        "migrate:\n  dryrun: true\n",
        ["f:2: migrate.dryrun: unknown setting; did you mean 'dry_run'?"],
    ),
    "unknown key in a list": (
        TARGET + "  comandline: x\n",
        ["f:4: targets[0].comandline: unknown setting; did you mean 'cmdline'?"],
    ),
    "duplicate key": ("tick: 1s\ntick: 2s\n", ["f:2: 'tick' is already set in line 1"]),
    "duplicate key below": (
        "sample:\n  stores: true\n\n  stores: false\n",
        ["f:4: 'stores' is already set in line 2"],
    ),
    "bare number for a duration": (
        "tick: 1\n",
        ["f:1: tick: write a duration with its unit, as in 500ms or 2s, not 1"],
    ),
    "sexagesimal": (
        "tick: 1:30\n",
        ["f:1: tick: write a duration with its unit, as in 500ms or 2s, not '1:30'"],
    ),
    "no instead of false": (
        "sample:\n  stores: no\n",
        ["f:2: sample.stores: expected true or false, not 'no'"],
    ),
    "yes instead of true": (
        "migrate:\n  dry_run: yes\n",
        ["f:2: migrate.dry_run: expected true or false, not 'yes'"],
    ),
    "octal": (
        "sample:\n  period: 0777\n",
        ["f:2: sample.period: expected a whole number, not '0777'"],
    ),
    "hexadecimal": (
        "sample:\n  period: 0x10\n",
        ["f:2: sample.period: expected a whole number, not '0x10'"],
    ),
    "bare number for a size": (
        TARGET + "  min_rss: 5\n",
        ["f:4: targets[0].min_rss: write a size with its unit, as in 512MiB or 10GiB, not 5"],
    ),
    "a rate without its second": (
        "migrate:\n  rate: 5MiB\n",
        ["f:2: migrate.rate: write a rate with its unit, as in 512MiB/s, not '5MiB'"],
    ),
    "hours of another form": (
        TARGET + "  active: [Mo-Fr 8-18]\n",
        [
            "f:4: targets[0].active[0]: write days and times, as in Mon-Fri 08:00-18:00 or"
            " 22:00-06:00, not 'Mo-Fr 8-18'"
        ],
    ),
    "limits per cgroup without one": (
        TARGET + "  per_cgroup: true\n",
        ["f:4: targets[0].per_cgroup: set cgroup, to the pattern of these cgroups"],
    ),
    "never slow with a maximum": (
        TARGET + "  never_slow: true\n  fast_max: 50%\n",
        ["f:4: targets[0].never_slow: remove its fast_max, which contradicts it"],
    ),
    "a share over 100 %": (
        "sample:\n  cpu_quota: 150%\n",
        ["f:2: sample.cpu_quota: write a share of 0% to 100%, as in 10%, not '150%'"],
    ),
    "a size outside its limits": (
        "heat:\n  detail: 512KiB\n",
        ["f:2: heat.detail: expected at least 1MiB, not '512KiB'"],
    ),
    "a value outside its limits": ("tick: 1ms\n", ["f:1: tick: expected at least 10ms, not '1ms'"]),
    "invalid choice": (
        "sample:\n  sampler: pebs\n",
        [
            "f:2: sample.sampler: expected 'auto', 'pmu', 'spe', 'emulated', 'damon', 'idle' "
            "or 'faults', not 'pebs'"
        ],
    ),
    "a value for a section": (
        "migrate: fast\n",
        ["f:1: migrate: expected settings, as in 'key: value', not 'fast'"],
    ),
    "a value for a list": ("targets: redis\n", ["f:1: targets: expected a list, not 'redis'"]),
    "a number for text": (
        "targets:\n- name: a\n  exe: 5\n",
        ["f:3: targets[0].exe: expected text (quote it), not 5"],
    ),
    "invalid pid": (
        "targets:\n- name: a\n  pid: redis\n",
        ["f:3: targets[0].pid: expected a whole number, not 'redis'"],
    ),
    "a target that selects nothing": (
        "targets:\n- name: a\n",
        ["f:2: targets[0]: selects nothing: set pid, exe, cmdline, user, cgroup or unit"],
    ),
    "a target without a name": ("targets:\n- pid: 1\n", ["f:2: targets[0].name: must be set"]),
    "two targets with one name": (
        TARGET + "- name: a\n  pid: 2\n",
        ["f:4: targets[1].name: 'a' is already the name of targets[0]"],
    ),
    "invalid pattern": (
        "targets:\n- name: a\n  cmdline: '('\n",
        ["f:3: targets[0].cmdline: not a regular expression: unclosed group, not '('"],
    ),
    "a limit that is neither size nor share": (
        TARGET + "  fast_max: 3\n",
        ["f:4: targets[0].fast_max: write a size or a share, as in 2GiB or 25%, not 3"],
    ),
    "invalid pattern of mappings to keep": (
        TARGET + "  keep: [x, '[']\n",
        ["f:4: targets[0].keep[1]: not a regular expression: unclosed character class, not '['"],
    ),
    "a relative socket": (
        "observe:\n  socket: hmd.sock\n",
        ["f:2: observe.socket: write an absolute path, not 'hmd.sock'"],
    ),
    "a node in two tiers": (
        "machine:\n  tiers: [[0], [0, 1]]\n",
        ["f:2: machine.tiers[1][0]: node 0 is named twice"],
    ),
    "a tier without nodes": (
        "machine:\n  tiers:\n  - [0]\n  - []\n",
        ["f:4: machine.tiers[1]: an empty tier; name its nodes, or remove it"],
    ),
    "tick_most below tick": (
        "tick: 10s\ntick_most: 1s\n",
        ["f:2: tick_most: 1s is below the tick of 10s"],
    ),
    "fast_min above fast_max": (
        TARGET + "  fast_min: 60%\n  fast_max: 50%\n",
        ["f:4: targets[0].fast_min: 60% is above the fast_max of 50%"],
    ),
    "fast_min above fast_max, sizes": (
        TARGET + "  fast_max: 1GiB\n  fast_min: 2GiB\n",
        ["f:5: targets[0].fast_min: 2GiB is above the fast_max of 1GiB"],
    ),
    "fast_min sum above the fastest tier": (
        TARGET + "  fast_min: 60%\n- name: b\n  pid: 2\n  fast_min: 60%\n",
        [
            "f:7: targets[1].fast_min: with those above, the targets' fast_min is 120% of the"
            " fastest tier; 100% at most"
        ],
    ),
    "two mistakes, both reported": (
        "tick: soon\nsample:\n  stores: 1\n",
        [
            "f:1: tick: write a duration with its unit, as in 500ms or 2s, not 'soon'",
            "f:3: sample.stores: expected true or false, not 1",
        ],
    ),
    "unknown policy": (
        "decide:\n  policy: lru\n",
        [f"f:2: decide.policy: expected {CHOICES}, not 'lru'"],
    ),
    "misspelt setting of a policy": (
        "decide:\n  histogram:\n    hystersis: 2\n",
        ["f:3: decide.histogram.hystersis: unknown setting; did you mean 'hysteresis'?"],
    ),
    "setting of a policy outside its limits": (
        "decide:\n  histogram:\n    worth: 5%\n    hysteresis: 0.5\n",
        ["f:4: decide.histogram.hysteresis: expected at least 1, not 0.5"],
    ),
    "setting of a policy without its unit": (
        "decide:\n  histogram:\n    headroom: 2\n",
        ["f:3: decide.histogram.headroom: write a share of 0% to 100%, as in 10%, not 2"],
    ),
    "a name that DNS cannot have": (
        "observe:\n  metrics: 'a..b:9742'\n",
        [
            "f:2: observe.metrics: write an address, or a name with parts of 1 to 63 characters,"
            " not 'a..b:9742'"
        ],
    ),
    "a port of too many digits": (
        "observe:\n  metrics: '127.0.0.1:000001'\n",
        [
            "f:2: observe.metrics: write ADDRESS:PORT, as in 127.0.0.1:9742, or off, "
            "not '127.0.0.1:000001'"
        ],
    ),
    "a folder for the socket": (
        "observe:\n  socket: /run/..\n",
        ["f:2: observe.socket: write the path of a file, not '/run/..'"],
    ),
    "targets as a mapping": (
        "targets:\n  db: {exe: redis}\n",
        ["f:1: targets: write a list, each target as in '- {name: db, exe: redis-server}'"],
    ),
    "tiers that are not lists": (
        "machine:\n  tiers: [0, 1]\n",
        [
            "f:2: machine.tiers: write a list of tiers, each a list of nodes, as in [[0], [1]],"
            " not [0, 1]"
        ],
    ),
    "a port alone": (
        "observe:\n  metrics: 9742\n",
        ["f:2: observe.metrics: write ADDRESS:PORT, as in 127.0.0.1:9742, or off, not 9742"],
    ),
    "a socket whose path is too long": (
        f"observe:\n  socket: /run/{'a' * 103}\n",
        [
            "f:2: observe.socket: the path of a socket has at most 107 bytes (unix(7)), not"
            f" '/run/{'a' * 51}..."
        ],
    ),
    "the root folder for the socket": (
        "observe:\n  socket: /\n",
        ["f:2: observe.socket: write the path of a file, not '/'"],
    ),
    "alias": ("a: &x 1\nb: *x\n", ["f:2: alias *x: write the value out instead"]),
    "billion laughs": (
        "a: &a [x,x]\nb: &b [*a,*a]\nc: [*b,*b]\n",
        ["f:2: alias *a: write the value out instead"],
    ),
    "python tag": (
        "tick: !!python/object/apply:os.system ['true']\n",
        ["f:1: tag 'tag:yaml.org,2002:python/object/apply:os.system': hmd's settings need none"],
    ),
    "nested deeply": ("a: " + "[" * 40 + "]" * 40 + "\n", ["f:1: nested deeper than 16 levels"]),
    "second document": (
        "tick: 1s\n---\ntick: 2s\n",
        ["f:2: a second document; hmd reads one per file"],
    ),
    "a list at the top": ("- a\n", ["f:1: expected settings, as in 'tick: 1s'"]),
    "not YAML": (
        "tick: 1s\nsample: [1\n",
        ["f:2: not YAML: what [ or { begins here is not closed, or lacks a comma"],
    ),
    "a list of settings that is not closed": (
        "tick: 1s\ntargets: [{name: db, exe: x\nrescan: 5s\n",
        ["f:2: not YAML: what [ or { begins here is not closed, or lacks a comma"],
    ),
    "a tab": (
        "sample:\n\tstores: true\n",
        ["f:2: not YAML: a tab; indent and separate by spaces"],
    ),
    "a quote that is not closed": (
        'tick: 1s\ntargets:\n- name: "a\n  pid: 1\n\nrescan: 5s\n',
        ["f:3: not YAML: this quote is not closed"],
    ),
    "control character": ("tick: 1s\nsample: \x01\n", ["f:2: not YAML: a control character"]),
    "a mapping for a key": ("? {a: 1}\n: 2\n", ["f:1: a key must be a word"]),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_load_mistake_reported_with_line(case: str) -> None:
    text, expected = MISTAKES[case]
    with pytest.raises(ConfigError) as caught:
        loads(text, "f")
    assert str(caught.value).splitlines() == expected


def test_load_non_utf8_file_refused(tmp_path: Path) -> None:
    path = tmp_path / "hmd.yaml"
    path.write_bytes(b"tick: 1s\n# \xff\n")
    with pytest.raises(ConfigError, match=r"hmd\.yaml:2: not UTF-8 text"):
        load(path)


def test_load_huge_file_refused(tmp_path: Path) -> None:
    path = tmp_path / "hmd.yaml"
    path.write_text("# x\n" * 100_000)
    with pytest.raises(ConfigError, match="larger than 256 KiB: not a configuration of hmd"):
        load(path)


def test_load_too_many_values_refused() -> None:
    with pytest.raises(ConfigError, match="more than 20000 values"):
        loads("a: [" + "1," * 30_000 + "]\n")


def test_load_missing_file_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"hmd\.yaml: cannot be read: No such file or directory"):
        load(tmp_path / "hmd.yaml")


def test_load_mistake_in_drop_in_names_drop_in(tmp_path: Path) -> None:
    (tmp_path / "hmd.yaml").write_text("tick: 1s\nmigrate:\n  dry_run: true\n")
    (tmp_path / "hmd.d").mkdir()
    (tmp_path / "hmd.d/10-rate.yaml").write_text("\nmigrate:\n  rate: fast\n")
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "hmd.yaml")
    assert str(caught.value) == (
        f"{tmp_path}/hmd.d/10-rate.yaml:3: migrate.rate: "
        "write a rate with its unit, as in 512MiB/s, not 'fast'"
    )


def test_load_fifo_without_writer_refused_at_once(tmp_path: Path) -> None:
    fifo = tmp_path / "hmd.yaml"
    os.mkfifo(fifo)
    with pytest.raises(ConfigError, match="is a FIFO, not a file"):
        load(fifo)
