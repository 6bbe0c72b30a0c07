# SPDX-License-Identifier: MIT
"""``hmd run``: the daemon, in the foreground."""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from hmd.base.errors import HmdError, TransientError, is_transient
from hmd.base.paths import CONFIG_FILE
from hmd.cli.arguments import whole_number

if TYPE_CHECKING:
    from hmd.config import Config
    from hmd.daemon.service import Service
    from hmd.daemon.systemd import Notifier


DESCRIPTION = """\
Run the daemon in the foreground: once per tick it samples accesses, updates page heat, plans and
migrates.

SIGHUP reloads the configuration; if it is wrong, the old one stays in force. SIGTERM and Ctrl-C
stop the daemon.
"""

EXAMPLES = """\
examples:
  hmd run                                    with /etc/hmd/hmd.yaml
  hmd run --config my.yaml --dry-run         plan and report, move nothing
  hmd run --config my.yaml --ticks 10        ten ticks, then exit
  hmd run --compile                          as root, after an update of numba: about a minute
  systemctl reload hmd                       apply a changed configuration
"""

START_PAUSES_S = (1, 2, 4, 8, 16)
"""Pauses between attempts to start, longer than systemd's limit of five starts per minute."""

START_S = 120.0
"""Start-up time requested of a service manager: a cold disk may need it."""

OPTIONS = f"""\
--config FILE = {CONFIG_FILE}
                 the configuration (default {CONFIG_FILE})
--dry-run        move nothing, whatever the configuration says
--ticks N        exit after N ticks
--once           the same as --ticks 1
--preload        load numba and the kernels at the start, not with the first process (about 75 MiB)
--compile        compile what the cache of kernels lacks, and exit; the daemon then starts at once
--log-level {{debug,info,warning,error}} = info
                 least level that is logged, on standard error (default info)
"""

TYPES = {"ticks": whole_number()}


def run(args: argparse.Namespace) -> None:
    """Run the daemon until SIGTERM, SIGINT or the last tick, or compile its kernels."""
    # One thread is faster than the thread pool for arrays of this size, and costs less memory.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if args.compile:
        compile_kernels()
        return
    faulthandler.enable()  # where native code fails, the log says in which function
    from hmd.policy.registry import collector_paused  # which loads numpy

    with collector_paused():
        service = _start(args)
    try:
        service.run(1 if args.once else args.ticks)
    finally:
        service.close()


def compile_kernels() -> None:
    """Compile what the cache lacks, with a line of progress per module."""
    from hmd.policy import registry

    def report(done: int, total: int) -> None:
        what = f"compiled {done} of {total} kernels" if done < total else "all kernels are compiled"
        print(f"hmd: {what}", file=sys.stderr)

    registry.compile_kernels(report)


def _start(args: argparse.Namespace) -> Service:
    from hmd.config import load
    from hmd.daemon.log import start_log
    from hmd.daemon.systemd import Notifier
    from hmd.linux.own_process import keep_freed_memory, raise_descriptor_limit

    start_log(args.log_level)
    raise_descriptor_limit()
    keep_freed_memory()
    # A SIGHUP during the start waits until the service can reload.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    notifier = Notifier(os.environ)
    notifier.extend_start(START_S)

    def read() -> Config:
        config = load(args.config)
        if not args.dry_run:
            return config
        dry = config.migrate.model_copy(update={"dry_run": True})
        return config.model_copy(update={"migrate": dry})

    read()  # report a wrong file before the kernels are loaded
    from hmd.daemon.service import Service

    return started(
        lambda: Service(
            read,
            str(args.config),
            notifier,
            preload=args.preload,
            wait_for_kernels=args.once or args.ticks is not None,
        ),
        notifier,
    )


def started(start: Callable[[], Service], notifier: Notifier) -> Service:
    """Return the service; what the kernel refuses for now is tried again for half a minute.

    Raises the last ``TransientError``, which the service manager starts hmd again after.
    """
    for pause_s in START_PAUSES_S:
        try:
            return start()
        except (HmdError, OSError) as error:
            if not is_transient(error):
                raise
            logging.getLogger("hmd").warning("start: %s; again in %d s", error, pause_s)
        notifier.extend_start(START_S)
        time.sleep(pause_s)
    try:
        return start()
    except OSError as error:
        if not is_transient(error):
            raise
        raise TransientError(f"the start failed: {error}: free memory or descriptors") from None
