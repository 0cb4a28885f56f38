"""One module per command; heavy imports inside."""
