"""Telling: Prometheus metrics, the status socket, service notification."""
