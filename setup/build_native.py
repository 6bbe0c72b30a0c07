# SPDX-License-Identifier: MIT
"""Build the changed native modules in place: ``python setup/build_native.py``.

The extension modules are those of pyproject.toml. A call without a change takes a fraction of a
second.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Write the C of each module and compile those that are newer than their object."""
    os.chdir(ROOT)
    # setuptools must not find the folder of this script as the module ``setup``.
    sys.path[0] = str(ROOT)
    from setuptools import Distribution

    import cffi_build

    cffi_build.write_sources()
    distribution = Distribution({"script_name": "build_native.py"})
    distribution.parse_config_files()
    build = distribution.get_command_obj("build_ext")
    build.inplace = True
    build.build_temp = "build/native"
    build.ensure_finalized()
    build.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
