# SPDX-License-Identifier: MIT
"""``python -m hmd`` is the ``hmd`` command."""

import sys

from hmd.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
