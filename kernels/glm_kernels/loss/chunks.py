"""How many tokens have their logits in memory at a time."""

from __future__ import annotations

CHUNK_LOGITS = 1 << 24  # 64 MB of fp32: far beyond where a matrix product becomes efficient


def token_chunks(num_tokens: int, words: int) -> list[slice]:
    """The tokens in chunks of about CHUNK_LOGITS logits, at least one token each; none where there are no words."""
    if words == 0:  # a shard may hold nothing but padding
        return []
    size = max(1, CHUNK_LOGITS // words)
    return [slice(start, min(start + size, num_tokens)) for start in range(0, num_tokens, size)]
