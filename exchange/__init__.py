"""What both sides must agree on: settings, randomness, records, cohort packing, the run folder."""
