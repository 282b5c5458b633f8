"""The capstone's leaderboard: a bundle is run again in a sandbox, and ranked by what it reaches there."""
