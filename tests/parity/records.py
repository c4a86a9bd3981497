"""Runs a driver program beside PyTorch: tensors go in and come out as records (driver.h)."""

import os
import subprocess

import numpy

DTYPES = {"f32": numpy.float32, "f64": numpy.float64, "i32": numpy.int32}
NAMES = {numpy.dtype(dtype): name for name, dtype in DTYPES.items()}


def pack(tensors):
    """The bytes of a dictionary of numpy arrays."""
    parts = []
    for name, array in tensors.items():
        array = numpy.ascontiguousarray(array)
        sizes = "".join(f" {size}" for size in array.shape)
        parts.append(f"{name} {NAMES[array.dtype]}{sizes}\n".encode())
        parts.append(array.tobytes())
    return b"".join(parts)


def unpack(data):
    """The dictionary of numpy arrays that bytes hold."""
    tensors, at = {}, 0
    while at < len(data):
        end = data.index(b"\n", at)
        name, dtype, *sizes = data[at:end].decode().split(" ")
        shape = tuple(int(size) for size in sizes)
        count = int(numpy.prod(shape))
        tensors[name] = numpy.frombuffer(data, DTYPES[dtype], count, end + 1).reshape(shape)
        at = end + 1 + count * numpy.dtype(DTYPES[dtype]).itemsize
    return tensors


def run_driver(program, arguments, tensors):
    """What build/tests/PROGRAM writes for these arguments and records."""
    path = os.path.join(os.environ["SLUICE_BINARY_DIR"], "tests", program)
    done = subprocess.run([path, *arguments], input=pack(tensors), capture_output=True)
    if done.returncode:
        raise AssertionError(f"{program} {' '.join(arguments)}: {done.stderr.decode()}")
    return unpack(done.stdout)


def distance(got, expected):
    """||got - expected|| / ||expected||, or ||got - expected|| where expected is 0."""
    got, expected = numpy.asarray(got, numpy.float64), numpy.asarray(expected, numpy.float64)
    if got.shape != expected.shape:
        raise AssertionError(f"shape {got.shape} where {expected.shape} was expected")
    size = numpy.linalg.norm(expected)
    return numpy.linalg.norm(got - expected) / (size if size else 1.0)
