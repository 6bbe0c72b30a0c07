"""Planners of training steps, compared."""
