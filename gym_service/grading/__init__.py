"""Grading: what the code does decides, and nothing that it says about itself."""
