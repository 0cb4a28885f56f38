"""`thistle verify`: what a run or an entry of the leaderboard claims is run again and compared."""
