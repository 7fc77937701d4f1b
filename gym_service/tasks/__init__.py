"""Tasks: what an episode starts from and what its answer is graded against."""
