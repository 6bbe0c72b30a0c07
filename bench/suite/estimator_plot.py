"""The plot of the estimator's errors by program, versus those of the published formula."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def draw(document: Mapping[str, Any], path: Path) -> None:
    """Write a PNG file with the mean and the worst error of each program on each preset."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    presets = list(dict.fromkeys(case["preset"] for case in document["cases"]))
    figure, axes = plt.subplots(
        1, len(presets), figsize=(4.2 * len(presets), 0.6 + 0.3 * len(document["programs"]))
    )
    for place, preset in zip(axes if len(presets) > 1 else [axes], presets, strict=True):
        cases = [case for case in document["cases"] if case["preset"] == preset]
        cases.sort(key=lambda case: case["program"], reverse=True)
        rows = range(len(cases))
        for key, label, colour, offset in (
            ("isc22_", "published formula", "tab:grey", 0.2),
            ("", "hmd", "tab:blue", -0.2),
        ):
            mean = [100 * case[f"{key}mean_error"] for case in cases]
            worst = [100 * case[f"{key}max_error"] for case in cases]
            at = [row + offset for row in rows]
            place.barh(at, mean, 0.36, color=colour, label=f"{label}, mean")
            place.plot(worst, at, "|", color=colour, markersize=8, label=f"{label}, worst")
        place.set_yticks(list(rows), [case["program"] for case in cases])
        place.set_xlabel("error of the runtime, %")
        place.set_title(preset)
    (axes[0] if len(presets) > 1 else axes).legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
