"""Tokenization: byte-pair encoding, incremental detokenization and a chat template.

tokenizer    Tokenizer: text to token ids and back, saved as JSON; learn(text, ...) trains one
stream       Stream: text of tokens one by one, in whole characters
detokenizer  Detokenizer: text of a sequence while it is generated, up to a stop string
chat         encode_chat(tokenizer, messages): token ids of a conversation, up to the model's turn; BookTokenizer
interface    Message; ChatTokenizer: what a server needs of a model's tokenizer
loading      load_tokenizer(folder): a ChatTokenizer, the course's or of a Hugging Face folder
huggingface  HuggingFaceTokenizer: tokenizer.json and chat templates of published models

Our own tokenizer rather than the library `tokenizers`: beyond `scaling.text.learn_merges` it needs a page of code that
a reader can follow, and no dependency. The tests compare it with the library, which is much faster on long texts.
"""

from mlsys_lab.inference.text.chat import BookTokenizer, encode_chat
from mlsys_lab.inference.text.detokenizer import Detokenizer, StopStrings
from mlsys_lab.inference.text.interface import ChatTokenizer, Message
from mlsys_lab.inference.text.loading import load_tokenizer
from mlsys_lab.inference.text.stream import Stream
from mlsys_lab.inference.text.tokenizer import Tokenizer, learn

__all__ = [
    "BookTokenizer", "ChatTokenizer", "Detokenizer", "Message", "StopStrings", "Stream", "Tokenizer", "encode_chat",
    "learn", "load_tokenizer",
]  # fmt: skip
