"""A tokenizer of sluice, opened once for many texts: a process of tokenizer_driver, which is beside the program."""
import os
import subprocess
from array import array


class OwnTokenizer:
    """OwnTokenizer(PROGRAM, TOKENIZER [, SPLITTER]), as a context."""

    def __init__(self, program, *words):
        driver = os.path.join(os.path.dirname(program), "..", "tests", "tokenizer_driver")
        self.process = subprocess.Popen([driver, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()

    def _ask(self, request, count, data, element_bytes):
        self.process.stdin.write(f"{request} {count}\n".encode() + data)
        self.process.stdin.flush()
        return self.process.stdout.read(int(self.process.stdout.readline()) * element_bytes)

    def encode(self, text, special=False):
        """The ids of a text; with `special` those of special tokens in it, and around it."""
        data = text.encode()
        return array("i", self._ask("special" if special else "encode", len(data), data, 4)).tolist()

    def decode(self, ids):
        """The bytes of ids."""
        return self._ask("decode", len(ids), array("i", ids).tobytes(), 1)
