"""NUMA nodes: topology, tiers, free memory, zones and memory blocks."""
