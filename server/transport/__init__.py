"""The way to the clients and back: hosts, the cohort grid, one round's messages."""
