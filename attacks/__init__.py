"""Poisoning (what a malicious client does to its update or data) and evasion (adversarial examples)."""
