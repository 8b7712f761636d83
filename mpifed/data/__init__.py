"""Data: who holds what, the HDF5 files that hold it, and the sources they are made from."""
