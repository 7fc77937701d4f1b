"""Evaluation of submissions that no episode made: read, graded, counted, reported and signed."""
