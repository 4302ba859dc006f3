"""The table of limits: the most that a message may hold, checked before anything grows with it.

A site sends what it wants. Its message is read in this order, and each step is bounded by the one
before: bytes, values of the JSON text, header of the tensors, shapes, numbers.
"""

LARGEST_HEAD = 8 * 1024**2
"""Bytes of the JSON text of a message."""

MOST_HEAD_VALUES = 2**20
"""Values of that text, in objects and lists."""

LONGEST_TEXT = 2000
"""Characters of one text in it, such as the name of a column."""

LARGEST_FRAME = 2 * 1024**3 - 1
"""Bytes of a whole message, and so of one blob. Flower's protobuf messages end there too."""

LARGEST_TREE_HEADER = 4 * 1024**2
"""Bytes of the names, shapes and structure of a tree of tensors."""

MOST_LEAVES = 2**14
"""Tensors of a tree."""

MOST_AXES = 16
"""Axes of a tensor."""

MOST_EXTRA_BYTES = 2**20
"""Bytes of an answer beside what the method declares, its scores and its header: metrics."""

MOST_SITES = 10**6

LARGEST_ROUND = 10**9

MOST_ATTEMPTS = 10**4

MOST_CLASSES = 2000
"""Classes of a federation: scores hold a number for every pair of them."""

LARGEST_SHAPE = 2**24
"""Numbers of one example."""

MOST_EXAMPLES = 2**22
"""Examples of one part of a site's data: the record of the split lists them."""

MOST_STEPS = 10**9
"""Gradient steps of a site in one round."""

LONGEST_METRIC_NAME = 100
"""Characters of the name of a number that a site reports."""

MOST_NUMBERS = 1000
"""Numbers that a site reports beside scores."""

LARGEST_BODY = 16 * 1024**2
"""Bytes of one request to the open port. Flower sends larger messages in parts of 5 MiB."""
