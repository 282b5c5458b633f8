"""Efficient models: numbers of few bits.

formats        number formats of 8 bits and fewer: codes, rounding, blocks that share a scale, packing
quantization   weights and activations of a model in few bits
grammar        text from a seeded grammar of known entropy, which no repository gives away
"""
