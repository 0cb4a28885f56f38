"""One file per rule: its name, its paper, its settings and what it computes."""
