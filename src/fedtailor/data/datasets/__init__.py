"""Readers of known data sets, and the table of them in :mod:`.known`.

A reader is a module with a function ``load(files: Files) -> Dataset``.
"""
