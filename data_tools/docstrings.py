"""The docstrings of the packages installed here, read from their source without importing anything."""

from __future__ import annotations

import ast
import gc
import inspect
import sysconfig
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Test suites are a quarter of the source and a thirtieth of the prose.
_SKIPPED_DIRECTORIES = frozenset({"__pycache__", "site-packages", "dist-packages", "test", "tests"})
_TOPICS = "pydoc_data/topics.py"  # the language reference, as `help("…")` shows it
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class SourceFile:
    """A Python file and its name below the directory that is searched for imports."""

    path: Path
    name: str


def import_roots() -> list[Path]:
    """The standard library and the directories of installed packages of the interpreter that runs this."""
    paths = (sysconfig.get_path(key) for key in ("stdlib", "purelib", "platlib"))
    return list(dict.fromkeys(Path(path).resolve() for path in paths))


def source_files(root: Path) -> Iterator[SourceFile]:
    """The Python files below `root` but for test suites, in the order of their names."""
    paths = (path for path in root.rglob("*.py") if not _SKIPPED_DIRECTORIES & set(path.relative_to(root).parts))
    for name, path in sorted((path.relative_to(root).as_posix(), path) for path in paths):
        yield SourceFile(path, name)


def docstrings(file: SourceFile) -> list[str]:
    """The docstrings of a file in the order of its lines, indentation removed; none if it is no valid Python."""
    try:
        source = file.path.read_bytes()
        if b'"""' not in source and b"'''" not in source:
            return []
        tree = _parse(source)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []  # templates and test data that only look like Python; unreadable files
    if file.name.endswith(_TOPICS):
        return [inspect.cleandoc(text) for text in _strings(tree)]
    nodes = sorted((node.lineno if hasattr(node, "lineno") else 0, i, node) for i, node in enumerate(_documented(tree)))
    return [text for _, _, node in nodes if (text := ast.get_docstring(node))]


def _parse(source: bytes) -> ast.Module:
    collecting = gc.isenabled()
    gc.disable()  # a syntax tree has no garbage, and looking for some takes a quarter of the time
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in the files of others
            return ast.parse(source)
    finally:
        if collecting:
            gc.enable()


def _documented(tree: ast.Module) -> Iterator[ast.AST]:
    """Nodes that can have a docstring; expressions, which are most of a tree, are not entered."""
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, _DOCUMENTED):
            yield node
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            children = getattr(node, field, None)
            if isinstance(children, list):
                pending.extend(children)


def _strings(tree: ast.Module) -> Iterator[str]:
    return (
        value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Dict)
        for value in node.values
        if isinstance(value, ast.Constant) and isinstance(value.value, str)
    )
