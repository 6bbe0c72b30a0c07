"""The learned policy on programs that its training never saw."""
