# SPDX-License-Identifier: MIT
"""The registry of policies by name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hmd.base.errors import ConfigError
from hmd.policy import registry
from hmd.policy.builtin.histogram import Histogram, HistogramSettings
from hmd.policy.settings import PolicySettings, settings_of


def test_create_makes_policies_by_name_with_defaults() -> None:
    assert {"histogram", "none"} <= set(registry.names())
    for name in registry.names():
        assert registry.create(name).name == name
    assert registry.DEFAULT in registry.names()


def test_create_passes_settings_to_policy() -> None:
    policy = registry.create("histogram", {"hysteresis": 3, "headroom_min": 8 << 20})
    assert isinstance(policy, Histogram)
    assert policy.settings == HistogramSettings(hysteresis=3.0, headroom_min=8 << 20)


@pytest.mark.parametrize(
    ("name", "settings", "line"),
    [
        ("lru", {}, "no policy 'lru': choose one of .*histogram"),
        ("histogram", {"hystersis": 2}, "no setting 'hystersis': there are confidence, headroom"),
        ("none", {"hysteresis": 2}, "no setting 'hysteresis': there are none"),
        ("histogram", {"hysteresis": 0.5}, "hysteresis: expected at least 1, not 0.5"),
        ("histogram", {"worth": 2}, "worth: expected at most 1, not 2"),
        ("histogram", {"confidence": None}, "confidence: expected a number"),
        ("histogram", {"hysteresis": "much"}, "hysteresis: expected a number"),
        ("histogram", {"hysteresis": True}, "hysteresis: expected a number"),
        ("histogram", {"confidence": -1}, "confidence: expected at least 0, not -1"),
        ("histogram", {"confidence": float("nan")}, "confidence: expected"),
        ("histogram", {"headroom_min": 1.5}, "headroom_min: expected a whole number"),
        ("histogram", {"headroom": "3"}, "headroom: write a share of 0% to 100%, as in 10%"),
    ],
)
def test_create_invalid_settings_refused_in_one_line(
    name: str, settings: dict[str, object], line: str
) -> None:
    with pytest.raises(ConfigError, match=line) as error:
        registry.create(name, settings)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", registry.names())
def test_every_setting_documented_and_read_back(name: str) -> None:
    policy = registry.info(name)
    assert policy.summary.endswith(".")
    assert policy.suits.endswith(".")
    assert policy.create(policy.settings_type()).name == name
    for setting in policy.settings:
        assert setting.description.endswith(".")
        assert setting.parse(setting.format(setting.default)) == setting.default


def test_setting_without_description_refused() -> None:
    class Bare(PolicySettings):
        size: int = 3

    with pytest.raises(TypeError, match=r"Bare\.size has no description"):
        settings_of(Bare)


def test_registry_kernel_modules_complete() -> None:
    registry.warm()
    room = Path(registry.__file__).parent
    files = [file for file in room.rglob("*.py") if "\n@kernel\n" in file.read_text()]
    names = {".".join(file.relative_to(room).with_suffix("").parts) for file in files}
    assert {f"hmd.policy.{name}" for name in names} == set(registry.kernel_modules())


def test_registry_warm_loads_the_kernels_of_the_chosen_policy_alone() -> None:
    script = (
        "from hmd.policy import registry; from hmd.base import numba_kernels\n"
        "registry.warm(policies=('none',))\n"
        "print(*numba_kernels.pending())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    others = set(registry.kernel_modules()) - set(registry.kernel_modules(("none",)))
    assert set(done.stdout.split()) == others


def test_config_load_does_not_import_numba() -> None:
    script = "import sys; from hmd.config import loads; loads(''); print('numba' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


NEW_POLICY = '''
"""Demotes pages that are colder than a threshold."""

from typing import Annotated

import numpy as np
from pydantic import Field

from hmd.policy.nodes import nodes_of
from hmd.policy.plan import TierRequest
from hmd.policy.settings import HeadroomSettings, PolicyInfo, Search


class ColdSettings(HeadroomSettings):
    coldest: Annotated[
        float,
        Field(ge=0, description="Accesses per second below which a page is demoted."),
        Search(1, 100, log=True),
    ] = 3.0


class Cold:
    name = "cold"

    def __init__(self, settings):
        self.settings = settings

    def plan(self, pages, machine):
        from hmd.policy.planning import build_plan

        nodes = nodes_of(machine, self.settings.headroom, self.settings.headroom_min)
        cold = pages.movable & (pages.rate < self.settings.coldest) & (pages.tier == 0)
        tier = np.where(cold, 1, -1).astype(np.int8)
        key = np.zeros(len(pages), np.float32)
        return build_plan(pages, nodes, TierRequest(tier, key, must=cold), machine.budget_bytes)


POLICY = PolicyInfo("cold", "Demotes cold pages.", "Tests.", ColdSettings, Cold)
'''

USE_NEW_POLICY = """
import sys
from hmd.config import loads
config = loads("decide:\\n  policy: cold\\n  cold: {coldest: 5}\\n")
print(config.decide.policy_settings().coldest, "numba" in sys.modules)
from hmd.config.decide import example
print("below which a page is demoted" in example("cold"))
import numpy as np
from hmd.policy import registry
from hmd.policy.plan import MachineView
from hmd.heat.table import HeatTable
from hmd.linux.procfs import ProcessId
from hmd.linux.topology import Node, NodeMemory, Topology
policy = registry.create("cold", config.decide.policy_settings())
table = HeatTable()
table.track_processes([ProcessId(1, 1)])
table.record_nodes(0, np.zeros(1, np.uint64), np.zeros((1, 512), np.int8))
topology = Topology((Node(0, (0,), 1 << 30, (10, 20), 0), Node(1, (), 1 << 30, (20, 10), 1)))
memory = (NodeMemory(0, 1 << 30, 1 << 29), NodeMemory(1, 1 << 30, 1 << 29))
plan = policy.plan(table.view(topology), MachineView(topology, memory, 0.0, 1.0, 1 << 40))
print(len(plan), set(plan.to_node.tolist()))
"""
FOUND = "5.0 False\nTrue\n512 {1}\n"


def run_python(script: str, *words: str, path: Path) -> subprocess.CompletedProcess[str]:
    folders = os.pathsep.join([str(path), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", script, *words],
        env={**os.environ, "PYTHONPATH": folders},
        capture_output=True,
        text=True,
        check=True,
    )


def install(folder: Path, name: str, source: str) -> None:
    """Write what pip would: a package with a policy, and its metadata with the entry point."""
    (folder / name).mkdir()
    (folder / name / "__init__.py").write_text(source)
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[hmd.policies]\n{name} = {name}:POLICY\n")


def test_policy_added_by_one_file_in_the_folder(tmp_path: Path) -> None:
    (tmp_path / "cold.py").write_text(NEW_POLICY)
    extended = "import sys, hmd.policy.builtin as b; b.__path__.append(sys.argv[1])\n"
    done = run_python(extended + USE_NEW_POLICY, str(tmp_path), path=tmp_path / "none")
    assert done.stdout == FOUND


def test_policy_of_an_installed_package_found(tmp_path: Path) -> None:
    install(tmp_path, "my_cold", NEW_POLICY)
    done = run_python(USE_NEW_POLICY, path=tmp_path)
    assert (done.stdout, done.stderr) == (FOUND, "")
    shown = "from hmd.cli.main import main; main(['policy', 'show', 'cold'])"
    assert "1 to 100" in run_python(shown, path=tmp_path).stdout


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("POLICY = 5", "TypeError: broken:POLICY is no PolicyInfo"),
        (NEW_POLICY.replace('"cold"', '"benefit"'), "ValueError: there is already a policy"),
        (NEW_POLICY.replace("= 3.0", "= 3.0\n    bare: int = 1"), "ColdSettings.bare has no"),
    ],
)
def test_broken_policy_of_a_package_is_one_line_and_left_out(
    source: str, reason: str, tmp_path: Path
) -> None:
    install(tmp_path, "broken", source)
    script = "from hmd.config import loads; print(loads('').decide.policy)"
    done = run_python(script, path=tmp_path)
    assert done.stdout == "benefit\n"
    (line,) = done.stderr.splitlines()
    assert line.startswith("policy broken of package broken is left out: ")
    assert reason in line


def test_policies_independent_of_heat_storage() -> None:
    room = Path(registry.__file__).parent
    files = [file for file in room.rglob("*.py") if file.name != "admin.py"]
    assert len(files) > 15
    for file in files:
        text = file.read_text()
        for word in ("chunks", "ABSENT", "FIXED", "CHUNK_", "HeatTable", "ChunkColumns"):
            assert word not in text, f"{file.name} uses {word}"
