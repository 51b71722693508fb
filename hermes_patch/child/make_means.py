"""Writes ``means.py``: ``python -m hermes_patch.child.make_means``.

Sixty passages take e5 two seconds, too long for every start, so they are stored.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from . import models, sentences

_HEAD = '''"""The mean vectors of ``sentences``: little-endian float32 in base64.

Written by ``make_means``, not by hand.
"""

from __future__ import annotations

MEANS: dict[str, str] = {
'''


def mean(name: str) -> Any:
    """Return the mean vector (float32, ``dims``) of the sentences as documents."""
    import numpy

    encode, _dims = models.RAW[name]()
    vectors = numpy.vstack([encode([text], False) for text in sentences.SENTENCES])
    return vectors.astype(numpy.float64).mean(axis=0).astype("<f4")


def main() -> None:
    """Compute the means of all models and write them."""
    lines = [_HEAD]
    for name in models.RAW:
        text = base64.b64encode(mean(name).tobytes()).decode("ascii")
        lines.append(f'    "{name}": (\n')
        lines += [f'        "{text[i : i + 80]}"\n' for i in range(0, len(text), 80)]
        lines.append("    ),\n")
    lines.append("}\n")
    Path(__file__).with_name("means.py").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
