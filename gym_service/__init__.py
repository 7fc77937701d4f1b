"""The gym: episodes of coding agents in hardened containers, graded by tests that never enter them."""

import os

# Read when gRPC is first used, whose core writes a line for each header that it rejects and for each client that
# cannot show a certificate: any stranger could fill the log with them.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

__version__ = "0.1.0"
