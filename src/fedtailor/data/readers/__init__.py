"""Readers of file formats that known data sets use."""
