"""Arrays in HDF5 files: the same data as in NumPy's archives, and nothing from elsewhere."""

import numpy as np
import pytest

from fedtailor.data.options import DataOptions
from fedtailor.data.own.read import load_own

h5py = pytest.importorskip("h5py")

X = np.linspace(0, 1, 40, dtype=np.float32).reshape(10, 4)
Y = np.arange(10) % 2


def load(folder):
    return load_own(str(folder), DataOptions(path=str(folder), kind="features"))


def kind_of_problem(folder):
    with pytest.raises(Exception) as caught:
        load(folder)
    return str(caught.value)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "Oslo").mkdir()
    return tmp_path


def test_sites_have_the_data_of_archives(folder):
    np.savez(folder / "Oslo" / "train.npz", x=X, y=Y, class_names=np.array(["no", "yes"]))
    expected = load(folder)
    (folder / "Oslo" / "train.npz").unlink()
    with h5py.File(folder / "Oslo" / "train.h5", "w") as file:
        file.create_dataset("x", data=X, compression="gzip")
        file["y"] = Y
        file["class_names"] = ["no", "yes"]

    found = load(folder)
    np.testing.assert_array_equal(found.x, expected.x)
    np.testing.assert_array_equal(found.y, expected.y)
    assert found.class_names == ("no", "yes")
    assert found.domain_names == ("Oslo",)


def test_two_files_of_a_part_are_refused(folder):
    np.savez(folder / "Oslo" / "train.npz", x=X, y=Y)
    with h5py.File(folder / "Oslo" / "train.h5", "w") as file:
        file["x"] = X
        file["y"] = Y

    assert "keep one of the two" in kind_of_problem(folder)


@pytest.mark.parametrize("how", ["link", "external", "virtual", "group"])
def test_nothing_is_read_from_elsewhere(folder, how):
    other = folder.parent / "secret.h5"
    with h5py.File(other, "w") as file:
        file["x"] = X

    (folder.parent / "secret.bin").write_bytes(X.tobytes())
    with h5py.File(folder / "Oslo" / "train.h5", "w") as file:
        file["y"] = Y
        if how == "link":
            file["x"] = h5py.ExternalLink(str(other), "x")
        elif how == "external":
            parts = [(str(folder.parent / "secret.bin"), 0, X.nbytes)]
            file.create_dataset("x", X.shape, X.dtype, external=parts)
        elif how == "virtual":
            layout = h5py.VirtualLayout(X.shape, X.dtype)
            layout[:] = h5py.VirtualSource(str(other), "x", X.shape)
            file.create_virtual_dataset("x", layout)
        else:
            file.create_group("x")

    assert "lies in another file" in kind_of_problem(folder)


@pytest.mark.parametrize("content", [b"", b"no HDF5", b"\x89HDF\r\n\x1a\n" + bytes(200)])
def test_damaged_files_are_refused(folder, content):
    (folder / "Oslo" / "train.h5").write_bytes(content)
    assert "cannot be read" in kind_of_problem(folder)


def test_sizes_are_checked_before_anything_is_read(folder):
    with h5py.File(folder / "Oslo" / "train.h5", "w") as file:
        file.create_dataset("x", (2**21, 2**10), np.float64, chunks=True, compression="gzip")
        file["y"] = Y

    assert "at most" in kind_of_problem(folder)
