"""Where a policy wants pages: what it hands to the plan builder."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Wanted:
    """The tiers on which a policy wants the rows of a page view; columns have shape ``(n,)``.

    ``tier`` is -1 for pages that stay. ``key`` is at least 0 and orders moves: promotions go by
    falling key, and demotions, as far as room is needed, by rising key. Pages that ``must`` leave
    are demoted first, whether room is needed or not. A page displaces others of a tier only if
    its key is at least ``worth`` of that tier, shape ``(tiers,)``; None is 0. ``fills`` states
    that the policy wants as many pages on the fastest tier as fit: what one limited group of
    processes gives up, others then get (:mod:`hmd.decide.planning.fast_limits`).
    """

    tier: npt.NDArray[np.int8]
    key: npt.NDArray[np.float32]
    must: npt.NDArray[np.bool_] | None = None
    worth: npt.NDArray[np.float64] | None = None
    fills: bool = False
