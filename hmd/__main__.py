# SPDX-License-Identifier: MIT
"""``python -m hmd`` and the command ``hmd``."""

import signal
import sys


def main() -> int:
    """Run the command line; Ctrl-C ends it without a traceback also while modules load."""
    handled = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else ignored
    if handled:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from hmd.cli.main import main as run

    if handled:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return run()


if __name__ == "__main__":
    sys.exit(main())
