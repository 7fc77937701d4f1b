"""Sandboxes: what an episode's repository lives in, and everything that keeps it in there."""
