"""``python -m hermes_patch.backfill`` is ``hermes-patch backfill``."""

import sys

from hermes_patch.cli import main

sys.exit(main(["backfill", *sys.argv[1:]]))
