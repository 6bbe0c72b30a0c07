# SPDX-License-Identifier: MIT
"""A real Prometheus server, and the queries of hmd's Grafana dashboard; for tests and figures."""
