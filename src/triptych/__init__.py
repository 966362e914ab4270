"""Triptych trains, samples and evaluates image generators: normalizing flows, GANs and diffusion models."""

__version__ = "0.2.0.dev0"
