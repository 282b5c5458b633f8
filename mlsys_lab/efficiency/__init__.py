"""Efficient models: fewer bits, fewer weights, smaller models.

formats        number formats of 8 bits and fewer: codes, rounding, blocks that share a scale, packing
quantization   weights and activations of a model in few bits
fp8            training with products of 8-bit operands
pruning        weights set to 0, or heads, channels and layers removed; what sparse layouts cost
distillation   a small model that learns from a larger one: logits, sequences, layers
embedded       a network as one C file in int8, for a microcontroller
blocks         what the methods share: observe a layer's inputs, convert a model block by block
grammar        text from a seeded grammar of known entropy, which no repository gives away
pretrained     a small language model trained on such text, for lab 13
"""
