"""Grading: a batch of submissions led through all rooms, judged again, or judged in shards and merged."""
