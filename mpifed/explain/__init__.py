"""`mpifed explain`: every name, key, column and exit code, with its meaning."""
