"""Efficient models: numbers of few bits.

formats      number formats of 8 bits and fewer: codes, rounding, blocks that share a scale, packing
"""
