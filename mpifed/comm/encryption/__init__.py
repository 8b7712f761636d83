"""Encrypted sums: schemes, how integers fit into their plaintexts, and who opens."""
