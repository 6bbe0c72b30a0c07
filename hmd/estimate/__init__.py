"""The runtime estimator: how long a program takes with its pages placed otherwise."""
