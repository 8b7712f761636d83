"""Jobs: from a TOML file, or a table, to checked settings and the objects that they name."""
