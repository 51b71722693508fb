"""The ``memory.semantic`` block of config.yaml: one frozen Options with every default filled in.

What it does not say of the embedder is taken from the ``memorySearch`` block.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import config
from ..config import Settings
from ..embedders import profiles
from ..errors import ConfigError

BLOCK = "memory.semantic"
PROVIDER = "semantic"
"""The name under ``memory.provider``, and of the plugin folder."""
DATABASE = "semantic_memory.db"


@dataclass(frozen=True)
class Options:
    """Thresholds are cosines; times are days, minutes or seconds, as the name says.

    ``settings`` are those of the embedder.
    """

    settings: Settings = field(default_factory=Settings)
    path: Path = Path(DATABASE)
    top_k: int = 5
    min_score: float = 0.0
    recency_weight: float = 0.0
    recency_half_life_days: float = 30.0
    canonical_weight: float = 0.0
    duplicate_threshold: float = 0.92
    ambiguous_threshold: float = 0.80
    dedupe_on_write: bool = True
    budget_seconds: float = 5.0
    idle_minutes: float = 10.0
    keep_days: float = 30.0
    judge: bool = False
    language_gap: float = 0.0


@dataclass(frozen=True)
class Option:
    """One key: its type and bounds, its default for a person to read, and what it does."""

    kind: type
    default: object
    help: str
    least: float = 0.0
    most: float = 1e9


OPTIONS: dict[str, Option] = {
    "endpoint": Option(str, "", "address of an OpenAI-compatible embeddings server"),
    "apiKey": Option(str, "", "key of that server; better as ${A_VARIABLE}"),
    "model": Option(str, "", "embedding model"),
    "dims": Option(int, None, "dimensions to ask the server for", 1, 65_536),
    "prefixes": Option(bool, True, "put the model's own prefixes before texts"),
    "docPrefix": Option(str, None, "what is put before a note"),
    "queryPrefix": Option(str, None, "what is put before a query"),
    "topK": Option(int, 5, "notes recalled before a turn", 1, 100),
    "minScore": Option(float, None, "least similarity of a recalled note", -1, 1),
    "recencyWeight": Option(float, 0.0, "how much a new note is preferred", 0, 1),
    "recencyHalfLifeDays": Option(float, 30.0, "days after which that is half", 0.01, 36_500),
    "canonicalWeight": Option(float, 0.0, "how much a note of MEMORY.md is preferred", 0, 1),
    "duplicateThreshold": Option(float, None, "similarity of two notes that say the same", 0, 1),
    "ambiguousThreshold": Option(float, None, "similarity from which the judge is asked", 0, 1),
    "dedupeOnWrite": Option(bool, True, "skip a note that says what another one says"),
    "accelerate": Option(str, "auto", "auto, true or false: sqlite-vec and numpy"),
    "dbPath": Option(str, DATABASE, "the database, below the Hermes home unless absolute"),
    "budget": Option(float, None, "seconds a turn waits for its notes at most", 0.05, 60),
    "idleMinutes": Option(float, 10.0, "idle minutes after which notes are reconciled", 0.01, 1440),
    "keepDays": Option(float, 30.0, "days a superseded note is kept", 0, 36_500),
    "judge": Option(bool, False, "ask Hermes's auxiliary model about ambiguous pairs"),
}
_ENGINE = {"model": "model", "dims": "dimensions", "docPrefix": "documentPrefix"} | {
    name: name for name in ("queryPrefix", "accelerate")
}
_FIELDS = {
    "topK": "top_k",
    "recencyWeight": "recency_weight",
    "recencyHalfLifeDays": "recency_half_life_days",
    "canonicalWeight": "canonical_weight",
    "dedupeOnWrite": "dedupe_on_write",
    "idleMinutes": "idle_minutes",
    "keepDays": "keep_days",
    "judge": "judge",
}


def parse(block: Any, engine: Any, home: Path) -> Options:
    """Return the options of *block*; *engine* is the ``memorySearch`` block.

    Raises:
        ConfigError: an unknown key (with the nearest known one), a value of the wrong type
            or out of range, or an embedder that cannot be.
    """
    values = checked(block)
    settings = config.parse(_engine_block(values, engine))
    if not settings.enabled:
        raise ConfigError(
            f"{BLOCK}: memorySearch says provider: off; set {BLOCK}.model (or endpoint) to use "
            "memory alone"
        )
    profile = profiles.find(settings.model)
    duplicate = float(values.get("duplicateThreshold", profile.duplicate))
    ambiguous = float(values.get("ambiguousThreshold", min(profile.ambiguous, duplicate)))
    if ambiguous > duplicate:
        raise ConfigError(
            f"{BLOCK}.ambiguousThreshold: {ambiguous:g} is above duplicateThreshold {duplicate:g}"
        )
    given = {_FIELDS[name]: value for name, value in values.items() if name in _FIELDS}
    return Options(
        settings=settings,
        path=home / Path(values.get("dbPath", DATABASE)).expanduser(),
        min_score=float(values.get("minScore", _floor(settings))),
        duplicate_threshold=duplicate,
        ambiguous_threshold=ambiguous,
        budget_seconds=float(values.get("budget", settings.query_budget)),
        language_gap=0.0 if "minScore" in values else profile.language_gap,
        **given,
    )


def _floor(settings: Settings) -> float:
    profile = profiles.find(settings.model)
    if settings.floor_is_set or profile.note_floor is None:
        return settings.min_similarity
    return profile.note_floor


def checked(block: Any) -> dict[str, Any]:
    """Return the known, well-typed values of *block*; raises ConfigError."""
    if block is None:
        return {}
    if not isinstance(block, Mapping):
        raise ConfigError(f"{BLOCK}: expected a mapping, found {type(block).__name__}")
    return {
        str(name): _value(str(name), value)
        for name, value in block.items()
        if value is not None and value != ""
    }


def _value(name: str, value: Any) -> Any:
    option = OPTIONS.get(name)
    if option is None:
        near = difflib.get_close_matches(name, OPTIONS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(OPTIONS)}"
        raise ConfigError(f"{BLOCK}: unknown key {name!r}; {hint}")
    if name == "accelerate":
        return value
    made = _converted(option.kind, value)
    if made is None:
        raise ConfigError(
            f"{BLOCK}.{name}: expected {_KINDS[option.kind]}, found {type(value).__name__}"
        )
    if option.kind in (int, float) and not option.least <= made <= option.most:
        raise ConfigError(f"{BLOCK}.{name}: {made:g} is not in {option.least:g} … {option.most:g}")
    return made


_KINDS: dict[type, str] = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
}


def _converted(kind: type, value: Any) -> Any:
    """Return *value* as *kind*, None when it is none. Setup dialogues give numbers as text."""
    if kind is bool:
        words = {"true": True, "yes": True, "false": False, "no": False}
        return value if isinstance(value, bool) else words.get(str(value).strip().lower())
    if kind is str:
        return value if isinstance(value, str) else None
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    if kind is int:
        return int(number) if number.is_integer() else None
    return number


def _engine_block(values: Mapping[str, Any], engine: Any) -> Any:
    """Return the ``memorySearch`` block with what *values* say of the embedder put over it."""
    if not any(name in values for name in (*_ENGINE, "endpoint", "apiKey", "prefixes")):
        return engine
    base = dict(engine) if isinstance(engine, Mapping) else {}
    if "endpoint" in values or "model" in values:
        # Another embedder: nothing that suits the other one may be left over.
        kept = ("redact", "timeout", "accelerate", "searchMemory", "exact", "remote", "provider")
        base = {name: base[name] for name in kept if name in base}
    if base.get("provider") in ("off", False):
        base.pop("provider")
    if values.get("model") in profiles.LOCALS:
        base.pop("remote", None)
        base["provider"] = "local"
    if "endpoint" in values:
        base |= {"provider": "openai", "remote": {"baseUrl": values["endpoint"]}}
    if "apiKey" in values and base.get("provider") != "local":
        base["remote"] = {**(base.get("remote") or {}), "apiKey": values["apiKey"]}
    base |= {_ENGINE[name]: value for name, value in values.items() if name in _ENGINE}
    if values.get("prefixes") is False:
        base |= {"documentPrefix": "", "queryPrefix": ""}
    return base


def load(home: Path) -> Options:
    """Read the options of *home* from outside Hermes; raises ConfigError."""
    lookup = config.read_dotenv(home / ".env")
    return of(config.read_yaml(home / "config.yaml"), lookup, home)


def of(whole: Any, lookup: Callable[[str], str | None], home: Path) -> Options:
    """Return the options in a whole configuration; *lookup* gives variables."""
    memory = whole.get("memory") if isinstance(whole, Mapping) else None
    block = memory.get(PROVIDER) if isinstance(memory, Mapping) else None
    engine = config.block_of(whole)
    return parse(config.expand(block, lookup), config.expand(engine, lookup), home)
