"""Measurements of the gym, each beside its baseline in the same call: `make bench`."""
