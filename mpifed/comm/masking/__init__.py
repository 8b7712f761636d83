"""Masked sums: masks of pairs, on a graph, and what opens a sum without those who left."""
