"""Serving a language model: a small core, and extras that build on it.

engine        the core: paged KV cache, continuous batching, prefix caching, sampling
cache         KV caches of every layout: contiguous, sliding window, paged with copy-on-write; 8-bit
generate      generation on any cache without a scheduler; beam search
speculative   speculative decoding: drafters, verification, trees; in the engine
structured    outputs limited to a grammar or a JSON schema
adapters      LoRA adapters: many fine-tuned models in one batch
swap          preemption by swapping to host memory
streaming     streams of single requests
server        the engine behind an HTTP API compatible with OpenAI's
simulator     the engine's scheduler against a clock: TTFT, TPOT, goodput of a load; capacity planning
text          byte-pair tokenizer, incremental detokenization, stop strings, chat template
pretrained    two small models trained on this book, and their tokenizer
"""
