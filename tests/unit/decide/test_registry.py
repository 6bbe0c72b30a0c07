"""The registry of policies by name."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from hmd.decide import registry
from hmd.decide.policies.histogram import Histogram, HistogramSettings
from hmd.decide.tunables import knobs_of
from hmd.errors import ConfigError


def test_registry_makes_policies_by_name_with_defaults() -> None:
    assert {"histogram", "none"} <= set(registry.names())
    for name in registry.names():
        assert registry.make(name).name == name
    assert registry.DEFAULT in registry.names()


def test_registry_make_passes_settings_to_policy() -> None:
    policy = registry.make("histogram", {"hysteresis": 3, "headroom_bytes": 8 << 20})
    assert isinstance(policy, Histogram)
    assert policy.settings == HistogramSettings(hysteresis=3.0, headroom_bytes=8 << 20)


@pytest.mark.parametrize(
    ("name", "settings", "line"),
    [
        ("lru", {}, "no policy 'lru': choose one of .*histogram"),
        ("histogram", {"hystersis": 2}, "no setting 'hystersis': it has confidence, headroom"),
        ("none", {"hysteresis": 2}, "no setting 'hysteresis': it has none"),
        ("histogram", {"hysteresis": 0.5}, "hysteresis must be a number of at least 1"),
        ("histogram", {"worth_fraction": 2}, "a number of at least 0 and at most 1, not 2"),
        ("histogram", {"confidence": None}, "confidence must be a number"),
        ("histogram", {"hysteresis": "much"}, "hysteresis must be a number"),
        ("histogram", {"hysteresis": True}, "hysteresis must be a number"),
        ("histogram", {"confidence": -1}, "confidence must be a number of at least 0"),
        ("histogram", {"confidence": float("nan")}, "confidence must be a number"),
        ("histogram", {"headroom_bytes": 1.5}, "headroom_bytes must be a whole number"),
    ],
)
def test_registry_make_invalid_settings_refused_in_one_line(
    name: str, settings: dict[str, object], line: str
) -> None:
    with pytest.raises(ConfigError, match=line) as error:
        registry.make(name, settings)
    assert "\n" not in str(error.value)


def test_registry_settings_type_by_policy_name() -> None:
    assert registry.settings_type("histogram") is HistogramSettings
    with pytest.raises(ConfigError):
        registry.settings_type("lru")


@pytest.mark.parametrize("name", registry.names())
def test_registry_every_setting_documented_default_valid(name: str) -> None:
    about = registry.about(name)
    assert about.does.endswith(".")
    assert about.use.endswith(".")
    assert about.make(about.settings()).name == name
    for knob in about.knobs:
        assert knob.effect.endswith(".")
        assert knob.wrong(knob.default) is None
    assert len({knob.key for knob in about.knobs}) == len(about.knobs)


def test_registry_undocumented_setting_refused() -> None:
    @dataclass
    class Bare:
        size: int = 3

    with pytest.raises(TypeError, match=r"Bare\.size is not documented"):
        knobs_of(Bare)


def test_registry_kernel_modules_complete() -> None:
    registry.warm()
    room = Path(registry.__file__).parent
    files = [file for file in room.rglob("*.py") if "\n@kernel\n" in file.read_text()]
    names = {".".join(file.relative_to(room).with_suffix("").parts) for file in files}
    assert {f"hmd.decide.{name}" for name in names} == set(registry.kernel_modules())


def test_registry_warm_loads_the_kernels_of_the_chosen_policy_alone() -> None:
    script = (
        "from hmd.decide import registry; from hmd.heat import kernels\n"
        "registry.warm(policies=('none',))\n"
        "print(*kernels.unloaded(registry.kernel_modules()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    left = set(done.stdout.split())
    # What a guard falls back to is there.
    default = set(registry.kernel_modules((registry.DEFAULT,)))
    assert not left & default
    alone = set(registry.about("learned").kernels) - default
    assert alone and alone <= left


def test_config_load_does_not_import_numba() -> None:
    script = "import sys; from hmd.config import loads; loads(''); print('numba' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


NEW_POLICY = '''
"""Demotes pages that are colder than a threshold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hmd.decide.node_arrays import nodes_of
from hmd.decide.tunables import About, headroom_bytes, headroom_fraction, knob
from hmd.decide.planning.wanted import Wanted


@dataclass(frozen=True, slots=True)
class ColdSettings:
    headroom_fraction: float = headroom_fraction()
    headroom_bytes: int = headroom_bytes()
    coldest: float = knob(3.0, "Accesses per second below which a page is demoted.")


class Cold:
    name = "cold"

    def __init__(self, settings):
        self.settings = settings

    def plan(self, pages, machine):
        from hmd.decide.planning.plan_builder import build_plan

        nodes = nodes_of(machine, self.settings.headroom_fraction, self.settings.headroom_bytes)
        cold = pages.movable & (pages.rate < self.settings.coldest) & (pages.tier == 0)
        tier = np.where(cold, 1, -1).astype(np.int8)
        key = np.zeros(len(pages), np.float32)
        return build_plan(pages, nodes, Wanted(tier, key, must=cold), machine.budget_bytes)


ABOUT = About("cold", "Demotes cold pages.", "Tests.", ColdSettings, Cold)
'''

USE_NEW_POLICY = """
import sys
import hmd.decide.policies
hmd.decide.policies.__path__.append(sys.argv[1])
from hmd.config import loads
config = loads("decide:\\n  policy: cold\\n  cold: {coldest: 5}\\n")
print(config.decide.policy_settings()["coldest"], "numba" in sys.modules)
from hmd.config.policy_sections import decide_example
print("below which a page is demoted" in decide_example())
import numpy as np
from hmd.decide import registry
from hmd.decide.plan import MachineView
from hmd.heat.heat_table import HeatTable
from hmd.machine.process_id import ProcessId
from hmd.machine.nodes.topology import Node, NodeMemory, Topology
policy = registry.make("cold", config.decide.policy_settings())
table = HeatTable()
table.track([ProcessId(1, 1)])
table.place(0, np.zeros(1, np.uint64), np.zeros((1, 512), np.int8))
topology = Topology((Node(0, (0,), 1 << 30, (10, 20), 0), Node(1, (), 1 << 30, (20, 10), 1)))
memory = (NodeMemory(0, 1 << 30, 1 << 29), NodeMemory(1, 1 << 30, 1 << 29))
plan = policy.plan(table.view(topology), MachineView(topology, memory, 0.0, 1.0, 1 << 40))
print(len(plan), set(plan.to_node.tolist()))
"""


def test_registry_policy_added_by_one_file(tmp_path: Path) -> None:
    (tmp_path / "cold.py").write_text(NEW_POLICY)
    done = subprocess.run(
        [sys.executable, "-c", USE_NEW_POLICY, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "5.0 False\nTrue\n512 {1}\n"


def test_decide_modules_independent_of_heat_storage() -> None:
    room = Path(registry.__file__).parent
    files = [*room.rglob("*.py")]
    assert len(files) > 40
    for file in files:
        text = file.read_text()
        for word in ("chunks", "ABSENT", "FIXED", "CHUNK_", "HeatTable", "ChunkColumns"):
            assert word not in text, f"{file.name} uses {word}"
