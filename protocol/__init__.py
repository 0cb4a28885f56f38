"""What server and clients must agree on: models as records and vectors, factors, cohorts, verdicts."""
