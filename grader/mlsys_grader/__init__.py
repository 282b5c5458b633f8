"""The instructor's side: release, collect, judge, feedback, export."""
