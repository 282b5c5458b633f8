"""Collectives built from sends and receives, each by several algorithms, from simple to practical."""
