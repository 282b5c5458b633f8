"""Serving a language model: caches of keys and values, generation, and speculative decoding."""
