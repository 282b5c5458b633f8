"""Intake: collect submissions, read each once, and make them safe to display."""
