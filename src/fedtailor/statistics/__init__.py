"""Statistics that several methods share: Gaussians, classifiers made of them, Gaussian features."""
