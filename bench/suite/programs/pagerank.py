# SPDX-License-Identifier: MIT
"""PageRank of an edge list with igraph: ``pagerank.py EDGES``. Ranks must add up to 1."""

import sys

import igraph

graph = igraph.Graph.Read_Edgelist(sys.argv[1], directed=True)
sums = [sum(graph.pagerank(damping=damping)) for damping in (0.85, 0.95)]
print("pagerank", "verified" if all(abs(total - 1) < 1e-6 for total in sums) else "WRONG")
