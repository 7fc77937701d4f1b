"""What a policy may call, and what its words mean."""
