"""What is measured, and how: each file runs by itself."""
