"""The command ``fedtailor export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fedtailor.cli.options import Json, NewFolder, switch, text_option
from fedtailor.cli.predict import RunPath, RunSeed
from fedtailor.cli.shell import print_json
from fedtailor.core.errors import UsageError


def export(
    run: RunPath,
    format: Annotated[str, text_option("NAME", "onnx, torch-export or safetensors.")],
    out: NewFolder,
    client: Annotated[str, text_option("NAME", "Name or number of the client.")] = "",
    all_: Annotated[bool, switch("--all", "Export the models of all clients.")] = False,
    with_examples: Annotated[
        bool,
        switch(
            "--with-examples",
            "Allow files that hold features of a client's training examples (kNN-Per).",
        ),
    ] = False,
    seed: RunSeed = None,
    json: Json = False,
) -> None:
    """Write personal models for other programs.

    Each has a card that says what goes in and what comes out.
    """
    if bool(client) == all_:
        raise UsageError("give either --client NAME or --all.", key="--client")

    from fedtailor.cli.show.console import say
    from fedtailor.serving.export import card_path, export_model
    from fedtailor.serving.run import load

    loaded = load(run)
    loaded = loaded if seed is None else loaded.seed(seed)
    names = loaded.clients.names if all_ else [client]
    written = []

    for name in names:
        path = export_model(loaded.model(name), Path(out), format, with_examples=with_examples)
        written.append({"client": name, "file": str(path), "card": str(card_path(path))})
        if not json:
            say(f"{name}: {path}")

    if json:
        print_json({"exported": written})
