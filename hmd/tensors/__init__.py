# SPDX-License-Identifier: MIT
"""Plans of a training step's memory: traces, vitality, memory systems, planners, the simulator.

Takes the kernels and tensors of one step and a memory system; gives moves between tiers and their
price. Planners choose, the simulator prices. Imports nothing of the daemon.
"""
