# SPDX-License-Identifier: MIT
"""``python -m hmd.torch --gpu 12GiB train.py``: runs a training script within device memory."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path

from hmd.base.errors import Exit, HmdError, UsageError

DESCRIPTION = """\
Run a PyTorch training script unchanged, with the tensors that wait for its backward pass planned
into so much device memory: the first two steps are run with all of them on the host, then the plan
is made and printed, and carried out from then on. Losses and gradients stay the same.
"""

EXAMPLES = """\
examples:
  python -m hmd.torch --gpu 12GiB train.py --epochs 3       what waits lies in host memory
  python -m hmd.torch --gpu 12GiB --flash /nvme train.py    and in files, where that ends

Exit code 1 where memory does not suffice, 2 for wrong usage, 4 without PyTorch; else SCRIPT's.
"""


def main(words: list[str] | None = None) -> int:
    """Run the script; return the exit code."""
    parser = argparse.ArgumentParser(
        "python -m hmd.torch",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--gpu", required=True, metavar="SIZE", help="device memory, as in 12GiB")
    parser.add_argument("--host", metavar="SIZE", help="host memory (default half of what is free)")
    parser.add_argument("--flash", type=Path, metavar="FOLDER", help="files for what has no room")
    parser.add_argument("script", type=Path, metavar="SCRIPT")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="ARGUMENTS")
    args = parser.parse_args(words)
    try:
        _run(args)
    except HmdError as error:
        sys.stderr.write(f"hmd.torch: {error}\n")
        return error.exit_code
    return Exit.OK


def _run(args: argparse.Namespace) -> None:
    import psutil

    from hmd.torch import fit

    if not args.script.is_file():
        raise UsageError(f"no script {args.script}")
    host = args.host or int(psutil.virtual_memory().available) // 2
    sys.argv = [str(args.script), *args.words]
    sys.path.insert(0, str(args.script.resolve().parent))
    with fit(None, None, args.gpu, host, flash=args.flash):
        runpy.run_path(str(args.script), run_name="__main__")


if __name__ == "__main__":
    sys.exit(main())
