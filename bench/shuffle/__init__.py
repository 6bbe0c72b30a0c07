# SPDX-License-Identifier: MIT
"""Partial-exchange shuffling (``hmd.torch.shuffle``) measured: ``python -m bench.shuffle.measure``.

``simulated_workers`` runs any number of workers in one process, ``training`` trains small networks
on data sets that packages ship, ``measure`` runs both and real processes, and writes the results.
"""
