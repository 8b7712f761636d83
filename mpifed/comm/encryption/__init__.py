"""Encrypted sums: encryption schemes, packing of integers into plaintexts, and decryption."""
