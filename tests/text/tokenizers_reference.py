#!/usr/bin/env python3
"""tokenizers_reference.py TOKENIZER TEXT: the ids that Hugging Face's library tokenizers gives each line of TEXT (ended
by byte 0A), as a line of numbers. Bytes that are not UTF-8 are U+FFFD."""
import sys

from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file(sys.argv[1])
with open(sys.argv[2], "rb") as file:
    lines = file.read().split(b"\n")[:-1]
for encoded in tokenizer.encode_batch([line.decode("utf-8", "replace") for line in lines]):
    print(*encoded.ids)
