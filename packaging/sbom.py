# SPDX-License-Identifier: MIT
"""Write what a package of hmd contains and needs, as a CycloneDX 1.6 document.

``python packaging/sbom.py OUTPUT [--deb DEB] [EXTRA...]``: the Python libraries are those of
setup/requirements.lock that hmd and these extras run with, by version and the digests of their
files; a .deb also names the Debian packages that it depends on. Needs no network. With
SOURCE_DATE_EPOCH set, equal sources give equal bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
import tomllib
import uuid
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any

import runtime_requirements

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "setup/requirements.lock"

_VERSION = re.compile(r"^\S+?==(\S+)", re.MULTILINE)
_DIGEST = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_DEPENDS = re.compile(r"([a-z0-9][a-z0-9+.-]+)(?::any)?(?: \(([^)]+)\))?")


def libraries(extras: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the component of each Python library."""
    for name, block in runtime_requirements.blocks(runtime_requirements.main(LOCK, extras)).items():
        version = _VERSION.search(block)
        if version is None:
            sys.exit(f"{LOCK}: {name} has no version")
        purl = f"pkg:pypi/{name}@{version[1]}"
        digests = [{"alg": "SHA-256", "content": each} for each in _DIGEST.findall(block)]
        yield {
            "type": "library",
            "bom-ref": purl,
            "name": name,
            "version": version[1],
            "purl": purl,
            # Of all files of this version: an installation has one of them.
            "externalReferences": [
                {"type": "distribution", "url": f"https://pypi.org/project/{name}/{version[1]}/",
                 "hashes": digests}
            ],
            **_license(name),
        }  # fmt: skip


def _license(name: str) -> dict[str, Any]:
    """Return the licence that an installed package states; nothing where it states none."""
    try:
        said = metadata(name)
    except PackageNotFoundError:
        return {}
    if "License-Expression" in said:
        return {"licenses": [{"expression": said["License-Expression"]}]}
    found = [each.rpartition(" :: ")[2] for each in said.get_all("Classifier") or ()
             if each.startswith("License :: OSI")]  # fmt: skip
    return {"licenses": [{"license": {"name": each}} for each in found]} if found else {}


def debian_packages(depends: str) -> Iterator[dict[str, Any]]:
    """Yield the component of each package in a field Depends, with its bound as a property."""
    bounds: dict[str, list[str]] = {}
    for part in depends.split(","):
        if found := _DEPENDS.match(part.strip()):
            bounds.setdefault(found[1], []).extend(filter(None, [found[2]]))
    for name, limits in bounds.items():
        purl = f"pkg:deb/debian/{name}"
        listed = [{"name": "debian:depends", "value": each} for each in limits]
        yield {"type": "library", "bom-ref": purl, "name": name, "purl": purl,
               **({"properties": listed} if listed else {})}  # fmt: skip


def document(deb: Path | None, extras: Sequence[str]) -> dict[str, Any]:
    """Return the whole document; with a .deb, of that package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    components = list(libraries(extras))
    own = f"pkg:pypi/{project['name']}@{project['version']}"
    if deb is not None:
        words = ["dpkg-deb", "--show", "--showformat", "${Architecture} ${Depends}", str(deb)]
        said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
        machine, _, depends = said.partition(" ")
        components += debian_packages(depends)
        own = f"pkg:deb/debian/hmd@{project['version']}?arch={machine}"
    made_s = int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))
    about = {"type": "application", "bom-ref": own, "name": "hmd", "version": project["version"],
             "purl": own, "licenses": [{"expression": project["license"]}]}  # fmt: skip
    content = {
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(made_s)),
            "component": about,
        },
        "components": components,
        "dependencies": [{"ref": own, "dependsOn": [each["bom-ref"] for each in components]}],
    }
    number = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(content))
    return {"bomFormat": "CycloneDX", "specVersion": "1.6", "serialNumber": f"urn:uuid:{number}",
            "version": 1, **content}  # fmt: skip


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--deb", type=Path)
    parser.add_argument("extras", nargs="*")
    asked = parser.parse_intermixed_args()
    asked.output.write_text(json.dumps(document(asked.deb, asked.extras), indent=1) + "\n")
