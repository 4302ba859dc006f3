"""Readers of the files of known data sets."""
