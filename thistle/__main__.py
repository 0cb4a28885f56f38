"""`python -m thistle`."""

from thistle.cli import main

main()
