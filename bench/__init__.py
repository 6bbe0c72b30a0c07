# SPDX-License-Identifier: MIT
"""Measurements of hmd, outside the package: run them in a checkout, as ``python -m bench.NAME``.

Modules here measure hmd's own costs. ``bench.suite`` evaluates the estimator and the samplers on
real programs, ``bench.compare`` compares hmd with other tiering systems in the emulated machine,
``bench.monitoring`` runs a real Prometheus server. hmd imports none of them.
"""
