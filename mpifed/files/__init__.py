"""The files of a run's folder: their formats, reading and writing."""
