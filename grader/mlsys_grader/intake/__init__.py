"""Intake: what students hand in, collected, read once, and made fit to be shown."""
