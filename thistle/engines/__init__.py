"""Where an experiment runs: in this process, as a Ray simulation, or on a deployed federation."""
