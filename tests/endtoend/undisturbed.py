"""How far a run has come and its losses, beside those of two processes that nothing disturbs."""

import json

from tests.distributed.ranks import run_ranks
from tests.endtoend import pretraining_cases as cases


def losses(output):
    """Kind, step and loss of each record that has one."""
    records = map(json.loads, (output / "metrics.jsonl").read_text().splitlines())
    return [(r["kind"], r["step"], r["loss"]) for r in records if r["kind"] in ("train", "validation")]


def has_made(output, step):
    """Asks whether a run has come to a step."""
    file = output / "metrics.jsonl"
    return lambda: file.exists() and f'"step": {step},' in file.read_text()


def undisturbed_losses(corpus):
    """Those of a corpus' own configuration."""
    output = corpus.root / "expected"
    run_ranks(2, cases.train, str(corpus.config), f"train.output={output}")
    return losses(output)
