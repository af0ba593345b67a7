"""The rules of the house that a reader of one file cannot check: see CONTRIBUTING.md."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCES = ("megatron_glm", "kernels", "data_tools", "launch_scripts", "benchmarks", "pretrain_glm.py", "setup.py")

# What may import what: a package imports itself and those of the lines below its own. docs/architecture.md draws it.
LEVELS = (
    {"cli", "pretrain_glm", "data_tools", "launch_scripts", "benchmarks"},
    {"generation", "doctor"},
    {"release"},
    {"training"},
    {"planning"},
    {"checkpoint", "data", "model"},
    {"parallel", "objective"},
    {"tokenizer", "config"},
    {"files", "command", "glm_kernels"},
    # The last itself holds the version only.
    {"errors", "locking", "json_reading", "byte_sizes", "counting", "extras", "megatron_glm"},
)
LEVEL = {package: number for number, packages in enumerate(LEVELS) for package in packages}

# The same inside megatron_glm/training: its rooms, and the files that stand beside them.
ROOMS = (
    {"pretraining"},
    {"assembly", "announcement"},
    {"loaders"},
    {"prepared_run"},
    {"trainer", "same_everywhere", "output"},
    {"checkpoints"},
    {"control"},
    {"guards", "reports", "fault_points"},
    {"engines"},
    {"processes", "inputs", "objective_weights", "progress", "schedule"},
    {"meeting"},
    {"launcher_watch"},
    {"launchers"},
)

# The interface of a command, described once in megatron_glm/command.py and cli.py.
COMMAND_INTERFACE = {"main", "run", "add_arguments"}


def python_files(*parts: str) -> list[Path]:
    """The Python files below these parts of the repository."""
    paths = [REPOSITORY / part for part in parts]
    return [file for path in paths for file in ([path] if path.is_file() else sorted(path.rglob("*.py")))]


def text_files() -> list[Path]:
    """All files of the project that are text."""
    roots = [path for path in REPOSITORY.iterdir() if path.name in {*SOURCES, "configs", "docs", "tests", ".ci"}]
    roots += [path for path in REPOSITORY.iterdir() if path.is_file()]
    files = [file for root in roots for file in ([root] if root.is_file() else root.rglob("*"))]
    return [file for file in files if file.is_file() and "__pycache__" not in file.parts]


def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def shown(file: Path, node: ast.AST | None = None) -> str:
    return f"{file.relative_to(REPOSITORY)}" + (f":{node.lineno}" if node is not None else "")


def imported(file: Path) -> Iterator[str]:
    """Full names of the modules that a file imports, wherever in the file and if only for types."""
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:  # relative ones stay in the package
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def package_of(module: str) -> str | None:
    """The package of our own that a module belongs to; None for those of others."""
    first, *rest = module.split(".")
    if first != "megatron_glm":
        return first if first in LEVEL else None
    return rest[0] if rest and rest[0] in LEVEL else first


def test_imports_point_down_only():
    upward = []
    for file in python_files(*SOURCES[:-1]):
        place = file.relative_to(REPOSITORY).with_suffix("")
        own = package_of(".".join(place.parts).removeprefix("kernels."))
        assert own in LEVEL, f"{shown(file)}: belongs to no level"
        for module in imported(file):
            other = package_of(module)
            if other is not None and other != own and LEVEL[other] <= LEVEL[own]:
                upward.append(f"{shown(file)} imports {module}")
    assert upward == []


def test_inside_training_imports_point_down_only():
    level = {room: number for number, rooms in enumerate(ROOMS) for room in rooms}
    upward = []
    for file in python_files("megatron_glm/training"):
        own = file.relative_to(REPOSITORY / "megatron_glm/training").with_suffix("").parts[0]
        for module in imported(file):
            other = module.removeprefix("megatron_glm.training.").split(".")[0]
            if module.startswith("megatron_glm.training.") and other != own and level[other] <= level[own]:
                upward.append(f"{shown(file)} imports {module}")
    assert upward == []


def test_every_package_has_a_level():
    packages = {path.name for path in (REPOSITORY / "megatron_glm").iterdir() if (path / "__init__.py").exists()}
    modules = {path.stem for path in (REPOSITORY / "megatron_glm").glob("*.py")} - {"__init__"}
    assert packages | modules <= LEVEL.keys()


def test_the_kernels_import_nothing_of_ours():
    assert [m for file in python_files("kernels") for m in imported(file) if m.startswith("megatron_glm")] == []


def test_the_objectives_know_neither_torch_nor_files():
    foreign = {"torch", "pathlib", "os", "io"}
    names = [(file, module) for file in python_files("megatron_glm/objective") for module in imported(file)]
    assert [f"{shown(file)}: {module}" for file, module in names if module.split(".")[0] in foreign] == []


@pytest.mark.parametrize("part", ["megatron_glm/model", "kernels", "megatron_glm/generation"])
def test_the_shape_of_the_model_knows_no_ranks(part):
    modules = [module for file in python_files(part) for module in imported(file)]
    assert [m for m in modules if m.startswith(("torch.distributed", "deepspeed", "megatron_glm.parallel"))] == []


def test_no_file_is_named_after_what_does_not_fit_elsewhere():
    forbidden = {"utils", "util", "helpers", "helper", "common", "misc", "tools"}
    assert [shown(file) for file in python_files(*SOURCES, "tests") if file.stem in forbidden] == []


def test_kernels_is_a_folder_and_no_package():
    # A package importable as `kernels` would shadow the Hugging Face package of that name.
    assert not (REPOSITORY / "kernels" / "__init__.py").exists()


def forbidden_calls(file: Path) -> Iterator[str]:
    """Constructs that let data run as code."""
    for node in ast.walk(parsed(file)):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        if name in {"eval", "exec", "compile", "os.system", "yaml.load", "yaml.unsafe_load", "numpy.load", "np.load"}:
            yield f"{shown(file, node)}: {name}"
        if keywords.get("shell", "False") != "False":
            yield f"{shown(file, node)}: shell={keywords['shell']}"
        if name in {"torch.load", "load"} and keywords.get("weights_only", "True") != "True":
            yield f"{shown(file, node)}: weights_only={keywords['weights_only']}"
        if name == "torch.load" and shown(file) != "megatron_glm/checkpoint/original.py":
            yield f"{shown(file, node)}: torch.load"


def test_no_data_runs_as_code():
    assert [call for file in python_files(*SOURCES) for call in forbidden_calls(file)] == []


def test_the_original_format_is_read_by_the_restricted_unpickler():
    nodes = ast.walk(parsed(REPOSITORY / "megatron_glm/checkpoint/original.py"))
    loads = [
        ast.unparse(node) for node in nodes if isinstance(node, ast.Call) and "torch.load" in ast.unparse(node.func)
    ]
    assert loads
    assert all("weights_only=True" in load for load in loads)


def test_nothing_is_pickled():
    modules = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
    names = [(file, module) for file in python_files(*SOURCES) for module in imported(file)]
    assert [f"{shown(file)}: {module}" for file, module in names if module.split(".")[0] in modules] == []


def test_the_forbidden_constructs_would_be_seen(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "REPOSITORY", tmp_path)
    file = tmp_path / "bad.py"
    lines = ["eval('1')", "run(x, shell=True)", "yaml.load(f)", "torch.load(f, weights_only=False)"]
    file.write_text("\n".join(lines), encoding="utf-8")
    found = [line.split(": ")[1] for line in forbidden_calls(file)]
    assert found == ["eval", "shell=True", "yaml.load", "weights_only=False", "torch.load"]


def undocumented(file: Path) -> Iterator[str]:
    """The module, its public classes and functions, where they lack a docstring."""
    tree = parsed(file)
    if tree.body and not ast.get_docstring(tree):
        yield shown(file)
    for node in tree.body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if node.name.startswith("_") or node.name in COMMAND_INTERFACE or ast.get_docstring(node):
            continue
        yield f"{shown(file, node)}: {node.name}"


def test_every_public_module_class_and_function_says_what_it_is():
    assert [name for file in python_files(*SOURCES) for name in undocumented(file)] == []


def test_no_file_names_a_place_of_one_machine():
    place = re.compile(r"(?<![\w.:/~{}$-])/(?:work|home|root|Users|mnt|scratch)/\w")
    found = []
    for file in text_files():
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:  # a picture
            continue
        found += [f"{shown(file)}:{number}" for number, line in enumerate(lines, start=1) if place.search(line)]
    assert found == []


def test_tests_lie_where_the_tested_code_lies():
    folders = {path.name for path in (REPOSITORY / "tests" / "unit").iterdir() if path.is_dir()} - {"__pycache__"}
    ours = {path.name for path in (REPOSITORY / "megatron_glm").iterdir()} | set(SOURCES)
    assert folders <= ours


def commands() -> list[str]:
    """The modules that are started by name: those of `python -m` and of the launcher."""
    started = [f"data_tools.{file.stem}" for file in python_files("data_tools") if "__main__" in file.read_text()]
    named = ["megatron_glm.cli", "megatron_glm.doctor.__main__", "pretrain_glm", "glm_kernels.tune"]
    named += [f"launch_scripts.{name}.__main__" for name in ("demo", "supervise")]
    return [*named, *started]


def test_neither_the_package_nor_any_help_imports_torch():
    # One process for all of them: starting Python is the dearest part.
    program = f"""
import sys
from importlib import import_module
import megatron_glm
for name in {commands()!r}:
    sys.argv = [name, "--help"]
    try:
        import_module(name).main()
    except SystemExit as end:
        assert end.code == 0, name
    assert not {{"torch", "deepspeed", "transformers"}} & sys.modules.keys(), name
"""
    path = [str(REPOSITORY), str(REPOSITORY / "kernels")]
    program = f"import sys\nsys.path[:0] = {path!r}\n{program}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("usage:") == len(commands())
