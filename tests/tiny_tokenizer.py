"""A byte-level tokenizer and chat template, made on the spot, without torch."""

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from proto.detokenizer import BYTES
from proto.prefixlb.v1.replica_pb2 import TextRules
from proto.text import TextCodec

SPECIAL = ("<|start|>", "<|end|>")
MERGES = (("t", "h"), ("th", "e"), ("i", "n"))
CHAT_TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message.role }}: {{ message.content }}<|end|>"
    "{% endfor %}<|start|>assistant: "
)


def tiny_codec(chat_template: str = CHAT_TEMPLATE) -> TextCodec:
    texts = [*SPECIAL, *BYTES, *("".join(merge) for merge in MERGES)]
    vocabulary = {text: place for place, text in enumerate(texts)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[*MERGES]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    return TextCodec(tokenizer.to_str().encode(), TextRules(chat_template=chat_template))
