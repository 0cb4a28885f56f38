"""Sweeps: one file, many runs (cells), one table. `files` reads, `crew` runs, `tables` and `pictures` show."""
