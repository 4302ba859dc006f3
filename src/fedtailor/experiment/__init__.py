"""Experiments: configuration, assembly, run folders and records."""
