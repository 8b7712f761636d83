"""Functions of arrays: no clients, no server, no files; NumPy and CuPy alike."""
