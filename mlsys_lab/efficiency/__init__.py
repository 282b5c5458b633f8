"""Efficient models: numbers of few bits.

formats        number formats of 8 bits and fewer: codes, rounding, blocks that share a scale, packing
quantization   weights and activations of a model in few bits
pruning        weights set to 0, or heads, channels and layers removed; what sparse layouts cost
blocks         what the methods share: observe a layer's inputs, convert a model block by block
grammar        text from a seeded grammar of known entropy, which no repository gives away
"""
