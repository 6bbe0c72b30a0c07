# SPDX-License-Identifier: MIT
"""``hmd train``: train the learned policy on recorded programs."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from hmd.base.atomic_file import check_writable, finished_file
from hmd.base.errors import UsageError, os_error
from hmd.cli.arguments import open_executor
from hmd.cli.output import format_seconds, format_share, print_table
from hmd.cli.simulation_options import ProgressLine

if TYPE_CHECKING:
    from hmd.learn.settings import TrainingPlan
    from hmd.learn.training import SpeedRow, Trained

DESCRIPTION = """\
Train the network of the policy "learned" on recorded programs.

The configuration names recordings ("hmd simulate --record"), sizes of fast memory and sampling
periods. All recordings are simulated with the daemon's own code, and the network is fitted to what
pages did next. Equal configurations and recordings give equal weights, with any number of workers,
here or on a Ray cluster.

Recordings under "held_out" are not trained on: they decide when a fit stops. --evaluate compares
the weights with first touch and with the default policy, and shows those programs apart.
"""

EXAMPLES = """\
examples:
  hmd simulate --record dict.misses -- python3 -c 'd = {n * 2654435761: n for n in range(200000)}'
  hmd train --config train.yaml -o learned.npz
  hmd train --config train.yaml -o learned.npz --resume --workers 2     after Ctrl-C
  hmd train --config train.yaml -o learned.npz --ray head:6379          on a Ray cluster
  hmd train --config train.yaml -o learned.npz --evaluate               compare, no training
  hmd simulate dict.misses --policy learned --set weights=$PWD/learned.npz
"""

OPTIONS = """\
--config FILE      configuration of the training; config/train.yaml has all settings
-o, --output FILE  weights, an .npz file
--workers N = 1    simulations at a time, each with 50 bytes of memory per miss (1)
--ray
--resume           use what an interrupted training left in FILE.training/
--evaluate         do not train: compare the weights of FILE with other policies
"""

USAGE = "%(prog)s --config FILE -o FILE [options]"
REQUIRED = ("config", "output")


def run(args: argparse.Namespace) -> None:
    """Train and write, or evaluate."""
    if args.workers < 1:
        raise UsageError("--workers must be at least 1")
    if args.ray is not None and args.evaluate:
        raise UsageError("--ray is for training: leave it out, or --evaluate")
    if args.output.is_dir():
        raise UsageError(f"-o {args.output} is a folder: name a file")
    from hmd.learn.settings import read_plan

    plan = read_plan(args.config)
    if args.evaluate:
        _print_speeds(_speeds(plan, args))
        return
    check_writable(args.output)
    trained = _train(plan, args)
    epochs = trained.epochs
    print(f"{args.output}: {trained.weights.header.about}")
    print(f"loss {epochs[-1].trained:.4f}, held out {min(e.held_out for e in epochs):.4f}")


def _train(plan: TrainingPlan, args: argparse.Namespace) -> Trained:
    from hmd.learn.training import Training

    folder = args.output.with_name(args.output.name + ".training")
    try:
        folder.mkdir(exist_ok=True)
        with (
            open_executor(args.ray, args.workers) as executor,
            ProgressLine() as progress,
        ):
            training = Training(
                plan, folder, executor=executor, resume=args.resume, say=progress.note
            )
            trained = training.run()
        with finished_file(args.output) as file:
            trained.weights.write(file)
    except OSError as error:
        raise os_error(error, f"cannot write {args.output}: {error.strerror}") from None
    return trained


def _speeds(plan: TrainingPlan, args: argparse.Namespace) -> list[SpeedRow]:
    """Return the speeds of what is trained and of what it is compared with."""
    from hmd.learn.training import FIRST_TOUCH, make_policy, policy_speeds
    from hmd.policy import registry

    weights = str(args.output.resolve())
    make_policy("learned", weights=weights)  # a file that cannot be read ends here
    policies = {
        FIRST_TOUCH: lambda: make_policy("none"),
        registry.DEFAULT: lambda: make_policy(registry.DEFAULT),
        "learned": lambda: make_policy("learned", weights=weights),
    }
    with ProgressLine() as progress:
        return policy_speeds(plan, policies, progress.say)


def _print_speeds(rows: list[SpeedRow]) -> None:
    from hmd.learn.training import FIRST_TOUCH, mean_speed

    names = [name for name in rows[0].seconds if name != FIRST_TOUCH]
    columns = [FIRST_TOUCH, *(f"x {name}" for name in names)]
    cells: list[tuple[str, ...]] = [
        (
            row.program + (", held out" if row.held_out else ""),
            format_share(row.fast),
            format_seconds(row.seconds[FIRST_TOUCH]),
            *(f"{row.times(name):.3f}" for name in names),
        )
        for row in rows
    ]
    for label, held_out in (("geometric mean, held out", True), ("geometric mean, trained", False)):
        part = [row for row in rows if row.held_out is held_out]
        if part:
            cells.append((label, "", "", *(f"{mean_speed(part, name):.3f}" for name in names)))
    print_table(["", "fast", *columns], cells, right=["fast", *columns])
