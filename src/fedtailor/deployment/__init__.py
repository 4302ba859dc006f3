"""Training across real sites.

Messages, supervised processes, keys, and the transport over Flower.
"""
