"""Tables of ``hmd emulate``: presets, counters, calibration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hmd.cli.output import console, format_bytes, format_count, print_table

if TYPE_CHECKING:
    from hmd.emulate.calibration import Calibration
    from hmd.emulate.preset import NodePreset, Preset


def print_presets(presets: Sequence[Preset]) -> None:
    """Print each preset's nodes, then the sources of their figures."""
    columns = ("preset", "node", "size", "CPUs", "read ns", "write ns", "read GB/s", "write GB/s")
    rows = [
        (preset.name if position == 0 else "", *_node_row(node))
        for preset in presets
        for position, node in enumerate(preset.nodes)
    ]
    print_table(columns, rows, right=columns[2:])
    out = console()
    for preset in presets:
        out.print(f"{preset.name}: {preset.description}", style="bold", markup=False)
        for node in preset.nodes:
            out.print(f"  {node.name}: {node.source}", markup=False)


def _node_row(node: NodePreset) -> tuple[object, ...]:
    return (
        node.name,
        format_bytes(node.size),
        ",".join(map(str, node.cpus)) or "none",
        f"{node.read_latency_ns:g}",
        f"{node.write_latency_ns:g}",
        f"{node.read_bandwidth_gbps:g}",
        f"{node.write_bandwidth_gbps:g}",
    )


def print_counters(document: dict[str, Any]) -> None:
    """Print the counters of :func:`hmd.emulate.machine_report.counters_document`."""
    columns = (
        "node",
        "load misses",
        "store misses",
        "prefetched",
        "kernel lines",
        "read",
        "written",
        "stalled s",
    )
    rows = [
        (
            node["name"],
            format_count(node["load_misses"]),
            format_count(node["store_misses"]),
            format_count(node["prefetched_lines"]),
            format_count(node["kernel_lines"]),
            format_bytes(node["read_bytes"]),
            format_bytes(node["write_bytes"]),
            f"{node['stall_s']:.4f}",
        )
        for node in document["nodes"]
    ]
    print_table(columns, rows, right=columns[1:])
    console().print(
        f"modelled {document['modelled_s']:.6f} s; the guest's clock runs "
        f"{document['dilation']:g} times as long"
    )


def print_calibration(report: Calibration) -> None:
    """Print asked and measured figures with their errors, then the ratios of the nodes."""
    columns = ("node", "figure", "asked", "measured", "error", "limited by", "guest's clock")
    rows = [
        (
            figure.node,
            figure.name,
            f"{figure.asked:.2f} {figure.unit}",
            f"{figure.measured:.2f} {figure.unit}",
            _error(figure.error, figure.within_bounds),
            figure.limit,
            f"{figure.guest:.3f} {figure.unit}",
        )
        for figure in report.figures
    ]
    print_table(columns, rows, title=f"{report.preset}, modelled time", right=columns[2:5])
    ratio_columns = ("ratio", "figure", "asked", "by the guest's clock", "error")
    ratios = [
        (
            f"{ratio.slow} / {ratio.fast}",
            ratio.name,
            f"{ratio.asked:.2f}",
            f"{ratio.measured:.2f}",
            _error(ratio.error, ratio.within_bounds),
        )
        for ratio in report.ratios
    ]
    print_table(ratio_columns, ratios, title="Slow over fast", right=ratio_columns[2:])


def _error(error: float, within: bool) -> str:
    return f"{error * 100:+.1f} %" + ("" if within else " OUT OF BOUNDS")
