"""Observation: counters over ticks, the snapshot that readers share, Prometheus metrics."""
