"""Downloads of known data sets: the table of sources, the transfer, and unpacking."""
