"""The gradebook: records of verdicts, nbgrader's database, backups, the audit log."""
