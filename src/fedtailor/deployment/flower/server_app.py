"""Flower's ServerApp: it gives the server's round loop a transport."""

from __future__ import annotations

from functools import partial
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
    serve_app(folder, partial(GridTransport, grid, goodbyes=goodbyes))


server_app = ServerApp()
server_app.main()(main)
