"""The papers' tables: their experiments, records and comparison."""
