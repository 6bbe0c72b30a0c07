"""The service of ``hmd run``, with the cost of each tick and of its stop measured.

``python -m bench.hostile.measured_service CONFIG RESULT`` runs it until SIGTERM and writes JSON.
Costs are CPU time of the process with all its threads, so that a busy host does not change them.
They begin when the compiled kernels are loaded, which takes as long whatever the neighbours are.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from bench.scale.peak_memory import peak_mib
from hmd.config import load
from hmd.daemon.log import start_log
from hmd.daemon.notify import Notifier
from hmd.daemon.service import Service
from hmd.decide import registry
from hmd.observe.tick_record import TickRecord


class MeasuredService(Service):
    """A service that keeps the times of its ticks, in seconds."""

    tick_cpu_s: list[float]
    failed: int = 0
    stop_cpu_s: float = 0.0

    def tick(self, now_s: float) -> TickRecord:
        """Run one tick, and note its CPU time."""
        begun_s = time.process_time()
        record = super().tick(now_s)
        self.tick_cpu_s.append(time.process_time() - begun_s)
        self.failed += len(record.failed)
        return record

    def _on_signal(self, number: int) -> None:
        self.stop_cpu_s = time.process_time()
        super()._on_signal(number)


def main() -> None:
    """Run the service and write what it cost."""
    config, result = Path(sys.argv[1]), Path(sys.argv[2])
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    start_log("info")
    service = MeasuredService(lambda: load(config), str(config), Notifier(os.environ))
    service.tick_cpu_s = []
    registry.warm()
    begun_s, begun_cpu_s = time.monotonic(), time.process_time()
    try:
        service.run()
    finally:
        elapsed_s = time.monotonic() - begun_s
        cpu_s = service.stop_cpu_s - begun_cpu_s
        service.close()
    measured = {
        "ticks": len(service.tick_cpu_s),
        "failed": service.failed,
        "worst_tick_s": max(service.tick_cpu_s),
        "tick_cpu_s": service.tick_cpu_s,
        "cpu_s": cpu_s,
        "elapsed_s": elapsed_s,
        "stop_cpu_s": time.process_time() - service.stop_cpu_s,
        "peak_rss_mib": peak_mib(),
        "processes": len(service.stages.processes),
        "reported_bytes": sum(
            sum(target.numbers.resident_bytes) for target in service.observer.latest.targets
        ),
        "pages": int(service.stages.heat.resident_pages(1)[0].sum()),
    }
    result.write_text(json.dumps(measured))


if __name__ == "__main__":
    main()
