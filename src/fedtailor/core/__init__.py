"""The core: trees, keys, tasks, messages, the algorithm base, building blocks and the round loop."""
