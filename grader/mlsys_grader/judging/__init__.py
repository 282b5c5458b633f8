"""Judging: verdicts, formed outside the sandbox from what comes out of it."""
