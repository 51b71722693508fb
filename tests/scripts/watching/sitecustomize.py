"""Tells in a file when our package is in place in a process; Python runs this at its start.

So it stays with a command of Hermes that starts itself again. ``WATCHED`` names the file.
"""

import json
import os
import sys
import threading
import time


def watch(path: str) -> None:
    while True:
        ours = sys.modules.get("hermes_patch")
        status = getattr(ours, "status", None)
        if status is not None and status()["active"]:
            with open(f"{path}.new", "w", encoding="utf-8") as file:
                json.dump(status(), file)
            os.replace(f"{path}.new", path)
            return
        time.sleep(0.05)


if "WATCHED" in os.environ:
    threading.Thread(target=watch, args=(os.environ["WATCHED"],), daemon=True).start()
