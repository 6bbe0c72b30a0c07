"""hmd beside what a user would take instead, in the emulated machine: programs, ratios, systems."""
