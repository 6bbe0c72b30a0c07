"""Set-up that every plot shares: matplotlib without a display, and the file of the plot.

matplotlib is an optional dependency (extra plot). It is imported here only, and only when a plot
is drawn: the import takes about 0.3 s.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from hmd.errors import MissingError, UsageError
from hmd.extras import missing_extra
from hmd.finished_file import check_writable, finished_file

_DPI: Final = 120
_FORMATS: Final = ("png", "svg", "pdf")


def check_picture(file: Path | None, instead: str = "") -> None:
    """Raise, before the work begins, what ``load_pyplot`` and ``save_plot`` would raise after it.

    UsageError for a suffix other than .png, .svg and .pdf. None is no picture.
    """
    if file is None:
        return
    _format(file)
    check_writable(file)
    if find_spec("matplotlib") is None:
        raise _missing(instead)


def load_pyplot(instead: str = "") -> Any:
    """Return matplotlib.pyplot with the Agg backend.

    Raises MissingError without matplotlib; ``instead`` names an option that does without.
    """
    try:
        import matplotlib
    except ImportError:
        raise _missing(instead) from None
    matplotlib.use("agg")
    from matplotlib import pyplot

    return pyplot


def save_plot(figure: Any, file: Path) -> None:
    """Write a figure and close it; the suffix of ``file`` selects the format, as PNG, SVG or PDF.

    Raises as ``finished_file``, and UsageError for another suffix.
    """
    from matplotlib import pyplot

    try:
        form = _format(file)
        with finished_file(file) as opened:
            figure.savefig(opened, dpi=_DPI, format=form)
    finally:
        pyplot.close(figure)


def _format(file: Path) -> str:
    form = file.suffix[1:].lower()
    if form not in _FORMATS:
        raise UsageError(f"picture {file}: its name must end in .png, .svg or .pdf")
    return form


def _missing(instead: str) -> MissingError:
    return missing_extra("a picture", "matplotlib", "plot", instead)
