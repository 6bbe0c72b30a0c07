"""Training environment: episodes of simulated runs, and the knobs that actions set."""
