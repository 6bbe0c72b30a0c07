# SPDX-License-Identifier: MIT
"""Files of tests that go to one worker together."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.worker_groups import GROUPS, group_of

ROOT = Path(__file__).parents[2]


def test_groups_name_files_and_folders_that_exist() -> None:
    assert all((ROOT / path).exists() for path in GROUPS)


def test_file_outside_of_groups_is_its_own_group() -> None:
    assert group_of("tests/system/debian/test_deb.py") == group_of("tests/system/packaging/x.py")
    assert group_of("tests/unit/test_units.py") == "tests/unit/test_units.py"


def test_files_of_a_group_run_in_one_worker(tmp_path: Path) -> None:
    folder = tmp_path / "tests/system"
    workers = tmp_path / "workers"
    for name in ("debian", "packaging", "docs", "trace"):
        (folder / name).mkdir(parents=True)
        (folder / name / f"test_{name}.py").write_text(
            "import os, pathlib, pytest, time\n"
            "@pytest.mark.parametrize('k', range(8))\n"
            "def test_worker(k):\n"
            "    time.sleep(0.01)\n"
            f"    with pathlib.Path({str(workers)!r}).open('a') as said:\n"
            f"        said.write('{name} ' + os.environ['PYTEST_XDIST_WORKER'] + '\\n')\n"
        )
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = " + str(ROOT))
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.worker_groups"]
    subprocess.run(
        [sys.executable, *words, "-n", "2", "--dist", "loadfile", "tests"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
        check=True,
        capture_output=True,
        timeout=120,
    )
    ran = {tuple(line.split()) for line in workers.read_text().splitlines()}
    together = {worker for name, worker in ran if name in ("debian", "packaging")}
    assert len(together) == 1
    assert len(ran) == 4
    assert len({worker for _, worker in ran}) == 2
