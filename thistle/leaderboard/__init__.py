"""`thistle leaderboard`: what `thistle stress` found of each defence becomes an entry, and all entries a page."""
