"""What a kernel costs on a chip that is not here: registers, spills, shared memory, tensor cores.

Triton compiles ahead of time for any architecture, and its wheel brings NVIDIA's assembler and
disassembler. So each tile of the tables can be proven to fit without a GPU: a kernel that spills
registers, or that misses the tensor cores, is slow in a way that no test of its values shows.

Each package lists what it launches in a module of its own, `glm_kernels/<package>/compilations.py`,
as `compilations(architecture) -> Iterator[Compilation]`: every entry of its tile table, in each type of number.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from os import close, dup, dup2
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

# Shared memory that one block may have, bytes. Source: CUDA C++ programming guide, table of compute capabilities.
SHARED_MEMORY = {"sm_80": 163 << 10, "sm_90": 227 << 10}

# What the assembler says of every kernel; whatever else it says is a warning.
_USUAL = re.compile(
    r"^$|bytes gmem|Compiling entry function|Function properties for|bytes stack frame|Used \d+ registers|Compile time"
)
_TENSOR_CORE = re.compile(r"\b(?:HMMA|HGMMA)\b")
_HALF_DOT = re.compile(r"tt\.dot .*tensor<[\dx]+x(?:bf16|f16)> \*")


@dataclass(frozen=True)
class Compilation:
    """A kernel with everything that its machine code depends on."""

    name: str  # unique in its package, such as "forward bf16 d64 128x64 w8 s3"
    fn: Any  # the function under @triton.jit
    signature: Mapping[str, str]  # type of every argument that is no constexpr: "*bf16", "*i64", "i32", "fp32"
    constexprs: Mapping[str, Any]  # value of every constexpr
    options: Mapping[str, int] = field(default_factory=dict)  # num_warps, num_stages
    aligned: Sequence[str] = ()  # arguments that are multiples of 16: pointers, and strides that always are


@dataclass(frozen=True)
class Compiled:
    """What came out, by the assembler's own account."""

    registers: int  # a thread
    spill_bytes: int  # of registers stored to local memory, a thread
    shared_bytes: int  # a block
    half_dots: int  # matrix products of 16-bit operands in the source
    tensor_core_instructions: int
    warnings: tuple[str, ...]


def compile_for(compilation: Compilation, arch: str) -> Compiled:
    """Compile for an architecture, "sm_80" or "sm_90", without a GPU.

    Raises:
        RuntimeError: TRITON_INTERPRET was set when the kernel was decorated: it is no program for a GPU then.
        triton.CompilationError: the kernel does not compile.
    """
    import triton
    from triton import knobs

    source, target = _source(compilation), _target(arch)
    log, messages = StringIO(), []
    with ExitStack() as stack:
        stack.enter_context(knobs.compilation.scope())
        stack.enter_context(knobs.nvidia.scope())
        # From the cache it would come without the assembler's log.
        knobs.compilation.always_compile, knobs.nvidia.dump_ptxas_log = True, True
        stack.enter_context(redirect_stdout(log))
        stack.enter_context(_errors_of_the_process(messages))
        said = stack.enter_context(warnings.catch_warnings(record=True))
        kernel = triton.compile(source, target=target, options=dict(compilation.options))
    text = log.getvalue()
    unusual = [line for line in text.splitlines() if not _USUAL.search(line)]
    return Compiled(
        registers=int(re.search(r"Used (\d+) registers", text)[1]),
        spill_bytes=int(re.search(r"(\d+) bytes spill stores", text)[1]),
        shared_bytes=kernel.metadata.shared,
        half_dots=len(_HALF_DOT.findall(kernel.asm["ttir"])),
        tensor_core_instructions=len(_TENSOR_CORE.findall(_disassembly(kernel.asm["cubin"]))),
        warnings=(*unusual, *messages, *(str(warning.message) for warning in said)),
    )


def fingerprint(compilation: Compilation, arch: str) -> str:
    """A hash of the program that `compile_for` would compile: equal ones have equal results in one version of Triton.

    It takes a twentieth of the time. Comments and lines of the source do not count, what they mean does.
    """
    from triton._C.libtriton import ir
    from triton.compiler.compiler import make_backend

    target = _target(arch)
    backend = make_backend(target)
    options = backend.parse_options(dict(compilation.options))
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    functions = backend.get_codegen_implementation(options)
    program = _source(compilation).make_ir(target, options, functions, backend.get_module_map(), context)
    text = f"{arch} {sorted(compilation.options.items())} {program.str_nodebug()}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _target(arch: str) -> GPUTarget:
    from triton.backends.compiler import GPUTarget

    return GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)


def _source(compilation: Compilation) -> ASTSource:
    from triton import JITFunction
    from triton.compiler import ASTSource

    kernel, constexprs = compilation.fn, compilation.constexprs
    if not isinstance(kernel, JITFunction):
        raise RuntimeError(f"{compilation.name}: decorated under TRITON_INTERPRET; unset it in a process that compiles")
    # In the order of the arguments, which is what the compiler goes by.
    types = {name: "constexpr" if name in constexprs else compilation.signature[name] for name in kernel.arg_names}
    places = [kernel.arg_names.index(name) for name in compilation.aligned]
    return ASTSource(kernel, types, dict(constexprs), attrs={(place,): [["tt.divisibility", 16]] for place in places})


def _disassembly(cubin: bytes) -> str:
    import triton

    program = Path(triton.__file__).parent / "backends/nvidia/bin/nvdisasm"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        return subprocess.run([program, "-c", file.name], check=True, capture_output=True, text=True).stdout


@contextmanager
def _errors_of_the_process(lines: list[str]) -> Iterator[None]:
    """Append what compiled code writes to standard error, which Python's sys.stderr does not see."""
    sys.stderr.flush()
    with tempfile.TemporaryFile("w+") as file:
        saved = dup(2)
        dup2(file.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            dup2(saved, 2)
            close(saved)
            file.seek(0)
            lines.extend(file.read().splitlines())
