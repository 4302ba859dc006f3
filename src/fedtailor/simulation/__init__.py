"""Simulation of a federation on one machine: the round loop, the clients' programs, the engines."""
