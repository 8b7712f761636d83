"""Strong and weak scaling studies: `mpifed scale`."""
