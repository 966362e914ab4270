"""Metrics: of a model at each image of a data set, and of sets of images."""
