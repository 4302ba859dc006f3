"""Downloads of known data sets."""
