"""Designs that set knobs: a network trained by PPO, and a table of Q-learning."""
