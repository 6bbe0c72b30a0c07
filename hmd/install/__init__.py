"""Installation of hmd as a systemd service: which files and commands that takes.

Takes the files that hmd ships and the machine's own; gives changes that can be shown, applied and
reverted. Only the command line imports it.
"""
