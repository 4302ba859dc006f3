"""Partitions: who has which example. The names are in :data:`fedtailor.data.PARTITIONS`."""
