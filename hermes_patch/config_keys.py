"""The keys of the ``memorySearch`` block: which Settings field each sets, and its check."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .errors import ConfigError

BLOCK = "agents.defaults.memorySearch"


def _number(minimum: float, maximum: float) -> Callable[[str, Any], float]:
    def convert(name: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ConfigError(f"{BLOCK}.{name}: expected a number, found {kind(value)}")
        if not minimum <= float(value) <= maximum:
            raise ConfigError(f"{BLOCK}.{name}: {value} is not in {minimum:g} … {maximum:g}")
        return float(value)

    return convert


def _integer(minimum: int, maximum: int) -> Callable[[str, Any], int]:
    check = _number(minimum, maximum)

    def convert(name: str, value: Any) -> int:
        if int(check(name, value)) != value:
            raise ConfigError(f"{BLOCK}.{name}: expected a whole number, found {value}")
        return int(value)

    return convert


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"{BLOCK}.{name}: expected text, found {kind(value)}")
    return value


def _switch(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{BLOCK}.{name}: expected true or false, found {kind(value)}")
    return value


def _roles(name: str, value: Any) -> tuple[str, ...]:
    known = ("user", "assistant", "tool", "system")
    roles = tuple(value) if isinstance(value, (list, tuple)) else ()
    if not roles or any(role not in known for role in roles):
        raise ConfigError(f"{BLOCK}.{name}: expected a list out of {', '.join(known)}")
    return roles


def _accelerate(name: str, value: Any) -> str:
    # YAML reads a bare true/false as a boolean.
    word = {True: "true", False: "false"}.get(value, value) if isinstance(value, bool) else value
    if word not in ("auto", "true", "false"):
        raise ConfigError(f"{BLOCK}.{name}: expected auto, true or false")
    return str(word)


def _weights(name: str, value: Any) -> tuple[float, float, float]:
    legs = ("exact", "relaxed", "vector")
    if not isinstance(value, Mapping) or set(value) - set(legs):
        raise ConfigError(f"{BLOCK}.{name}: expected a mapping of {', '.join(legs)} to numbers")
    check = _number(0, 100)
    exact, relaxed, vector = (check(f"{name}.{leg}", value.get(leg, 1.0)) for leg in legs)
    return exact, relaxed, vector


KEYS: dict[str, tuple[str, Callable[[str, Any], Any]]] = {
    "provider": ("provider", _text),
    "model": ("model", _text),
    "dimensions": ("dimensions", _integer(1, 65_536)),
    "minSimilarity": ("min_similarity", _number(-1, 1)),
    "queryPrefix": ("query_prefix", _text),
    "documentPrefix": ("document_prefix", _text),
    "batchSize": ("batch_size", _integer(1, 2048)),
    "pause": ("pause", _number(0, 60)),
    "maxTokens": ("max_tokens", _integer(16, 32_768)),
    "timeout": ("timeout", _number(0.1, 600)),
    "queryBudget": ("query_budget", _number(0.05, 60)),
    "realtime": ("realtime", _switch),
    "roles": ("roles", _roles),
    "redact": ("redact", _switch),
    "accelerate": ("accelerate", _accelerate),
    "searchMemory": ("search_memory", _integer(0, 65_536)),
    "exact": ("exact", _switch),
    "rrfK": ("rrf_k", _integer(1, 10_000)),
    "weights": ("weights", _weights),
}
REMOTE_KEYS = {"baseUrl": ("base_url", _text), "apiKey": ("api_key", _text)}


def kind(value: Any) -> str:
    return "nothing" if value is None else type(value).__name__
