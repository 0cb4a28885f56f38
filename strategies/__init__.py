"""How replies become the next model: kernels, steps, the pipeline, the named strategies."""
