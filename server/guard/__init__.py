"""What a reply must be before a strategy sees it, and what a strategy's aggregate must be afterwards."""
