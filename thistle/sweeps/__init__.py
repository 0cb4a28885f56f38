"""Sweeps: one file, many runs (cells), one table. `files` reads, `scheduler` runs, `tables` and `pictures` show."""
