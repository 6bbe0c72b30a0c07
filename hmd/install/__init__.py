"""hmd as a service of this machine: what has to be there, and what would change.

Takes the files that hmd ships and where the machine has its own; gives a plan that can be shown,
carried out and undone. Imported by the command line alone.
"""
