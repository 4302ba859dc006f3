"""Flower's SuperNode, with signs of life every few seconds.

A server takes no second SuperNode with a key while the first one counts as connected: for twice the
interval that it announces. Flower's is half a minute, and no option changes it. A SuperNode that
was killed would be kept out for a minute; with the shortest interval that a server accepts, it is
20 seconds.
"""

from __future__ import annotations

from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL, HEARTBEAT_MIN_INTERVAL
from flwr.supercore import heartbeat
from flwr.supernode import fleet_http_connection
from flwr.supernode.cli import flower_supernode


def main() -> None:
    """Run the SuperNode."""
    for module in (heartbeat, fleet_http_connection):
        is_known = module.HEARTBEAT_DEFAULT_INTERVAL == HEARTBEAT_DEFAULT_INTERVAL
        assert is_known, "this version of Flower takes the interval from another place"
        module.HEARTBEAT_DEFAULT_INTERVAL = HEARTBEAT_MIN_INTERVAL

    flower_supernode()


if __name__ == "__main__":
    main()
