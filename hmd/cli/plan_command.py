# SPDX-License-Identifier: MIT
"""``hmd plan``: plan the memory of a training step ahead, and price the plan."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hmd.base.atomic_file import check_writable, write_finished
from hmd.base.errors import UsageError
from hmd.cli.arguments import whole_number
from hmd.cli.output import format_bytes, format_seconds, format_share, print_json, print_records
from hmd.tensors.planners import PLANNERS, planner_named

if TYPE_CHECKING:
    from hmd.tensors.planner import StepProblem
    from hmd.tensors.prices import StepPrice

DESCRIPTION = """\
Plan when the tensors of a training step move between memory tiers, and simulate the plan. The trace
names kernels, tensors and uses (docs: tensor traces and plans); the memory system is a preset or a
YAML file. The table shows the step's time, its share of the time with unlimited fast memory, a
lower bound that no plan undercuts, the bytes that cross links, and the CPU time of planning.
"""

EXAMPLES = """\
examples:
  hmd plan step.npz --tiers g10 --planner portfolio
  hmd plan step.npz --tiers g10 --compare
  hmd plan step.npz --tiers g10 --sweep gpu --steps 6     how much GPU memory the step needs
  hmd plan step.npz --tiers g10 --sweep gpu --picture sweep.png
  hmd plan step.npz --tiers g10 --within 5%             least GPU memory for at most 5 % loss
  hmd plan step.npz --tiers g10 --moves plan.json --picture plan.png
  hmd plan step.npz --tiers g10 --plan plan.json          the price of a plan from elsewhere

exit codes: 0 planned; 1 a damaged trace, or a plan that cannot be carried out; 2 wrong usage;
3 a wrong memory system; 4 a file cannot be written, or a package is missing
"""


PLANNER = "portfolio"
STEPS = 5

OPTIONS = f"""\
TRACE             a tensor trace (.npz)
--tiers FILE = g10
                  memory system: g10, dram-pm, hbm-dram-flash, or a YAML file (default g10)
--planner NAME    the planner: {", ".join(PLANNERS)} (default {PLANNER})
--plan FILE       price the moves of a JSON file instead
--rules NAME = strict
                  pricing rules: strict, or g10 as in the publication (default strict)
--compare         price all planners that suit
--sweep TIER      price the plan for several capacities of this tier
--steps N         capacities of the sweep (default {STEPS})
--within PERCENT  find the least capacity of the fastest tier, or of that of --sweep, with which the
                  step takes at most so much longer than the ideal
--moves FILE      write the plan's moves as JSON
--picture FILE    draw tiers, links and stalls, or the sweep: .png, .svg
--json            print JSON: seconds, bytes, shares
"""

USAGE = "hmd plan [options] TRACE"
TYPES = {"tiers": str, "sweep": str, "steps": whole_number(100, min_value=2)}


def run(args: argparse.Namespace) -> None:
    """Plan, price and print."""
    for wrong, why in (
        (args.compare and args.sweep, "take either --compare or --sweep"),
        ((args.compare or args.sweep) and args.moves, "--moves goes with one plan"),
        (args.compare and args.picture, "--picture goes with one plan or --sweep"),
        (args.plan and (args.compare or args.sweep), "--plan goes without --compare and --sweep"),
        (args.planner and (args.plan or args.compare), "--planner goes without --plan, --compare"),
        (args.steps and (not args.sweep or args.within), "--steps goes with --sweep"),
        (args.within and (args.compare or args.moves), "--within goes without --compare, --moves"),
        (args.within and args.plan, "--within goes without --plan"),
        (args.within and args.picture, "--within goes without --picture"),
    ):
        if wrong:
            raise UsageError(f"plan: {why}")
    from hmd.cli.plots import check_picture
    from hmd.tensors.memory_system import load_system, rules_named
    from hmd.tensors.planner import StepProblem
    from hmd.tensors.prices import planned_for
    from hmd.tensors.trace import read_trace

    check_picture(args.picture)
    if args.moves is not None:
        check_writable(args.moves)
    system = load_system(args.tiers)
    trace = planned_for(read_trace(args.trace), system)
    if trace.device == "cpu" and not system.in_place:
        print(
            f"{args.trace}: kernel times are those of the CPU that recorded them, not those of the"
            f" device of {system.name}: give it its peak rates, processor: {{tflops: N, gbps: N}}",
            file=sys.stderr,
        )
    if args.sweep not in (None, *system.names):
        raise UsageError(f"plan: no tier {args.sweep!r}: take {', '.join(system.names)}")
    problem = StepProblem(trace, system, rules_named(args.rules))
    if args.within is not None:
        _within(args, problem)
    elif args.compare:
        _show(args, _compared(problem))
    elif args.sweep:
        _show(args, _swept(args, problem))
    else:
        _show(args, [_planned(args, problem)])


def _planned(args: argparse.Namespace, problem: StepProblem) -> StepPrice:
    """Return the price of one plan; writes its moves and its picture."""
    from hmd.cli.plots import draw_plan
    from hmd.tensors.move_plan import plan_document, read_plan
    from hmd.tensors.prices import price_plan, price_planner

    if args.plan is not None:
        plan = read_plan(args.plan, problem.system.names)
        price, result = price_plan(problem, plan, args.plan.name)
    else:
        price, plan, result = price_planner(problem, planner_named(args.planner or PLANNER))
    if args.moves is not None:
        document = plan_document(plan, problem.system.names)
        if problem.trace.tensor_names:
            moved = sorted({each for each in plan.tensor.tolist() if each < problem.trace.tensors})
            document["tensors"] = {each: problem.trace.tensor_names[each] for each in moved}
        write_finished(args.moves, json.dumps(document) + "\n")
    if args.picture is not None:
        draw_plan(problem, plan, result, args.picture)
    return price


def _compared(problem: StepProblem) -> list[StepPrice]:
    from hmd.tensors.prices import price_planner

    names = [name for name, entry in PLANNERS.items() if entry.suits(problem.system)]
    return [price_planner(problem, planner_named(name))[0] for name in _progress(names, "planners")]


def _swept(args: argparse.Namespace, problem: StepProblem) -> list[StepPrice]:
    from hmd.tensors.prices import price_planner, sweep_capacities

    problems = sweep_capacities(problem, args.sweep, args.steps or STEPS)
    found = _progress(problems, "capacities")
    prices = [price_planner(each, planner_named(args.planner or PLANNER))[0] for each in found]
    if args.picture is not None:
        from hmd.cli.plots import draw_sweep

        draw_sweep(prices, args.sweep, args.picture)
    return prices


def _within(args: argparse.Namespace, problem: StepProblem) -> None:
    """Find the least capacity for a loss, and print it below the capacities tried."""
    from hmd.tensors.prices import capacity_within

    tier = args.sweep or problem.system.names[0]
    planner = planner_named(args.planner or PLANNER)
    found, prices = capacity_within(
        problem, tier, args.within, planner, lambda plans: _progress(list(plans), "capacities")
    )
    if args.json:
        print_json({"rows": prices, "within": asdict(found)})
        return
    _show(args, prices)
    loss = found.price.seconds / found.price.ideal_seconds - 1
    print(
        f"{format_bytes(found.capacity_bytes)} of {tier} suffice for {format_share(args.within)}:"
        f" the step takes {format_share(loss)} longer than the ideal"
    )
    if found.bound_bytes is not None:
        print(f"with less than {format_bytes(found.bound_bytes)}, every plan takes longer")


def _progress(items: list[Any], what: str) -> Any:
    """Return an iterator that shows progress and time left on a terminal's stderr."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return track(items, what, console=console, transient=True, disable=not console.is_terminal)


def _show(args: argparse.Namespace, prices: list[StepPrice]) -> None:
    if args.json:
        print_json({"rows": prices})
        return
    print_records(
        prices,
        {
            "planner": lambda price: price.planner,
            "capacity": lambda price: " ".join(
                f"{name} {format_bytes(size) if size is not None else 'unlimited'}"
                for name, size in price.tiers.items()
            ),
            "step": lambda price: format_seconds(price.seconds),
            "ideal": lambda price: format_seconds(price.ideal_seconds),
            "share": lambda price: format_share(price.ideal_seconds / price.seconds),
            "bound": lambda price: format_seconds(price.bound_seconds),
            "moved": lambda price: format_bytes(price.moved_bytes),
            "planned in": lambda price: format_seconds(price.plan_seconds),
        },
        texts=2,
        title=_title(prices[0]) if prices else None,
    )


def _title(price: StepPrice) -> str:
    times = f", kernel times of {price.kernel_times}" if price.kernel_times else ""
    return f"{price.trace}, rules {price.rules}{times}"
