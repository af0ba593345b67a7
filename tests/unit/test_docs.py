"""The documentation is true: what it says of the code is compared with the code."""

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from megatron_glm.cli import COMMANDS
from megatron_glm.config.schema import Config
from megatron_glm.tokenizer import published

REPOSITORY = Path(__file__).resolve().parents[2]
DOCS = REPOSITORY / "docs"
PAGES = sorted([*DOCS.glob("*.md"), REPOSITORY / "CONTRIBUTING.md", REPOSITORY / "CHANGELOG.md"])
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    return [code for kind, code in BLOCK.findall(text) if kind == language]


# --- the table of the configuration ---------------------------------------------------------------


def setting(name: str, field: FieldInfo) -> str:
    """The first columns of a field's row: name, type with its bounds, default."""
    return f"| `{name}` | {_kind(field.annotation, field.metadata)} | {_default(field)} |"


def _kind(annotation: Any, bounds: list) -> str:
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(annotation))
    if type(None) in get_args(annotation):
        inner = next(kind for kind in get_args(annotation) if kind is not type(None))
        kind, *extra = get_args(inner) or (inner,)
        return f"{_kind(kind, [bound for item in extra for bound in getattr(item, 'metadata', [item])])}, or null"
    if get_origin(annotation) is tuple:
        return "list, not empty" if any(isinstance(bound, MinLen) for bound in bounds) else "list"
    if get_origin(annotation) is dict:
        return "mapping"
    name = {int: "integer", float: "number", bool: "true or false", str: "text"}[annotation]
    signs = {Ge: "≥", Gt: ">", Le: "≤", Lt: "<"}
    limits = [f"{signs[type(b)]} {_number(getattr(b, type(b).__name__.lower()))}" for b in bounds if type(b) in signs]
    return " ".join([name, ", ".join(limits)]).rstrip()


def _number(value: float) -> str:
    return "2⁶³" if value == 2**63 else f"{value:g}"


def _default(field: FieldInfo) -> str:
    if field.default_factory is not None or field.default == ():
        return "empty"
    if field.default is PydanticUndefined:
        return "required"
    if field.default is None:
        return "null"
    if isinstance(field.default, bool):
        return f"`{str(field.default).lower()}`"
    return f"`{field.default:g}`" if isinstance(field.default, float) else f"`{field.default}`"


def settings(section: type[BaseModel] = Config, prefix: str = "") -> Iterator[str]:
    for name, field in section.model_fields.items():
        inner = next((k for k in (field.annotation, *get_args(field.annotation)) if _is_section(k)), None)
        if inner is None or inner is not field.annotation:
            yield setting(prefix + name, field)
        if inner is not None:
            yield from settings(inner, f"{prefix}{name}[]." if inner is not field.annotation else f"{prefix}{name}.")


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def test_the_table_of_settings_is_that_of_the_schema():
    rows = [line for line in page("training.md").splitlines() if line.startswith("| `")]
    documented = {" | ".join(row.split(" | ")[:3]) + " |" for row in rows if re.match(r"\| `[\w.\[\]]+` \|", row)}
    assert set(settings()) - documented == set(), "settings that docs/training.md lacks or describes wrongly"


def test_every_setting_is_explained_in_words():
    names = {row.split(" | ")[0] for row in settings()}
    rows = [line.strip("| ").split(" | ") for line in page("training.md").splitlines()]
    explained = {f"| {row[0]}": row[3] for row in rows if len(row) == 4}
    assert [name for name in names if len(explained.get(name, "")) < 5] == []


def test_every_key_of_a_metrics_record_is_explained():
    functions = {
        "trainer.py": {"_training_record", "validate", "_stop"},
        "progress.py": {"position"},
        "guards/mishaps.py": {"_tell_not_finite", "_tell_spike", "_tell"},
        "checkpoints/rewinding.py": {"__call__"},
        "guards/stragglers.py": {"compare"},
        "announcement.py": {"announce"},
    }
    keys = set()
    for file, names in functions.items():
        tree = ast.parse((REPOSITORY / "megatron_glm/training" / file).read_text(encoding="utf-8"))
        found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in names]
        assert {node.name for node in found} == names
        dictionaries = [node for function in found for node in ast.walk(function) if isinstance(node, ast.Dict)]
        keys |= {key.value for node in dictionaries for key in node.keys if isinstance(key, ast.Constant)}
    assert [key for key in sorted(keys) if f"`{key}`" not in page("training.md")] == []


# --- names, paths and signatures ------------------------------------------------------------------


def source_of(name: str) -> Path:
    """A file that a page names, as written from the repository or from megatron_glm."""
    return next((path for path in (REPOSITORY / name, REPOSITORY / "megatron_glm" / name) if path.exists()), Path())


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_file_and_name_that_a_page_mentions_exists(path):
    text = path.read_text(encoding="utf-8")
    for file, name in re.findall(r"`([\w./]+\.(?:py|md|yaml|toml|txt|json))(?::([\w.]+))?`", text):
        if "/" not in file or file.startswith(("runs/", "train/", "tokenizer/", "corpora/")):
            continue
        assert source_of(file).is_file(), f"{path.name}: {file} does not exist"
        assert not name or name in defined(source_of(file)), f"{path.name}: {file} does not define {name}"
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        if not target.startswith("https://"):
            assert (path.parent / target).exists(), f"{path.name}: the link {target} leads nowhere"


def defined(file: Path) -> dict[str, ast.AST]:
    """What a module defines: classes, functions, methods as `Class.method`, constants."""
    found: dict[str, ast.AST] = {}
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            members = {_named(member): member for member in node.body if _named(member)}
            found |= {node.name: node, **{f"{node.name}.{name}": member for name, member in members.items()}}
        elif _named(node):
            found[_named(node)] = node
    return found


def _named(node: ast.AST) -> str | None:
    if isinstance(node, ast.FunctionDef):
        return node.name
    if isinstance(node, ast.AnnAssign):
        return ast.unparse(node.target)
    return ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else None


def documented_parts() -> Iterator[tuple[str, str, ast.AST]]:
    """File, name and stub of every class member and function in the blocks of architecture.md."""
    for block in blocks(page("architecture.md"), "python"):
        for part in re.split(r"^# (?=\S+\.py$)", block, flags=re.MULTILINE)[1:]:
            file, _, code = part.partition("\n")
            for node in ast.parse(code).body:
                members = node.body if isinstance(node, ast.ClassDef) else []
                yield file, node.name, node
                yield from ((file, f"{node.name}.{_named(member)}", member) for member in members if _named(member))


def _interface(node: ast.AST) -> str:
    if isinstance(node, ast.FunctionDef):
        return f"({ast.unparse(node.args)}) -> {node.returns and ast.unparse(node.returns)}"
    return ast.unparse(node.annotation) if isinstance(node, ast.AnnAssign) else ""


def test_every_signature_of_the_architecture_is_that_of_the_code():
    parts = list(documented_parts())
    assert len(parts) > 100
    for file, name, node in parts:
        code = defined(REPOSITORY / file)
        assert name in code or _is_instance_attribute(REPOSITORY / file, name), f"{file} does not define {name}"
        if name in code:
            assert _interface(code[name]) == _interface(node), f"{file}: {name} has another interface"


def test_a_record_of_the_architecture_has_all_its_fields():
    records = 0
    for file, name, node in documented_parts():
        fields = _fields(node)
        if fields and name in defined(REPOSITORY / file):
            assert fields >= _fields(defined(REPOSITORY / file)[name]), f"{file}: {name} has further fields"
            records += 1
    assert records > 5


def _fields(node: ast.AST) -> set[str]:
    members = node.body if isinstance(node, ast.ClassDef) else []
    return {_named(member) for member in members if isinstance(member, ast.AnnAssign)}


def _is_instance_attribute(file: Path, name: str) -> bool:
    return f"self.{name.split('.')[-1]} = " in file.read_text(encoding="utf-8")


# --- commands and examples ------------------------------------------------------------------------


def commands(*, failing: bool = True) -> Iterator[str]:
    """The command lines of all pages: `$ ` in front, continued by a backslash. Some are shown to fail."""
    line = re.compile(r"^\$ (.+)$" if failing else r"^\$ (.+)$(?!\nerror: )", re.MULTILINE)
    for path in PAGES:
        for block in blocks(path.read_text(encoding="utf-8"), "console"):
            yield from line.findall(block.replace("\\\n", " "))


def help_of(command: str, capsys: pytest.CaptureFixture) -> str | None:
    """The help of a command of ours; None for another program's."""
    if found := re.match(r"python -m (data_tools\.\w+|launch_scripts\.\w+|glm_kernels\.\w+)", command):
        package = import_module(found[1])
        module = import_module(f"{found[1]}.__main__") if hasattr(package, "__path__") else package
        with pytest.raises(SystemExit):
            module.main(["--help"])
        return capsys.readouterr().out
    if found := re.match(r"glm ([\w-]+)", command):
        parser = argparse.ArgumentParser()
        import_module(COMMANDS[found[1]][0]).add_arguments(parser)
        return parser.format_help()
    if "pretrain_glm.py" in command:
        return import_module("pretrain_glm").build_parser().format_help()
    return None


def test_every_option_that_a_page_uses_exists(capsys):
    checked = 0
    for command in commands():
        text = help_of(command, capsys)
        if text is None:
            continue
        own = command.split("pretrain_glm.py")[-1]  # what stands before it is the launcher's
        for option in re.findall(r"(?<=\s)--[a-z][\w-]*", own):
            assert option in text, f"{command}: has no option {option}"
        checked += 1
    assert checked > 8


def test_every_test_that_a_page_names_exists():
    named = {
        match for path in PAGES for match in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?", path.read_text("utf-8"))
    }
    assert len(named) > 40
    missing = [
        f"{file}::{name}"
        for file, name in named
        if not (REPOSITORY / file).exists()
        or (name and f"\ndef {name}(" not in (REPOSITORY / file).read_text(encoding="utf-8"))
    ]
    assert missing == []


def test_every_override_that_a_page_uses_is_a_setting():
    names = {re.match(r"\| `([^`]+)`", row)[1] for row in settings()}
    used = {key for command in commands(failing=False) for key in re.findall(r"(?<=\s)([a-z]+\.[a-z0-9_.]+)=", command)}
    assert used
    assert used - names == set()


def test_examples_in_python_print_what_the_page_says():
    examples = re.findall(r"^```python\n(.*?)^```\n+```text\n(.*?)^```$", page("objective.md"), re.M | re.S)
    assert examples
    for code, printed in examples:
        search = f"import sys; sys.path[:0] = {[str(REPOSITORY), str(REPOSITORY / 'kernels')]!r}\n"
        done = subprocess.run([sys.executable, "-c", search + code], capture_output=True, text=True, check=True)
        assert done.stdout == printed


@pytest.mark.golden
def test_the_published_vocabularies_have_the_hashes_that_the_page_shows(shared):
    made = {
        "bert_uncased": published.bert_uncased(shared("vocab/bert-base-uncased-vocab.txt")),
        "gpt2_bpe": published.gpt2(shared("vocab/gpt2-vocab.json"), shared("vocab/gpt2-merges.txt")),
        "roberta_bpe": published.roberta(shared("vocab/roberta-vocab.json"), shared("vocab/roberta-merges.txt")),
        "chinese": published.chinese(shared("vocab/cog-pretrain.model")),
    }
    for name, tokenizer in made.items():
        line = f"tokenizers/{name}: {tokenizer.kind}, {tokenizer.vocab_size} ids, hash {tokenizer.content_hash[:12]}"
        assert line in page("data.md")
