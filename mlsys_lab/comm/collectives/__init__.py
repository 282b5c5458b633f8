"""Collectives made of sends and receives only, each in several forms from the plainest to those used in practice."""
