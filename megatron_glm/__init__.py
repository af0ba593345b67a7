"""Pretraining of GLM: autoregressive blank infilling from corpus to release."""

__version__ = "0.1.0"
