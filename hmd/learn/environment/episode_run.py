"""One episode, tick by tick: the daemon over a program, and the seconds that each tick saves.

Takes an episode and the places of the knobs in each tick; gives the figures that the next places
follow from, and the reward. The reward of a tick is the time that the misses of the tick would
have taken with first touch and no moves, less the time that they took. Moves cost what they take of
the program's time, bandwidth included, so that there is no price to set: the rewards of an episode
add up to the seconds by which it ended earlier than first touch. Takes as long as a simulation and
a replay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from hmd.emulate.recordings.miss_stream import MissOutcomes
from hmd.learn.environment.episodes import Episode
from hmd.learn.environment.knob_policy import KnobPolicy
from hmd.learn.environment.knob_signals import Figures
from hmd.simulate.placed_replay import first_touch
from hmd.simulate.simulated_machine import SimulatedMachine
from hmd.simulate.simulation import SimulatedDaemon

_S_PER_PS = 1e-12


@dataclass(frozen=True, slots=True)
class EpisodeTick:
    """A tick of an episode: the figures at its end, the seconds that it saved, and the end."""

    signals: Figures
    saved_s: float
    done: bool


class EpisodeRun:
    """A running episode; a context manager, which frees the machine.

    ``reference_s`` has the time of each row under first touch, shape ``(rows + 1,)``.
    """

    def __init__(self, episode: Episode) -> None:
        self.reference_s = first_touch_s(episode)
        self.tick_s = episode.settings.tick_s
        self._policy = KnobPolicy()
        self._machine = SimulatedMachine(
            episode.stream, episode.preset, episode.fast_pages, episode.settings.cost
        )
        self._daemon = SimulatedDaemon(self._machine, self._policy, episode.settings)
        self._row, self._program_s = self._machine.row, self._machine.program_s

    def __enter__(self) -> Self:
        """Return the run."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Free the machine."""
        self.close()

    def close(self) -> None:
        """Free the machine."""
        self._machine.__exit__(None, None, None)

    @property
    def signals(self) -> Figures:
        """The figures of the last tick."""
        return self._policy.signals

    @property
    def done(self) -> bool:
        """True once the program has ended."""
        return self._machine.done

    @property
    def runtime_s(self) -> float:
        """How long the program has run."""
        return self._machine.program_s

    def step(self, place: Sequence[float]) -> EpisodeTick:
        """Run a tick with the knobs at ``place``."""
        self._policy.place = place
        self._daemon.tick()
        row, program_s = self._machine.row, self._machine.program_s
        took_s = program_s - self._program_s
        saved_s = float(self.reference_s[row] - self.reference_s[self._row]) - took_s
        self._row, self._program_s = row, program_s
        return EpisodeTick(self.signals, saved_s, self.done)


def first_touch_s(episode: Episode) -> npt.NDArray[np.float64]:
    """Return when each row begins under first touch without moves or samples, and when all end."""
    stream = episode.stream
    outcomes = MissOutcomes.empty(len(stream))
    end_ps = first_touch(stream, episode.preset, episode.fast_pages, outcomes)
    rows_ps = np.append(outcomes.clock_ps, np.uint64(end_ps))
    return np.asarray(rows_ps, np.float64) * _S_PER_PS
