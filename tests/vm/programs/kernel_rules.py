# SPDX-License-Identifier: MIT
"""Memory that the kernel or its user has bound, merged, registered or swapped out, and its moves.

    python -m tests.vm.programs.kernel_rules MODULE...

Runs in the guest, as root, with two nodes; loads the modules (loop). Prints a line of JSON per
scenario. tests/vm/dram_pm/test_kernel_rules.py checks them.
"""

from __future__ import annotations

import json
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

from hmd.linux.checks import competing_findings
from tests.vm.programs.move_scenarios.policies import (
    bound,
    compressed,
    cpuset_v1,
    merged,
    userfault,
)


def main() -> None:
    for module in sys.argv[1:]:
        subprocess.run(["busybox", "insmod", module], check=True)
    for function in (bound, merged, userfault, compressed, cpuset_v1):
        try:
            answer: dict[str, Any] = {"found": function()}
        except Exception:
            answer = {"failed": traceback.format_exc()}
        print(json.dumps({"name": function.__name__, **answer}), flush=True)
    words = ["numactl", "--membind=1", "sleep", "600"]
    with subprocess.Popen(words) as program:
        while Path(f"/proc/{program.pid}/comm").read_text() != "sleep\n":
            pass
        found = {f.name: f.state for f in competing_findings()}
        program.kill()
    print(json.dumps({"name": "doctor", "found": {"pid": program.pid, **found}}), flush=True)


if __name__ == "__main__":
    main()
