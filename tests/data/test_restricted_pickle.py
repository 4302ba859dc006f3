"""Hostile and damaged pickles: refused by name, nothing is run."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtailor.core.errors import DataError
from fedtailor.data.readers.restricted_pickle import read_pickle

PATH = Path("folder/data_batch_1")


class Reduce:
    """Pickles as a call of a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call


def refusal(raw: bytes) -> str:
    with pytest.raises(DataError) as caught:
        read_pickle(raw, PATH)
    assert caught.value.path == str(PATH) and str(PATH) in caught.value.message
    return caught.value.message


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_call_is_refused_and_never_made(tmp_path: Path, protocol: int) -> None:
    victim = tmp_path / "created"
    raw = pickle.dumps({"data": Reduce(os.system, f"touch {victim}")}, protocol=protocol)
    assert f"'{os.name}.system'" in refusal(raw)
    assert not victim.exists()


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (eval, "eval"),
        (Reduce(getattr, "text", "upper"), "getattr"),
        (Reduce(np.load, "x"), "numpy.load"),
        (np.float64(1), "scalar"),
        (PATH, "Path"),
    ],
)
def test_other_names_are_refused(value: object, name: str) -> None:
    message = refusal(pickle.dumps({"data": value}))
    assert "refused" in message and name in message


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_arrays_of_objects_are_refused(protocol: int) -> None:
    raw = pickle.dumps({"data": np.array([1, "a", None], dtype=object)}, protocol=protocol)
    assert "an array of type 'object'" in refusal(raw)


@pytest.mark.parametrize(
    "kind", [np.dtype([("a", "O")]), np.dtype("f8"), np.dtype("U3"), np.dtype("M8[s]")]
)
def test_arrays_of_anything_but_whole_numbers_are_refused(kind: np.dtype[Any]) -> None:
    assert "an array of type" in refusal(pickle.dumps({"data": np.zeros(2, kind)}, protocol=2))


@pytest.mark.parametrize("kind", ["<i8", ">i4", "u1", "<u2"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_whole_numbers_come_back(kind: str, order: Any) -> None:
    array = np.asarray(np.arange(12).reshape(3, 4), dtype=kind, order=order)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        read = read_pickle(pickle.dumps({"data": array}, protocol=protocol), PATH)["data"]
        assert read.dtype == array.dtype
        np.testing.assert_array_equal(read, array)


# The parts of a pickle by hand: a dtype u1, and an array of it with another state.
TYPE = b"cnumpy\ndtype\n(X\x02\x00\x00\x00u1I0\nI1\ntR"
ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntC\x01btR"


@pytest.mark.parametrize(
    "raw",
    [
        b"\x80\x02}X\x04\x00\x00\x00data"
        + ARRAY
        + b"(I1\n(I9\nt"
        + TYPE
        + b"I00\nC\x01atbs.",  # 9 values, 1 byte
        b"\x80\x02}X\x04\x00\x00\x00data" + ARRAY + b"(I1\n(I1\ntNI00\nC\x01atbs.",  # no type
        b"\x80\x02}X\x04\x00\x00\x00datacnumpy\ndtype\n}X\x08\x00\x00\x00__init__Nsbs.",  # change of a class
        b"\x80\x02}X\x04\x00\x00\x00datacnumpy.core.multiarray\n_reconstruct\n}bs.",  # change of a function
        b"\x80\x02}X\x04\x00\x00\x00datac_codecs\nencode\nN}X\x09\x00\x00\x00from_bytesNs\x86bs.",  # the same, by slots
        b"\x80\x02}X\x04\x00\x00\x00datacnumpy\ndtype\n)\x81s.",  # a type that was never made
        b"\x80\x02}X\x04\x00\x00\x00data"
        + ARRAY
        + b"(I1\n(I1\nt"
        + ARRAY
        + b"I00\nC\x01atbs.",  # an array as a type
        b"\x80\x02}X\x04\x00\x00\x00data"
        + ARRAY
        + b"(I1\n(L99999999999999999999L\nt"
        + TYPE
        + b"I00\nC\x01atbs.",
        b"\x80\x02}X\x04\x00\x00\x00datac_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00utf16\x86Rs.",
        b"\x80\x02]r\xff\xff\xff\xff.",  # a memo number that would allocate 64 GB
        b"\x80\x02]p99999999999\n.",  # the same in text
        b"\x80\x04B\xff\xff\xff\xffab.",  # bytes of 4 GB
        b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x00ab.",  # bytes of 64 PB
        b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x00ab.",  # a text of 64 PB
        b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x00ab.",  # a bytearray of 64 PB
        b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x00ab.",  # a frame of 64 PB
        b"\x80\x02\x8b\xff\xff\xff\x7fab.",  # a number of 2 GB
        b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",  # deep nesting, of a list
        b"\x80\x02}X\x04\x00\x00\x00datacnumpy\nndarray\ns.",  # a class as a value
        b"\x80\x02Pabc\n.",  # persistent id
        b"\x80\x02\x82\x01.",  # extension code
        b"\x80\x02]}]Ns.",  # a list as a key
        pickle.dumps([1, 2]),
        pickle.dumps({"data": np.arange(5)})[:-7],
        b"not a pickle",
        b"",
    ],
)
def test_damaged_pickles_are_refused(raw: bytes) -> None:
    assert "expected" in refusal(raw)
