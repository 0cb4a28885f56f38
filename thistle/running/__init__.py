"""From what a person types to a run that is carried out: prepare ▶ dry_run ▶ forecast ▶ launch."""
