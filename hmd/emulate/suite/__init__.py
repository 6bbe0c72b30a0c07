"""The suite: real programs with different memory habits, on which hmd's models are judged."""
