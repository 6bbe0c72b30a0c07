# SPDX-License-Identifier: MIT
"""The tick: sample, heat, decide, migrate, for the daemon, the simulator and the benches alike."""
