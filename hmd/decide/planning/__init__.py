"""From pages that are wanted on a node to a plan within limits: room, order, phases."""
