"""Starts the warden: `python3 -s -P /opt/gym/warden`."""

import os
import sys

sys.path[0] = os.path.dirname(sys.path[0])

from warden.loop import main  # noqa: E402

main()
