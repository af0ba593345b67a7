"""A JSON file that holds a hash of itself, so that no bit of it changes unnoticed.

The last line of the object is `"sha256": "…"`, the hash of all bytes before the comma in front of it. To every
other reader it is one more key.
"""

from __future__ import annotations

import re
from hashlib import sha256

_SEAL = re.compile(rb',\n "sha256": "([0-9a-f]{64})"\n}\n\Z')


def sealed(text: bytes) -> bytes:
    """A JSON object, not an empty one, with the hash of itself behind its keys."""
    head = text.rstrip().removesuffix(b"}").rstrip()
    return head + b',\n "sha256": "%s"\n}\n' % sha256(head).hexdigest().encode()


def unsealed(text: bytes) -> tuple[bytes, bool]:
    """The JSON object without its seal, and whether the seal is there and fits; without a seal, the text itself."""
    found = _SEAL.search(text)
    if found is None:
        return text, False
    head = text[: found.start()]
    return head + b"}", sha256(head).hexdigest().encode() == found[1]
