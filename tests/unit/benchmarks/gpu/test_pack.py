"""What travels to a machine without a network: everything pinned, and only what is missing is installed."""

import os
import subprocess
import sys
import zipfile

import pytest

from benchmarks.gpu import pack
from benchmarks.gpu.unpack import is_installed, main


def wheel(directory, name, version="1.0"):
    """A wheel with one module."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"VERSION = '{version}'\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"])
    path = directory / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in (files | {f"{info}/RECORD": record}).items():
            archive.writestr(file, text)
    return path


def test_only_what_is_missing_is_installed(tmp_path, capsys):
    wheels = tmp_path / "pack" / "wheels"
    wheels.mkdir(parents=True)
    wheel(wheels, "glm_absent_package")
    wheel(wheels, "numpy", "0.0.1")
    assert main([str(tmp_path / "pack"), str(tmp_path / "site")]) == 0
    assert "glm_absent_package" in capsys.readouterr().out.split("installed from")[1]
    assert (tmp_path / "site" / "glm_absent_package.py").exists()
    assert not (tmp_path / "site" / "numpy.py").exists()
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "site")}
    program = "import glm_absent_package, numpy; print(glm_absent_package.VERSION, numpy.__version__ != '0.0.1')"
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "1.0 True\n"


def test_nothing_is_installed_where_nothing_is_missing(tmp_path, capsys):
    (tmp_path / "wheels").mkdir()
    wheel(tmp_path / "wheels", "torch", "0.0.1")
    assert main([str(tmp_path), str(tmp_path / "site")]) == 0
    assert "nothing" in capsys.readouterr().out
    assert not (tmp_path / "site").exists()


def test_names_are_compared_as_the_index_does(tmp_path):
    assert is_installed(tmp_path / "typing_extensions-0-py3-none-any.whl")
    assert pack.canonical("Typing_Extensions") == "typing-extensions"


def test_every_package_that_travels_has_a_version():
    versions = pack.pinned()
    assert [name for name in (*pack._SOURCE_ONLY, *pack._WHEELS) if pack.canonical(name) not in versions] == []


def test_a_pack_that_is_too_large_is_refused_and_the_old_one_stays(tmp_path, monkeypatch, capsys):
    old = tmp_path / "pack"
    old.mkdir()
    (old / "kept").touch()
    monkeypatch.setattr(pack, "LARGEST", 1 << 20)

    def large(directory, python):
        directory.mkdir(parents=True)
        (directory / "large.whl").write_bytes(bytes(2 << 20))

    monkeypatch.setattr(pack, "wheels", large)
    with pytest.raises(SystemExit):
        pack.main(["--output", str(old), "--golden", str(tmp_path / "none")])
    assert "2 MB, and 1 MB may travel" in capsys.readouterr().err
    assert (old / "kept").exists()
    monkeypatch.setattr(pack, "LARGEST", 64 << 20)
    golden = tmp_path / "golden"
    golden.mkdir()
    (golden / "weights").touch()
    assert pack.main(["--output", str(old), "--golden", str(golden)]) == 0
    assert sorted(file.name for file in old.rglob("*") if file.is_file()) == ["large.whl", "weights"]
