"""Which files of the repository a program is made of: what a stage depends on besides its data."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
_ROOTS = {"glm_kernels": REPOSITORY / "kernels"}  # whatever is not here lies in the repository itself


def code_of(*modules: str) -> tuple[Path, ...]:
    """The files of these modules and of all that they import from the repository, at any depth; sorted.

    Imports inside of functions count, those for type checkers do not.
    """
    found: dict[str, Path] = {}
    left = list(modules)
    while left:
        module = left.pop()
        if module not in found and (path := _file_of(module)):
            found[module] = path
            left.append(module.rpartition(".")[0])  # a package is loaded before what is in it
            left += _imports(ast.parse(path.read_bytes()))
    return tuple(sorted(set(found.values())))


def _file_of(module: str) -> Path | None:
    if not module:
        return None
    top, *rest = module.split(".")
    path = _ROOTS.get(top, REPOSITORY).joinpath(top, *rest)
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)  # it may be a module too
        yield from _imports(node)
