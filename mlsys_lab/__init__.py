"""Reference package of the course: everything the labs teach, each topic in one place."""
