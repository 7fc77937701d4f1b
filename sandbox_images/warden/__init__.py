"""The warden: the trusted program that is PID 1 of every sandbox.

Theory of operation. The warden is reached over the container's attached standard input and output with the
frames of `frames.py`: no port, no exec, no file. It serves one request at a time. Files are read and written by
the warden itself while its file-system identity is the episode's (`files.py`); everything that runs code is a
forked child that reads its own job, drops to the episode's UID without any capability and only then imports or
executes anything of the repository (`child.py`). As Python is loaded before the fork, a run costs a fork instead of
an interpreter's start; and as the cost of a fork grows with what is loaded, the warden imports as little as it can
(no dataclasses, no typing) and leaves pytest to a second process, the zygote (`zygote.py`).

After each run everything that is left of the episode is killed and reaped, until the kernel's count of the container's
tasks is that of the warden and its zygote alone.

What a child can learn from the memory it inherits: the warden keeps contents only in one fixed buffer that it
wipes, and jobs (with the inputs of hidden tests) are read by the child, never by the warden.

Not covered here: limits on memory, processes and network, which the container sets.
"""

import os
import sys

MODULES_AT_START = frozenset(sys.modules) - {__name__}
"""What the interpreter loads by itself."""

WORKSPACE = os.environ.get("GYM_WORKSPACE", "/workspace")
"""The folder that holds the repository. Who starts the warden says which."""
