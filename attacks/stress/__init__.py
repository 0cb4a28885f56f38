"""The search for the worst attack: what is tried (`suite`), and who goes on to longer runs (`halving`)."""
