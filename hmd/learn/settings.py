# SPDX-License-Identifier: MIT
"""The configuration of ``hmd train`` and of the training environment, from a YAML file.

Every mistake is one line with file and line.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from hmd.base.errors import ConfigError
from hmd.base.yaml_document import read_document, values
from hmd.config.load import located
from hmd.simulate.pmu import MAX_PERIOD, MAX_SEED, PmuSettings
from hmd.simulate.simulation import SimulationSettings

Share = Annotated[float, Field(gt=0, lt=1)]

Period = Annotated[int, Field(ge=1, le=MAX_PERIOD)]
Milliseconds = Annotated[float, Field(ge=0, le=3_600_000)]
Width = Annotated[int, Field(ge=1, le=64)]


class EpisodeSettings(BaseModel):
    """Ranges that each episode is drawn from; all draws are uniform, in logarithms where of rates.

    An episode is a program, or a part of ``misses_most`` of its misses.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    presets: tuple[str, ...] = Field(default=("dram-pm", "dram-cxl"), min_length=1)
    """Machines, as for hmd emulate."""
    fast_least: Share = 0.05
    fast_most: Share = 0.5
    """Shares of the pages that fit on the fast node."""
    period_least: Annotated[int, Field(ge=1, le=MAX_PERIOD)] = 83
    period_most: Annotated[int, Field(ge=1, le=MAX_PERIOD)] = 996
    """Misses per sample."""
    loss_most: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """Share of samples that are lost."""
    misses_most: Annotated[int, Field(ge=1000)] = 4_000_000
    """Longest episode, in misses."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.fast_least > self.fast_most or self.period_least > self.period_most:
            raise ValueError("a range ends below its begin")
        return self


class TrainSettings(BaseModel):
    """What ``hmd train`` reads; paths are relative to the file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    recordings: tuple[str, ...] = Field(min_length=1)
    """Recorded programs, as paths or patterns."""
    held_out: tuple[str, ...] = ()
    """Recordings that are not trained on, by name without suffix: they decide when to stop."""
    preset: str = "dram-pm"
    fast: tuple[Share, ...] = Field(default=(0.33, 0.11), min_length=1)
    """Shares of a program's pages that fit on the fast node."""
    periods: tuple[Period, ...] = Field(default=(332, 83), min_length=1)
    """Misses per sample; the first one also serves the evaluation."""
    tick_ms: Annotated[float, Field(ge=0.1, le=3_600_000)] = 5.0
    delay_ms: Milliseconds = 3.0
    found_ms: Milliseconds = 5.0
    horizon_ticks: Annotated[int, Field(ge=1, le=4096)] = 8
    """How far ahead the network predicts."""
    hidden: tuple[Width, ...] = Field(default=(4,), min_length=1, max_length=3)
    epochs: Annotated[int, Field(ge=1, le=1000)] = 6
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] = 1
    rounds: Annotated[int, Field(ge=1, le=20)] = 1
    knob_ticks: Annotated[int, Field(ge=10, le=100_000_000)] = 40_000
    """Like ``rounds`` without effect; accepted in configurations of 0.1's previews."""
    episodes: EpisodeSettings = EpisodeSettings()
    """Episodes of the training environment; these machines replace ``preset`` and ``fast``."""

    def simulation(self, period: int, seed: int) -> SimulationSettings:
        """Return the daemon and its machine with a sampling period and a seed."""
        return SimulationSettings(
            tick_s=self.tick_ms / 1e3,
            delay_s=self.delay_ms / 1e3,
            found_s=self.found_ms / 1e3,
            sampling=PmuSettings(period, seed=seed),
        )


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """Settings with the recordings found; ``recordings`` are paths by name, sorted."""

    settings: TrainSettings
    recordings: dict[str, Path]

    @property
    def trained(self) -> list[str]:
        """Names of the recordings to train on."""
        return [name for name in self.recordings if name not in self.settings.held_out]


def read_plan(path: Path) -> TrainingPlan:
    """Read a configuration and find its recordings; ConfigError where something is wrong."""
    document = read_document(path)
    try:
        settings = TrainSettings.model_validate(values(document))
    except ValidationError as error:
        # Of a list with a wrong item, pydantic also reports the length without it.
        found_at = [each["loc"] for each in error.errors()]
        lines = [
            located(document, each["loc"], each["msg"])
            for each in error.errors()
            if not any(
                at != each["loc"] and at[: len(each["loc"])] == each["loc"] for at in found_at
            )
        ]
        raise ConfigError("\n".join(lines)) from None
    found: dict[str, Path] = {}
    for number, pattern in enumerate(settings.recordings):
        paths = _matching(path.parent, pattern)
        if not paths:
            where = ("recordings", number)
            raise ConfigError(
                located(document, where, f"no recording matches {pattern or repr(pattern)}")
            )
        for each in paths:
            if found.setdefault(each.stem, each) != each:
                raise ConfigError(f"{found[each.stem]} and {each} have one name: rename one")
    for name in settings.held_out:
        if name not in found:
            raise ConfigError(located(document, ("held_out",), f"there is no recording {name!r}"))
    plan = TrainingPlan(settings, dict(sorted(found.items())))
    if not plan.trained:
        raise ConfigError(located(document, ("held_out",), "no recording is left to train on"))
    return plan


def _matching(folder: Path, pattern: str) -> list[Path]:
    """Return the files that match a pattern, sorted; none for what is no pattern of files."""
    try:
        path = Path(pattern).expanduser()
        base = Path(path.anchor) if path.is_absolute() else folder
        relative = str(path.relative_to(path.anchor))
        return sorted(each for each in base.glob(relative) if each.is_file())
    except (ValueError, IndexError, RuntimeError):
        # Of pathlib: an empty pattern, "/", the home of a user that there is not.
        return []
