"""An experiment's settings, plug-ins, random numbers and run folder."""
