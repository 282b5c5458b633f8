"""Tokenization: byte-pair encoding, incremental detokenization and a chat template.

tokenizer    Tokenizer: text to token ids and back, saved as JSON; learn(text, ...) trains one
stream       Stream: text of tokens one by one, in whole characters
detokenizer  Detokenizer: text of a sequence while it is generated, up to a stop string
chat         Message; encode_chat(tokenizer, messages): token ids of a conversation, up to the model's turn

Our own tokenizer rather than the library `tokenizers`: beyond `scaling.text.learn_merges` it needs a page of code that
a reader can follow, and no dependency. The tests compare it with the library, which is much faster on long texts.
"""

from mlsys_lab.inference.text.chat import Message, encode_chat
from mlsys_lab.inference.text.detokenizer import Detokenizer, StopStrings
from mlsys_lab.inference.text.stream import Stream
from mlsys_lab.inference.text.tokenizer import Tokenizer, learn

__all__ = ["Detokenizer", "Message", "StopStrings", "Stream", "Tokenizer", "encode_chat", "learn"]
