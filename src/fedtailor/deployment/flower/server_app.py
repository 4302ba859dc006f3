"""Flower's ServerApp: it gives the server's round loop a transport."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedtailor.deployment.flower.goodbyes import GOODBYES_FILE, Goodbyes
from fedtailor.deployment.flower.transport import GridTransport
from fedtailor.deployment.options import FLOWER_FOLDER


def main(grid: Grid, context: Context) -> None:
    """Run the rounds of the folder that the run's configuration names."""
    from fedtailor.deployment.server import serve_app

    folder = Path(str(context.run_config["folder"]))
    goodbyes = Goodbyes(folder / FLOWER_FOLDER / GOODBYES_FILE)

    def transport(node_of: Mapping[int, int]) -> GridTransport:
        return GridTransport(grid, node_of, goodbyes)

    serve_app(folder, transport)


server_app = ServerApp()
server_app.main()(main)
