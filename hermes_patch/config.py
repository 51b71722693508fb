"""The ``memorySearch`` block of config.yaml, read into one frozen Settings.

The only module that reads the environment. Inside Hermes the block comes from Hermes's own
loader (profiles, ``${VAR}`` and ``.env`` included); outside it is read with PyYAML.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from . import yaml_loading
from .config_keys import BLOCK, KEYS, REMOTE_KEYS, kind
from .embedders import profiles
from .errors import ConfigError

PROVIDERS = ("local", "openai", "off")
DEFAULT_ROLES = ("user", "assistant")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_DOTENV_VALUE = re.compile(r"""(?:(["'])(.*)\1|(.*?))(?:\s+#.*)?""")
_SECRET_IN_QUERY = re.compile(  # by its name, or a long value that is no name of a model
    r"(?i:(?:^|[&;_-])(?:(?:api|access)?[_-]?key|token|secret|password|sig(nature)?|code|sas|auth"
    r"|credential)=)|=(?!(?:([a-zA-Z]{1,12}\d?|v?\d{1,4}\w?)([-_./]|\b))+([&;]|$))[\w.~+/%=-]{21,}"
)


@dataclass(frozen=True)
class Settings:
    """Everything that can be set, with every default filled in.

    Times are seconds, similarities cosines. ``api_key`` and ``base_url`` are left out of
    ``repr``, since both may hold secrets.
    """

    provider: str = "local"
    model: str = profiles.LOCAL
    base_url: str = field(default="", repr=False)
    api_key: str = field(default="", repr=False)
    dimensions: int | None = None
    send_dimensions: bool = False
    multimodal: bool = False
    floor_is_set: bool = False
    min_similarity: float = profiles.PROFILES[profiles.LOCAL].floor
    query_prefix: str = ""
    document_prefix: str = ""
    batch_size: int = 16
    pause: float = 0.0
    max_tokens: int = profiles.PROFILES[profiles.LOCAL].max_tokens
    timeout: float = 30.0
    query_budget: float = 5.0
    realtime: bool = True
    roles: tuple[str, ...] = DEFAULT_ROLES
    redact: bool = True
    accelerate: str = "auto"
    search_memory: int = 512
    exact: bool = False
    rrf_k: int = 20
    weights: tuple[float, float, float] = (1.0, 1.0, 1.0)

    @property
    def enabled(self) -> bool:
        """False when ``provider: off``: nothing is patched then."""
        return self.provider != "off"

    @property
    def host(self) -> str:
        """The server's host name and port, without path or userinfo; "" for ``local``."""
        parts = urlsplit(self.base_url)
        name = parts.hostname or ""
        name = f"[{name}]" if ":" in name else name
        return f"{name}:{parts.port}" if parts.port else name

    @property
    def is_loopback(self) -> bool:
        """True when texts stay on this machine."""
        if self.provider != "openai":
            return True
        name = (urlsplit(self.base_url).hostname or "").rstrip(".")
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return name == "localhost" or name.endswith(".localhost")
        return address.is_loopback or name in ("0.0.0.0", "::")


def _unknown(name: str) -> ConfigError:
    remote = [f"remote.{key}" for key in REMOTE_KEYS]
    known = [*KEYS, "remote", *remote]
    plain = {_plain(key): key for key in known}
    plain |= {_plain(key.partition(".")[2]): key for key in remote}
    near = difflib.get_close_matches(_plain(name), list(plain), n=1)
    hint = f"did you mean {plain[near[0]]}?" if near else f"known are {', '.join(known)}"
    return ConfigError(f"{BLOCK}: unknown key {name!r}; {hint}")


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


def parse(block: Any) -> Settings:
    """Return the Settings that *block* describes; None or an empty mapping is the default.

    Raises:
        ConfigError: an unknown key (with the nearest known one), a value of the wrong type
            or out of range, a server without baseUrl.
    """
    if block is None or block is False:
        block = {"provider": "off"} if block is False else {}
    if not isinstance(block, Mapping):
        raise ConfigError(f"{BLOCK}: expected a mapping, found {kind(block)}")
    values = _known_values(block)
    provider = values.get("provider", "openai" if values.get("base_url") else "local")
    if provider not in PROVIDERS:
        raise ConfigError(f"{BLOCK}.provider: {provider!r} is none of {', '.join(PROVIDERS)}")
    values["provider"] = provider
    if provider == "openai":
        _check_server(values)
    elif provider == "local":
        _check_local(values)
    return Settings(**_with_profile(values))


def _known_values(block: Mapping[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in block.items():
        if name == "remote":
            values.update(_remote_values(value))
        elif name == "provider" and value is False:
            values["provider"] = "off"  # YAML 1.1 reads a bare ``off`` as false
        elif name not in KEYS:
            raise _unknown(str(name))
        elif value is not None:
            target, convert = KEYS[name]
            values[target] = convert(name, value)
    return values


def _remote_values(remote: Any) -> dict[str, Any]:
    if remote is None:
        return {}
    if not isinstance(remote, Mapping):
        raise ConfigError(f"{BLOCK}.remote: expected a mapping, found {kind(remote)}")
    values = {}
    for name, value in remote.items():
        if name not in REMOTE_KEYS:
            raise _unknown(f"remote.{name}")
        if value is not None:
            target, convert = REMOTE_KEYS[name]
            values[target] = convert(f"remote.{name}", value)
    return values


def _check_local(values: dict[str, Any]) -> None:
    model = values.setdefault("model", profiles.LOCAL)
    if model not in profiles.LOCALS:
        raise ConfigError(
            f"{BLOCK}.model: the local provider has {', '.join(profiles.LOCALS)}, not {model!r}"
        )
    dims = profiles.find(model).dims
    if values.get("dimensions", dims) != dims:
        raise ConfigError(f"{BLOCK}.dimensions: {model} has {dims}; leave the key out")


def _check_server(values: dict[str, Any]) -> None:
    names = {"base_url": "remote.baseUrl", "api_key": "remote.apiKey", "model": "model"}
    for target, name in names.items():
        missing = _VARIABLE.search(values.get(target, ""))
        if missing:
            raise ConfigError(
                f"{BLOCK}.{name}: the variable {missing.group(1)} is not set, "
                "neither in the environment nor in .env"
            )
    if not values.get("model"):
        raise ConfigError(f"{BLOCK}.model: name the model the server should use")
    if not _is_address(values.get("base_url", "")):
        raise ConfigError(
            f"{BLOCK}.remote.baseUrl: expected an http(s) address such as http://127.0.0.1:8080/v1"
        )
    if _SECRET_IN_QUERY.search(urlsplit(values["base_url"]).query):
        # httpx logs whole addresses.
        raise ConfigError(f"{BLOCK}.remote.baseUrl: put the key into remote.apiKey")
    values["api_key"] = values.get("api_key", "").strip()
    if not (values["api_key"].isascii() and values["api_key"].isprintable()):
        raise ConfigError(f"{BLOCK}.remote.apiKey: holds characters that no key has")


def _is_address(text: str) -> bool:
    try:
        url = urlsplit(text)
        return url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:  # a port or an IPv6 address that is none
        return False


def _with_profile(values: dict[str, Any]) -> dict[str, Any]:
    profile = profiles.find(values.get("model", ""))
    defaults = {
        "dimensions": profile.dims,
        "min_similarity": profile.floor,
        "document_prefix": profile.document_prefix,
        "query_prefix": profile.query_prefix,
        "batch_size": profile.batch_size,
        "max_tokens": profile.max_tokens,
        "pause": profile.pause,
        "multimodal": profile.multimodal,
        "send_dimensions": values.get("dimensions") is not None,
        "floor_is_set": "min_similarity" in values,
    }
    return {**defaults, **values}


def block_of(config: Any) -> Any:
    """Return the memorySearch block inside a whole Hermes configuration, or None."""
    for name in BLOCK.split("."):
        config = config.get(name) if isinstance(config, Mapping) else None
    return config


def load(home: Path) -> Settings:
    """Read the settings of *home* from outside Hermes.

    Raises:
        ConfigError: config.yaml cannot be read or parsed, or the block is wrong.
    """
    return parse(expand(block_of(read_yaml(home / "config.yaml")), read_dotenv(home / ".env")))


def load_inside_hermes() -> Settings:
    """Read the settings of the current profile through Hermes's own loader.

    The profile's own .env comes before the environment, which holds that of the profile the
    process was started with: its keys are not for another profile's server.
    """
    from hermes_cli import config as hermes_config  # type: ignore[import-not-found]

    block = next((found for read in readers_of(hermes_config) if (found := block_of(read()))), None)
    return parse(expand(block, profile_value(hermes_config)))


def readers_of(hermes_config: Any) -> list[Callable[[], Any]]:
    """Return what Hermes reads its whole configuration with, the user's own file first."""
    names = ("read_raw_config", "load_config_readonly", "load_config")
    return [read for name in names if (read := getattr(hermes_config, name, None))]


def profile_value(hermes_config: Any) -> Callable[[str], str | None]:
    """Return a lookup of variables: the profile's own .env first, then as Hermes looks."""
    own: dict[str, str] = hermes_config.load_env() if hasattr(hermes_config, "load_env") else {}
    usual = getattr(hermes_config, "get_env_value", os.environ.get)
    lookup = getattr(hermes_config, "get_env_value_prefer_dotenv", usual)
    return lambda name: own.get(name) or lookup(name)


def read_yaml(path: Path) -> Any:
    """Return the parsed YAML file, {} when it does not exist; raises ConfigError."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({type(error).__name__})") from None
    load, failure = yaml_loading.find()
    try:
        return load(text) or {}
    except failure as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark is not None else ""
        raise ConfigError(f"{path}: not valid YAML{where}") from None


def read_dotenv(path: Path) -> Callable[[str], str | None]:
    """Return a lookup that asks the file *path* first and the environment second, as Hermes."""
    pairs: dict[str, str] = {}
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError):
        lines = []
    for line in lines:
        name, sign, value = line.strip().removeprefix("export ").partition("=")
        if sign and not name.startswith("#"):
            found = _DOTENV_VALUE.fullmatch(value.strip())
            pairs[name.strip()] = (found[2] or found[3] or "") if found else ""
    return lambda name: pairs.get(name) or os.environ.get(name)


def expand(value: Any, lookup: Callable[[str], str | None]) -> Any:
    """Return *value* with every ``${NAME}`` that *lookup* knows filled in."""
    if isinstance(value, str):
        return _VARIABLE.sub(lambda found: lookup(found.group(1)) or found.group(0), value)
    if isinstance(value, Mapping):
        return {key: expand(item, lookup) for key, item in value.items()}
    if isinstance(value, list):
        return [expand(item, lookup) for item in value]
    return value


def hermes_home(explicit: str | os.PathLike[str] | None = None) -> Path:
    """Return the Hermes home, absolute: *explicit*, else HERMES_HOME, else ~/.hermes."""
    chosen = explicit or os.environ.get("HERMES_HOME", "").strip()
    return (Path(chosen).expanduser() if chosen else Path.home() / ".hermes").absolute()
