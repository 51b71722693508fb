"""Everything that turns texts into vectors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ConfigError

if TYPE_CHECKING:
    from ..config import Settings
    from .base import Embedder


def create(settings: Settings, vendor: Path | None = None) -> Embedder:
    """Return the embedder that *settings* ask for; nothing is started or connected yet.

    ``vendor`` is the folder with the packages of the local model; None takes those that are
    installed beside this one.

    Raises:
        ConfigError: the provider is ``off``.
    """
    if settings.provider == "openai":
        from .openai_api import OpenAIEmbedder

        return OpenAIEmbedder(settings)
    if settings.provider == "local":
        from .local import LocalEmbedder

        return LocalEmbedder(model=settings.model, vendor=vendor)
    raise ConfigError(f"memorySearch.provider is {settings.provider}: there is no embedder")
