"""Release: build the student notebooks from solutions/."""
