"""DAMON of the running kernel: its sysfs tree, its threads, and who owns them."""
