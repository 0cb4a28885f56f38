"""How replies become the next model: aggregators, steps, the pipeline, the named strategies."""
