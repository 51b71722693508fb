"""``python -m hermes_patch`` is the command ``hermes-patch``."""

import sys

from .cli import main

sys.exit(main())
