"""Bounds of what a page's samples allow.

Anscombe's transform sqrt(n + 3/8) of a Poisson count n has a standard deviation of about 1/2,
whatever its mean (Anscombe, "The transformation of Poisson, binomial and negative-binomial data",
1948). A bound of k standard deviations is therefore k/2 away from it.
"""

from __future__ import annotations

from typing import Final

ANSCOMBE: Final = 0.375
"""What the transform adds to a count."""
