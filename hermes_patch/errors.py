"""Every exception this project raises.

    HermesPatchError
    ├── ConfigError           the memorySearch block or a file it names is wrong
    ├── DeployError           apply or revert could not do its work; nothing was half-done
    ├── HostError             this Hermes lacks something a capability needs
    │   ├── SeamMissing       a place we patch is missing or changed; the rest works
    │   └── DatabaseReplaced  another file took the place of the one Hermes has open
    ├── SchemaError           a table of ours has another shape than expected
    ├── VectorError           a vector is empty, not finite, zero or of another length
    ├── LeaseHeld             somebody else indexes this database just now
    ├── LegFailed             one part of a search failed; the others answered
    ├── BudgetExceeded        work was given up because its time was over
    └── EmbedderError         no vectors could be had
        ├── EmbedderUnavailable   down, unreachable, timed out, rate limited: try later
        │   │   .retry_after      seconds the server asked us to wait, or None
        │   └── BusyHere          too many questions at once from this process
        ├── EmbedderRefused       wrong key, unknown model, quota: a person has to act
        ├── BatchTooLarge         fewer or shorter texts may pass
        ├── QueryRefused          this one query has no vector; the server is fine
        └── BadResponse           the answer was not what the protocol promises

No message of an exception ever holds a key, a URL's userinfo or a message's text.
"""

from __future__ import annotations


class HermesPatchError(Exception):
    """Base of all errors of this project."""


class ConfigError(HermesPatchError):
    """A setting has a wrong name, type or value."""


class DeployError(HermesPatchError):
    """Apply or revert stopped; the home is as it was before."""


class HostError(HermesPatchError):
    """The running Hermes lacks a method, table or module that is needed."""


class SeamMissing(HostError):
    """A place in Hermes that a capability needs is missing or changed in this version."""


class DatabaseReplaced(HostError):
    """The path of a database leads to another file than the one Hermes has open."""


class SchemaError(HermesPatchError):
    """A table with one of our names exists in a shape we do not know."""


class VectorError(HermesPatchError, ValueError):
    """A vector that cannot be stored or compared."""


class LeaseHeld(HermesPatchError):
    """Another process indexes the database just now and does our work as well."""


class LegFailed(HermesPatchError):
    """One leg of a search failed; what the others found was returned."""


class BudgetExceeded(HermesPatchError):
    """The time given for a piece of work was over."""


class EmbedderError(HermesPatchError):
    """No vectors could be had for a batch of texts."""


class EmbedderUnavailable(EmbedderError):
    """The embedder is down, busy or too slow; the same call may pass later.

    ``retry_after`` is the number of seconds the server asked to wait, or None.
    """

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class BusyHere(EmbedderUnavailable):
    """Too many questions at once in this process; it says nothing about the embedder."""


class EmbedderRefused(EmbedderError):
    """The embedder answered that it will not serve us until a person changes something."""


class BatchTooLarge(EmbedderError):
    """The request was too large; fewer or shorter texts may pass."""


class QueryRefused(EmbedderError):
    """This one text has no vector, being empty or rejected; the server is fine."""


class BadResponse(EmbedderError):
    """The embedder answered with something that is not one vector for every text."""
