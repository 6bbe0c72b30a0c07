"""Continuous demotion: keeps kswapd awake on the fast node.

After sixteen failures on a node, kswapd is not woken there until something is reclaimed
(kswapd_failures, mm/vmscan.c). A node full of unmovable memory makes it fail; tiering then
promotes nothing, for lack of free pages. So, while a program runs with demotion enabled, a helper
process on the fast node has a few of its pages demoted every second (memory.reclaim,
Documentation/admin-guide/cgroup-v2.rst, Linux 5.19).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.compare.testbed import PLACED, Testbed
from hmd.emulate.c_compiler import compile_static
from hmd.emulate.demo.variants import FAST_NODE, SERVICE_CPU, service

HOLD_PAGES = Path(__file__).parents[1] / "workloads/hold_pages.c"
_PAGES = 8
_DEMOTION = "/sys/kernel/mm/numa/demotion_enabled"
_GROUP, _HELD = "/sys/fs/cgroup/demoted", "/run/held"
_BEGIN = f"""
echo +memory > /sys/fs/cgroup/cgroup.subtree_control
mkdir {_GROUP}
mkfifo {_HELD}"""
_GO_ON = f"""
echo $$ > {_GROUP}/cgroup.procs
while sleep 1; do
    "$@" > {_HELD} &
    read held < {_HELD} && echo 16K > {_GROUP}/memory.reclaim
    kill $!
done"""
_END = f"""
echo 1 > {_GROUP}/cgroup.kill
until rmdir {_GROUP} 2>/dev/null; do sleep 0.1; done
rm {_HELD}
echo -memory > /sys/fs/cgroup/cgroup.subtree_control"""
_END_S = 60


@contextmanager
def going_on(stage: Testbed) -> Iterator[None]:
    """Keep demotion active if it is enabled; raises HmdError where the guest refuses."""
    if stage.get([_DEMOTION])[_DEMOTION] != "true":
        yield
        return
    stage.sh(_BEGIN)
    held = (str(compile_static(HOLD_PAGES)), str(_PAGES))
    on_fast = (str(compile_static(PLACED)), str(SERVICE_CPU), "bind", str(1 << FAST_NODE), *held)
    said = bytearray()
    job = stage.machine.start(
        service(["sh", "-c", _GO_ON, "sh", *on_fast]), stdout=said.extend, stderr=said.extend
    )
    try:
        yield
    finally:
        stage.sh(_END)
        job.wait(_END_S)
