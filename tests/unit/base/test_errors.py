# SPDX-License-Identifier: MIT
"""Two errors: missing (exit code 4) and not permitted (7)."""

import errno
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from hmd.base.errors import (
    Exit,
    HmdError,
    MissingError,
    NotPermittedError,
    TransientError,
    UnavailableError,
    os_error,
)
from hmd.linux.damon import DamonError
from hmd.sample import selection
from hmd.sample.perf_events import PerfError
from hmd.sample.sampler import SAMPLERS, Capabilities, SampleSettings
from hmd.sample.selection import open_sampler


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.EACCES, Exit.NOT_PERMITTED),
        (errno.EPERM, Exit.NOT_PERMITTED),
        (errno.ENOENT, Exit.MISSING),
        (errno.ENODEV, Exit.MISSING),
        (errno.ENOSYS, Exit.MISSING),
        (errno.EBUSY, Exit.RETRY),
        (errno.ENOMEM, Exit.RETRY),
        (errno.EMFILE, Exit.RETRY),
    ],
)
def test_errno_selects_exit_code(number: int, code: Exit) -> None:
    errors = (
        PerfError(number, "cannot open an event"),
        DamonError(number, "kdamonds/0/state = on"),
        os_error(OSError(number, "text"), "cannot write a file"),
    )
    assert [error.exit_code for error in errors] == [code] * 3
    assert all(isinstance(error, UnavailableError) for error in errors)


def test_os_error_without_permission_problem_has_callers_class() -> None:
    assert type(os_error(OSError(errno.EADDRINUSE, "in use"), "line", HmdError)) is HmdError
    assert type(os_error(ValueError("suffix"), "line")) is MissingError
    assert type(os_error(OSError(errno.EPERM, "no"), "line", HmdError)) is NotPermittedError


def use_openers(
    monkeypatch: pytest.MonkeyPatch, openers: Mapping[str, Callable[..., object]]
) -> None:
    """Open only these samplers."""
    entries = {name: SAMPLERS[name] for name in openers}
    monkeypatch.setattr(selection, "SAMPLERS", entries)
    monkeypatch.setattr(selection, "find_opener", lambda name, _before: openers[name])


class OpenSampler:
    """A sampler that opens; without a process in its /proc it is not tested."""

    detail, capabilities = "page faults", Capabilities()


@pytest.mark.parametrize(
    ("refusals", "kind"),
    [
        ([MissingError("no PMU"), MissingError("no DAMON")], MissingError),
        ([MissingError("no PMU"), NotPermittedError("run hmd as root")], NotPermittedError),
        ([MissingError("no PMU"), PerfError(errno.EACCES, "cannot open")], NotPermittedError),
    ],
)
def test_auto_sampler_one_refused_permission_raises_not_permitted(
    refusals: list[UnavailableError],
    kind: type[UnavailableError],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left = iter(refusals)

    def refuse(*_: object) -> None:
        raise next(left)

    openers = dict.fromkeys(("pmu", "faults"), refuse)
    use_openers(monkeypatch, openers)
    with pytest.raises(kind, match="no PMU; ") as raised:
        open_sampler(SampleSettings(), tmp_path, tmp_path)
    assert type(raised.value) is kind


def test_auto_sampler_busy_for_now_falls_back_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: object) -> None:
        raise PerfError(errno.EBUSY, "cannot open an event")

    use_openers(monkeypatch, {"pmu": busy, "faults": lambda *_: OpenSampler()})
    chosen = open_sampler(SampleSettings(), tmp_path, tmp_path)
    assert (chosen.sampler.detail, chosen.better_later) == ("page faults", True)
    with pytest.raises(TransientError, match="another program holds the counters"):
        open_sampler(SampleSettings(), tmp_path, tmp_path, None, "faults")


def test_auto_sampler_missing_for_good_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object) -> None:
        raise MissingError("no PMU")

    use_openers(monkeypatch, {"pmu": missing, "faults": lambda *_: OpenSampler()})
    assert not open_sampler(SampleSettings(), tmp_path, tmp_path).better_later
