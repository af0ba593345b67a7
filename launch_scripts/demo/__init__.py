"""`make demo`: the whole path on real text, as a chain of stages that are redone only where needed."""
