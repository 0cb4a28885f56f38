"""What a strategy remembers from round to round: of clients, and for the checkpoint."""
