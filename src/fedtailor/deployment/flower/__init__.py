"""Flower as the transport: the only modules that import ``flwr``, or start its programs."""
