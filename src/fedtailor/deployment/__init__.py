"""Training across real sites: messages, supervised processes, keys, and the transport over
Flower.
"""
