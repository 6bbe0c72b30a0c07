"""Trials of cases in files, so that an interrupted campaign continues where it stopped.

One file per run, named after the case, the digest of all that it depends on, and the number of the
run. The files of another digest stay, and only ``latest`` reads them.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from itertools import count, takewhile
from pathlib import Path

from bench.compare.case_result import CaseResult, trial_of
from bench.compare.comparison_case import ComparisonCase


@dataclass(frozen=True, slots=True)
class TrialStore:
    """The files of trials in a folder."""

    folder: Path

    def read(self, case: ComparisonCase, digest: str) -> CaseResult | None:
        """Return the stored runs of a case; None without any."""
        kept = [json.loads(path.read_text()) for path in self._paths(case, digest)]
        if not kept:
            return None
        trials = tuple(trial_of(each["trial"]) for each in kept)
        return CaseResult(trials, digest, str(kept[-1]["commit"]))

    def latest(self, case: ComparisonCase) -> CaseResult | None:
        """Return the stored runs of a case that have the digest of the newest; None without any."""
        before, after = self._path(case, "*", 0).name.split("*")
        found = {
            path.name.removeprefix(before).removesuffix(after): path.stat().st_mtime_ns
            for path in self.folder.glob(f"{before}*{after}")
        }
        # Names of other systems may begin like this one's, but a digest has no hyphen.
        digests = [each for each in found if "-" not in each]
        return self.read(case, max(digests, key=found.__getitem__)) if digests else None

    def add(self, case: ComparisonCase, result: CaseResult) -> None:
        """Store the last run of a result, whose other runs are stored."""
        path = self._path(case, result.digest, len(result.trials) - 1)
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = {"case": asdict(case), "trial": asdict(result.trials[-1]), "commit": result.commit}
        path.write_text(json.dumps(kept))

    def forget(self, case: ComparisonCase, digest: str) -> None:
        """Delete the runs of a case."""
        for path in self._paths(case, digest):
            path.unlink()

    def _paths(self, case: ComparisonCase, digest: str) -> list[Path]:
        paths = (self._path(case, digest, run) for run in count())
        return list(takewhile(Path.exists, paths))

    def _path(self, case: ComparisonCase, digest: str, run: int) -> Path:
        return self.folder / f"{case}-{digest}-{run}.json".replace(":", "-")
