#!/usr/bin/env python3
"""torchtext's basic_english, from its list of substitutions, on Python's own str. Bytes that are not UTF-8, and
zeros, are U+FFFD.

    basic_english_reference.py tokens FILE   each line of FILE (ended by byte 0A) as its tokens, one
                                             a line, and an empty line after each line's
    basic_english_reference.py assigned      the code points that this Python's Unicode assigns, as
                                             lines "FIRST LAST"
"""
import re
import sys
import unicodedata

SUBSTITUTIONS = [
    (r"\'", " '  "),
    (r"\"", ""),
    (r"\.", " . "),
    (r"<br \/>", " "),
    (r",", " , "),
    (r"\(", " ( "),
    (r"\)", " ) "),
    (r"\!", " ! "),
    (r"\?", " ? "),
    (r"\;", " "),
    (r"\:", " "),
    (r"\s+", " "),
]


def basic_english(line):
    line = line.lower()
    for pattern, replacement in SUBSTITUTIONS:
        line = re.sub(pattern, replacement, line)
    return line.split()


def print_tokens(path):
    with open(path, "rb") as file:
        lines = file.read().split(b"\n")
    for line in lines[:-1]:
        for token in basic_english(line.decode("utf-8", "replace").replace("\0", "\ufffd")):
            sys.stdout.buffer.write(token.encode() + b"\n")
        sys.stdout.buffer.write(b"\n")


def print_assigned():
    first = None
    for code in range(sys.maxunicode + 2):
        assigned = code <= sys.maxunicode and unicodedata.category(chr(code)) not in ("Cn", "Cs")
        if assigned and first is None:
            first = code
        elif not assigned and first is not None:
            print(f"{first:X} {code - 1:X}")
            first = None


if sys.argv[1] == "tokens":
    print_tokens(sys.argv[2])
else:
    print_assigned()
