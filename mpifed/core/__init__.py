"""The vocabulary: records, blocks, rounds, exchanges. Needs NumPy alone."""
