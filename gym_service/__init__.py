"""The gym: episodes of coding agents in hardened containers, graded by tests that never enter them."""

__version__ = "0.1.0"
