"""Partitions, which divide examples among clients. :data:`fedtailor.data.PARTITIONS` lists them by
name.
"""
