"""Small checkpoints as the library `transformers` saves them: random weights, trained tokenizers."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

TEXT = ["The cache holds keys and values.", "naïve café, 100 %! 你好", "What is a cache?\n\n  It saves work."] * 20
CHATML = (
    "{% if tools %}{{ '<|im_start|>system' }}{% for tool in tools %}{{ '\\n' + (tool | tojson) }}{% endfor %}"
    "{{ '<|im_end|>\\n' }}{% endif %}{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] }}{% for call in message.tool_calls or [] %}"
    "{{ '<tool_call>' + call.function.name + (call.function.arguments | tojson) + '</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
LLAMA_CHAT = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system messages') }}{% endif %}{{ bos_token }}"
    "{% for message in messages %}[INST] {{ message['content'] | trim }} [/INST]{% endfor %}"
)
SIZES = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128,
}  # fmt: skip


def save_qwen(folder: Path, *, seed: int = 0, context: int = 128, padding: int = 0) -> Path:
    """A Qwen 2 of byte-level BPE, with ChatML, which describes tools, and two stop tokens.

    `padding` is the number of logits beyond the tokenizer's vocabulary.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(TEXT, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.chat_template = CHATML
    fast.save_pretrained(folder)
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(fast) + padding,
        tie_word_embeddings=True,
        eos_token_id=None,
        **SIZES | {"max_position_embeddings": context},
    )
    model = Qwen2ForCausalLM(config).eval()
    model.generation_config.eos_token_id = [
        fast.convert_tokens_to_ids(name) for name in ("<|im_end|>", "<|endoftext|>")
    ]
    model.save_pretrained(folder)
    return folder


def save_llama(folder: Path) -> Path:
    """A LLaMA with SentencePiece's conventions: a token at the start, spaces as ▁, bytes as tokens."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer.train_from_iterator(TEXT[:1], trainers.BpeTrainer(vocab_size=400, special_tokens=special))
    document = json.loads(tokenizer.to_str())
    document["added_tokens"] = document["added_tokens"][:3]  # bytes are plain tokens of the vocabulary
    tokenizer = Tokenizer.from_str(json.dumps(document))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    fast.chat_template = LLAMA_CHAT
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(vocab_size=len(fast), eos_token_id=2, **SIZES)).eval().save_pretrained(folder)
    return folder
