"""What a run leaves on disk: metrics, verdicts, checkpoints, the environment, detection."""
