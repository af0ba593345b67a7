"""fingerprints.json: what the values of each parameter must be, whoever holds them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from megatron_glm.checkpoint.fingerprint import fingerprint_keys
from megatron_glm.checkpoint.format import FORMAT_VERSION
from megatron_glm.errors import CheckpointError
from megatron_glm.json_reading import json_object


def fingerprints_to_json(sums: Mapping[str, int], names: Iterable[str]) -> bytes:
    """The fingerprints of all parameters, in hexadecimal; 0 for those without elements."""
    shown = {key: f"{sums.get(key, 0):016x}" for key in sorted(fingerprint_keys(names))}
    return json.dumps({"format_version": FORMAT_VERSION, "fingerprints": shown}, indent=1).encode()


def fingerprints_from_json(data: bytes, names: Iterable[str], where: str) -> dict[str, int]:
    """Parse, and see that each parameter has its own. Raises CheckpointError, in which `where` names the file."""
    try:
        found = {key: int(value, 16) for key, value in json_object(data)["fingerprints"].items()}
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise CheckpointError(f"{where}: not a list of fingerprints ({error!r}); use another checkpoint") from error
    if odd := found.keys() ^ set(fingerprint_keys(names)):
        raise CheckpointError(f"{where}: has too few or too many parameters, the first is '{min(odd)}'")
    return found
