"""Proving: do a lab's checks tell right from wrong?"""
