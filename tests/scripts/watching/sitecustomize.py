"""Tells in a file when our package is in place in a process; Python runs this at its start.

So it stays with a command of Hermes that starts itself again. ``WATCHED`` names the file.
"""

import atexit
import json
import os
import sys
import threading
import time

lock = threading.Lock()


def tell() -> bool:
    with lock:
        path = os.environ["WATCHED"]
        ours = sys.modules.get("hermes_patch")
        status = getattr(ours, "status", None)
        if status is None or not status()["active"]:
            return False
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            json.dump(status(), file)
        os.replace(f"{path}.new", path)
        return True


def watch() -> None:
    while not tell():
        time.sleep(0.05)


if "WATCHED" in os.environ:
    threading.Thread(target=watch, daemon=True).start()
    atexit.register(tell)
