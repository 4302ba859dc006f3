"""The few names of other projects that the reference links, in the form that Sphinx reads."""

import zlib
from pathlib import Path

ADDRESSES = {
    "numpy": "https://numpy.org/doc/stable/",
    "python": "https://docs.python.org/3/",
    "torch": "https://docs.pytorch.org/docs/stable/",
}
NAMES = {
    "numpy": {"numpy.ndarray": "reference/generated/numpy.ndarray.html#numpy.ndarray"},
    "python": {
        "collections.abc.Callable": "library/collections.abc.html#collections.abc.Callable",
        "collections.abc.Iterable": "library/collections.abc.html#collections.abc.Iterable",
        "collections.abc.Mapping": "library/collections.abc.html#collections.abc.Mapping",
        "collections.abc.Sequence": "library/collections.abc.html#collections.abc.Sequence",
        "pathlib.Path": "library/pathlib.html#pathlib.Path",
    },
    "torch": {
        "torch.Tensor": "tensors.html#torch.Tensor",
        "torch.dtype": "tensor_attributes.html#torch.dtype",
        "torch.nn.Module": "generated/torch.nn.Module.html#torch.nn.Module",
    },
}


def write(path: Path, project: str) -> str:
    """Write the inventory of a project, version 2 of the format, and return its path."""
    head = f"# Sphinx inventory version 2\n# Project: {project}\n# Version:\n"
    head += "# The remainder of this file is compressed using zlib.\n"
    lines = [f"{name} py:class 1 {address} -\n" for name, address in NAMES[project].items()]
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(head.encode() + zlib.compress("".join(lines).encode()))
    return str(path)
