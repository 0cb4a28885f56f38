"""The data sets with a name: a file in this folder, or an entry in one of them, is all that another one needs."""
