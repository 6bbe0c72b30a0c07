"""Policies in virtual time: the daemon's own code over a recorded stream, clocked by the model."""
