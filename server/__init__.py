"""The ServerApp: the round loop, guard, cohort grid, evaluation, recorder, checkpoints."""
