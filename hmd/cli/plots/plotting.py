"""Set-up that every plot shares: matplotlib without a display, and the file of the plot.

matplotlib is an optional dependency (extra plot). It is imported here only, and only when a plot
is drawn: the import takes about 0.3 s.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from hmd.errors import os_error
from hmd.extras import missing_extra

_DPI: Final = 120


def load_pyplot(instead: str = "") -> Any:
    """Return matplotlib.pyplot with the Agg backend.

    Raises MissingError without matplotlib; ``instead`` names an option that does without.
    """
    try:
        import matplotlib
    except ImportError:
        raise missing_extra("a picture", "matplotlib", "plot", instead) from None
    matplotlib.use("agg")
    from matplotlib import pyplot

    return pyplot


def save_plot(figure: Any, file: Path) -> None:
    """Write a figure and close it; the suffix of ``file`` selects the format, as PNG, SVG or PDF.

    Raises what ``os_error`` makes of a file that cannot be written or a suffix that is not known.
    """
    from matplotlib import pyplot

    try:
        figure.savefig(file, dpi=_DPI)
    except (OSError, ValueError) as error:
        raise os_error(error, f"cannot write the picture {file}: {error}") from None
    finally:
        pyplot.close(figure)
