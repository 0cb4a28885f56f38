"""The ClientApps: honest, malicious and calibrated training, and the dispatcher that hosts them."""
