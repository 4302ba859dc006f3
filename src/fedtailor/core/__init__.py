"""Core types, on which everything else builds: algorithm, task, message, federation, keys, trees,
scores, errors.
"""
