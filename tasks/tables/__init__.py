"""Rows instead of images: `read` makes a table of a file, `scheme` values of its rows, `agree` one scheme for all."""
