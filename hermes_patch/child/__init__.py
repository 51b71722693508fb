"""The child process: everything native (the local model, numpy) runs in it, never in Hermes.

``main`` is what the child executes, ``serve`` its loop, ``models`` the models, ``wire`` the
frames on the pipes (used by both sides), ``client`` the parent's side.
"""
