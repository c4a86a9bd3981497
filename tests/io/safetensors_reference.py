"""The reference implementation's side of test_safetensors_python.c.

write PATH           writes a file of known tensors
check PATH           exits with 0 if PATH holds the tensors that the C side wrote
judge DIRECTORY SEED writes damaged files and, in `verdicts`, a line `NAME accepted|refused` for
                     each, as the reference implementation judges it
"""

import json
import random
import struct
import sys

import numpy
import safetensors
import safetensors.numpy


def write(path):
    w = numpy.arange(6, dtype=numpy.float32).reshape(2, 3) / 4
    tensors = {
        "w": ("float32", w),
        "d": ("float64", numpy.array([1 / 3, -2.5])),
        "i": ("int32", numpy.array([-1, 2**31 - 1], dtype=numpy.int32)),
        "l": ("int64", numpy.array(-(2**63))),
        "b": ("bfloat16", (w.view(numpy.uint32) >> 16).astype(numpy.uint16)),
        "h": ("float16", numpy.array([1.5], dtype=numpy.float16)),
        "none": ("float32", numpy.zeros((0, 4), dtype=numpy.float32)),
        "grüße": ("float32", numpy.array([7], dtype=numpy.float32)),
    }
    described = {
        name: safetensors.TensorSpec(
            dtype=dtype, shape=array.shape, data_ptr=array.ctypes.data, data_len=array.nbytes
        )
        for name, (dtype, array) in tensors.items()
    }
    with open(path, "wb") as file:
        file.write(safetensors.serialize(described, metadata={"format": "pt", "ä": "ö\n"}))


def check(path):
    with safetensors.safe_open(path, framework="numpy") as file:
        assert file.metadata() == {"format": "pt", "note": 'quotes " and \\ and é'}, file.metadata()
    tensors = safetensors.numpy.load_file(path)
    assert set(tensors) == {"w", "l", "none", 'a "name"\n'}, set(tensors)
    assert tensors["w"].dtype == numpy.float32
    assert (tensors["w"] == numpy.array([[0.5, 1.5, 2.5], [3.5, 4.5, 5.5]])).all()
    assert tensors["l"].dtype == numpy.int64
    assert tensors["l"].shape == () and tensors["l"] == -(2**63)
    assert tensors["none"].shape == (3, 0)
    assert (tensors['a "name"\n'] == numpy.array([7, 8], dtype=numpy.int32)).all()


def damaged(draw):
    """A header of a few tensors that fit together, with one thing changed, and data bytes."""
    header, end = {}, 0
    widths = {"F32": 4, "F64": 8, "I32": 4, "I64": 8, "BF16": 2, "F16": 2, "U8": 1, "BOOL": 1}
    for i in range(draw.randrange(4)):
        dtype = draw.choice(list(widths))
        shape = [draw.randrange(4) for _ in range(draw.randrange(4))]
        size = int(numpy.prod(shape, dtype=numpy.int64)) * widths[dtype]
        header[f"t{i}"] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    if draw.random() < 0.3:
        header["__metadata__"] = draw.choice([{}, {"a": "b"}, {"a": 1}, [], "x"])
    tensors = [value for name, value in header.items() if name != "__metadata__"]
    if tensors and draw.random() < 0.5:
        tensor = draw.choice(tensors)
        key = draw.choice(list(tensor))
        if key == "dtype":
            tensor[key] = draw.choice(list(widths) + ["F31", "", 4, None])
        elif tensor[key]:
            values = [0, 1, 2, 4, 8, 2**31, 2**62, -1, 1.5, "1", None]
            tensor[key][draw.randrange(len(tensor[key]))] = draw.choice(values)
        if draw.random() < 0.1:
            del tensor[key]
    text = bytearray(json.dumps(header).encode())
    if draw.random() < 0.4:
        text[draw.randrange(len(text))] = draw.randrange(256)
    extra = draw.choice([0, 0, 0, 0, 1, -1])
    return bytes(text), bytes(max(0, end + extra))


def without_duplicates(pairs):
    if len({key for key, _ in pairs}) != len(pairs):
        raise ValueError("duplicate key")
    return dict(pairs)


def comparable(text):
    """Whether sluice means to judge this header as the reference does: it is stricter with names
    that occur twice and with white space before the header, and jansson reads -0 as a number."""
    try:
        json.loads(text, object_pairs_hook=without_duplicates)
    except ValueError as error:
        return "duplicate key" not in str(error)
    return text.startswith(b"{") and b"-0" not in text


def judge(directory, seed):
    draw = random.Random(int(seed))
    with open(f"{directory}/verdicts", "w") as verdicts:
        for i in range(400):
            text, data = damaged(draw)
            if not comparable(text):
                continue
            length = len(text) + draw.choice([0] * 15 + [-1, 1, 1000])
            content = struct.pack("<Q", max(0, length)) + text + data
            try:
                safetensors.deserialize(content)
                verdict = "accepted"
            except safetensors.SafetensorError:
                verdict = "refused"
            with open(f"{directory}/{i}", "wb") as file:
                file.write(content)
            verdicts.write(f"{i} {verdict}\n")


if __name__ == "__main__":
    {"write": write, "check": check, "judge": judge}[sys.argv[1]](*sys.argv[2:])
