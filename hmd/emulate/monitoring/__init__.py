"""A real Prometheus, and the Grafana dashboard as queries to it: for tests and pictures."""
