"""A site that behaves as a file says, see ``BAD``: python resident_site.py FOLDER is its resident
process.

``FOLDER/behaves.json`` names what is wrong with the answer to a round of training, by the number of
the round. ``FOLDER/version.txt`` gives the site another version of fedtailor.
"""

import json
import sys
from pathlib import Path

import torch

import fedtailor
from fedtailor.core.codec import decode, encode
from fedtailor.deployment.envelope import Envelope

version = Path(sys.argv[1]) / "version.txt"
if version.exists():  # before the modules are imported that copy it
    fedtailor.__version__ = version.read_text()

from fedtailor.deployment import resident, site  # noqa: E402


def with_upload(change):
    """Return a change of the first tensor of an upload."""

    def apply(answer):
        out = decode(answer.blobs["out"], modules={"fedtailor"})
        fields = out["upload"]["values"]
        tensors = next(iter(fields.values()))
        path = next(iter(tensors))
        tensors[path] = change(tensors[path])
        return Envelope(answer.head, {"out": encode(out)})

    return apply


def poked(tensor):
    """Return a tensor with a number that is none."""
    tensor = tensor.clone()
    tensor.flatten()[0] = torch.nan
    return tensor


BAD = {
    "nan": with_upload(poked),
    "another shape": with_upload(lambda tensor: tensor.new_zeros(3, 3, 3)),
    "garbage": lambda answer: Envelope(answer.head, {"out": b"garbage" * 1000}),
    "another round": lambda answer: Envelope(
        {**answer.head, "round": answer.head["round"] - 1}, answer.blobs
    ),
    "failed": lambda answer: Envelope({"failed": "the process does not answer"}),
}


def misbehaving(answer, path):
    """Return a function that answers as a site, but for what a file says."""

    def changed(request):
        given = answer(request)
        if request.head.get("kind") != "train" or not path.exists():
            return given
        kind = json.loads(path.read_text()).get(str(request.head["round"]))
        return BAD[kind](given) if kind else given

    return changed


def open_misbehaving(folder):
    """Return a site that behaves as its file says."""
    opened = site_of(folder)
    opened.answer = misbehaving(opened.answer, folder / "behaves.json")
    return opened


site_of = site.DeployedSite
site.DeployedSite = open_misbehaving
resident.main()
