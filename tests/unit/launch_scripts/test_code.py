"""A program's files: all of this repository that it can load."""

import subprocess
import sys

import pytest

from launch_scripts.demo.code import REPOSITORY, code_of

LOADED = """
import sys, runpy
sys.argv[1:] = {arguments}
try:
    runpy.run_module({module!r}, run_name="__main__")
except SystemExit as end:
    assert not end.code, end.code
print(*(f for m in list(sys.modules.values()) if (f := getattr(m, "__file__", None))), sep="\\n")
"""


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("data_tools.preprocess", "--input {corpus} --tokenizer {tokenizer} --output {tmp}/out --workers 1"),
        ("data_tools.train_tokenizer", "--input {corpus} --vocab-size 500 --output {tmp}/tokenizer"),
    ],
)
def test_whatever_a_run_loads_is_among_its_files(tmp_path, module, arguments):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text((REPOSITORY / "docs" / "data.md").read_text() + (REPOSITORY / "README.md").read_text())
    tokenizer = tmp_path / "made"
    subprocess.run(
        [
            *(sys.executable, "-m", "data_tools.train_tokenizer", "--input", str(corpus)),
            *("--vocab-size", "500", "--output", str(tokenizer)),
        ],
        check=True,
        cwd=REPOSITORY,
    )
    words = [word.format(corpus=corpus, tokenizer=tokenizer, tmp=tmp_path) for word in arguments.split()]
    script = LOADED.format(arguments=words, module=module)
    result = subprocess.run([sys.executable, "-c", script], check=True, cwd=REPOSITORY, capture_output=True, text=True)
    loaded = {line for line in result.stdout.splitlines() if line.startswith(str(REPOSITORY)) and ".venv" not in line}
    files = {str(path) for path in code_of(module)}
    assert len(loaded) > 10
    assert loaded <= files


def test_what_a_function_imports_counts_and_what_a_type_checker_imports_does_not():
    files = {path.relative_to(REPOSITORY).as_posix() for path in code_of("data_tools.preprocess")}
    assert "megatron_glm/tokenizer/sentencepiece_model.py" in files  # imported when such a tokenizer is loaded
    assert not any(file.startswith("megatron_glm/training") for file in files)


def test_the_kernels_lie_elsewhere_and_are_found():
    assert REPOSITORY / "kernels/glm_kernels/attention/op.py" in code_of("pretrain_glm")
