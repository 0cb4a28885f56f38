"""What pyproject.toml and the documents say of settings and strategies, made from the code: `make generate`.

`words`: a type in words. `rows`: a setting as a row of a table. `parts`: everything that is generated. `documents`:
where it goes.
"""
