"""Poisoning (what malicious clients do), evasion (adversarial examples), stress (the search for the worst attack)."""
