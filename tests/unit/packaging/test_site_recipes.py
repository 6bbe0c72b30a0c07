# SPDX-License-Identifier: MIT
"""The SBOM, the Spack recipe and the Ansible role agree with the project's own metadata."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from hmd.cli.main import build_parser

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCK = (ROOT / "setup/requirements.lock").read_text()
ROLE = ROOT / "packaging/ansible/roles/hmd"


def sbom(folder: Path, *words: object) -> dict[str, Any]:
    output = folder / "sbom.json"
    script = ROOT / "packaging/sbom.py"
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1000000000"}
    command = [sys.executable, str(script), str(output), *map(str, words)]
    subprocess.run(command, check=True, env=environment)
    found: dict[str, Any] = json.loads(output.read_text())
    return found


def test_sbom_lists_the_locked_libraries_and_what_they_need(tmp_path: Path) -> None:
    found = sbom(tmp_path)
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.6")
    assert found["metadata"]["timestamp"] == "2001-09-09T01:46:40Z"
    versions = {each["name"]: each["version"] for each in found["components"]}
    needed = {re.split(r"[>=<]", each)[0] for each in PROJECT["dependencies"]}
    assert needed < versions.keys()
    assert "llvmlite" in versions  # of numba
    assert "pytest" not in versions
    for each in found["components"]:
        assert f"\n{each['name']}=={each['version']} " in f"\n{LOCK}"
        (files,) = each["externalReferences"]
        assert files["hashes"]
        assert all(digest["content"] in LOCK for digest in files["hashes"])
    assert set(found["dependencies"][0]["dependsOn"]) == {c["bom-ref"] for c in found["components"]}
    assert sbom(tmp_path) == found
    with_pictures = {each["name"] for each in sbom(tmp_path, "plot")["components"]}
    assert with_pictures > versions.keys() | {"matplotlib", "pillow"}


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="no dpkg-deb")
def test_sbom_of_a_deb_has_its_debian_dependencies(tmp_path: Path) -> None:
    control = tmp_path / "made/DEBIAN/control"
    control.parent.mkdir(parents=True)
    control.write_text(
        "Package: hmd\nVersion: 0.1.0\nArchitecture: arm64\nMaintainer: n <n@e.example>\n"
        "Depends: libc6 (>= 2.34), python3:any (>= 3.11~), python3 (<< 3.12), procps\n"
        "Description: for a test\n"
    )
    package = tmp_path / "hmd.deb"
    subprocess.run(["dpkg-deb", "--build", control.parents[1], package], check=True)
    found = sbom(tmp_path, "--deb", package, "plot")
    packages = {
        each["name"]: [bound["value"] for bound in each.get("properties", ())]
        for each in found["components"]
        if each["purl"].startswith("pkg:deb/")
    }
    assert packages == {"libc6": [">= 2.34"], "python3": [">= 3.11~", "<< 3.12"], "procps": []}
    assert found["metadata"]["component"]["purl"] == "pkg:deb/debian/hmd@0.1.0?arch=arm64"


def test_spack_recipe_needs_what_the_project_needs() -> None:
    tree = ast.parse((ROOT / "packaging/spack/package.py").read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    asked = {
        str(ast.literal_eval(call.args[0])): [
            ast.literal_eval(word.value) for word in call.keywords if word.arg == "when"
        ]
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id == "depends_on"
    }

    def of(requirements: list[str]) -> set[str]:
        pairs = (each.split(">=") for each in requirements)
        return {f"py-{name}@{version}:" for name, version in pairs}

    assert {name for name, when in asked.items() if name.startswith("py-") and not when} == of(
        PROJECT["dependencies"]
    ) | {"py-setuptools@77:", "py-shtab@1.13:"}
    for extra in ("plot", "parquet", "frames"):
        wanted = of(PROJECT["optional-dependencies"][extra])
        assert {name for name, when in asked.items() if when == [f"+{extra}"]} == wanted
    assert f'version("{PROJECT["version"]}")' in (ROOT / "packaging/spack/package.py").read_text()


def test_ansible_role_gives_commands_that_hmd_has() -> None:
    tasks = yaml.safe_load((ROLE / "tasks/main.yml").read_text())
    defaults = yaml.safe_load((ROLE / "defaults/main.yml").read_text())
    text = (ROLE / "tasks/main.yml").read_text()
    used = set(re.findall(r"\bhmd_[a-z_]+", text)) - {"hmd_service"}
    assert used == defaults.keys()
    commands = [task.get("ansible.builtin.command", "") for task in tasks]
    commands += [task.get("ansible.builtin.copy", {}).get("validate", "") for task in tasks]
    found = [each.split()[3:] for each in commands if each]
    assert found == [["enable", "--dry-run", "--json"], ["enable", "--yes"],
                     ["config", "check", "%s"]]  # fmt: skip
    for words in found:
        build_parser().parse_args(words)
