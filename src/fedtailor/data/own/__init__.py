"""A user's own data: folders of images, tables, arrays, or a function that returns arrays."""
