# SPDX-License-Identifier: MIT
"""The PEP 517 backend that pyproject.toml names: the checkout's cffi_build.py.

Build frontends search the backend's folder first for every import. In the root of the checkout
they would find the folder ``packaging`` instead of the library of that name.
"""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

_spec = spec_from_file_location("cffi_build", Path(__file__).parents[1] / "cffi_build.py")
assert _spec is not None
assert _spec.loader is not None
_backend = module_from_spec(_spec)
sys.modules[_spec.name] = _backend  # dataclasses look their module up
_spec.loader.exec_module(_backend)

build_editable = _backend.build_editable
build_sdist = _backend.build_sdist
build_wheel = _backend.build_wheel
get_requires_for_build_editable = _backend.get_requires_for_build_editable
get_requires_for_build_sdist = _backend.get_requires_for_build_sdist
get_requires_for_build_wheel = _backend.get_requires_for_build_wheel
prepare_metadata_for_build_editable = _backend.prepare_metadata_for_build_editable
prepare_metadata_for_build_wheel = _backend.prepare_metadata_for_build_wheel
