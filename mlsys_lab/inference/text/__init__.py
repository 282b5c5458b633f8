"""Text in and out of a language model: bytes merged in pairs, pieces that are whole characters, conversations.

tokenizer    Tokenizer: encode text into token ids, decode ids into text; saved as JSON; learn(text, ...) makes one
stream       Stream: text of tokens as they come, never half a character
detokenizer  Detokenizer: text of a sequence while it is generated, up to a stop string
chat         Message; encode_chat(tokenizer, messages): token ids of a conversation, up to where the model answers

A tokenizer of our own, in place of the library `tokenizers`: all that it needs beyond `scaling.text.learn_merges` is a
page of code that a reader can follow, and nothing more has to be installed to run a model. The library, which is much
faster on long texts, is what the tests hold it against.
"""

from mlsys_lab.inference.text.chat import Message, encode_chat
from mlsys_lab.inference.text.detokenizer import Detokenizer, StopStrings
from mlsys_lab.inference.text.stream import Stream
from mlsys_lab.inference.text.tokenizer import Tokenizer, learn

__all__ = ["Detokenizer", "Message", "StopStrings", "Stream", "Tokenizer", "encode_chat", "learn"]
