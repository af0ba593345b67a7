"""What a program that Inductor wrote launches, and how many bytes each launch moves.

The program is read, not run. A statement that is not known is an error: nothing is left out silently.
"""

from __future__ import annotations

import ast
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

# Bytes of a number, by the name that Triton's signatures and torch have for its type.
_SIZES = {"bf16": 2, "fp16": 2, "fp32": 4, "bfloat16": 2, "float16": 2, "float32": 4}
# What hands memory on or out and moves nothing: of calls whose result is named, and of those whose is not.
_SILENT = {"copy_if_misaligned", "get_raw_stream", "args.clear", "torch.cuda.set_device"}
_MATRIX_PRODUCTS = {"extern_kernels.mm", "extern_kernels.addmm"}
TORCH_SUM = "torch.sum"


@dataclass(frozen=True)
class Launch:
    """One kernel's run.

    Attributes:
        read, written: bytes of the tensors that it loads from and stores to, each once.
        read_again: bytes of further loads from the same tensors, of what this run has just loaded.
    """

    kernel: str
    read: int
    written: int
    read_again: int = 0


@dataclass
class Program:
    """A generated program: its launches in order, the products that a library computes, its kernels' sources."""

    launches: list[Launch] = field(default_factory=list)
    matrix_products: int = 0
    sources: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Kernel:
    pointers: dict[str, int]  # size of a number, by the place of the argument's name
    loads: Counter[str]
    stores: Counter[str]


def read_program(source: str) -> Program:
    """Read a generated program.

    Raises:
        ValueError: it does something that is not known here.
    """
    tree, program = ast.parse(source), Program()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "async_compile.triton":
            name, text = (argument.value for argument in node.args)
            program.sources[name] = text
    kernels = {name: _kernel(text) for name, text in program.sources.items()}
    call = next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "call")
    _Reader(program, kernels).block(call.body)
    return program


class _Reader:
    """Goes through the statements of a program in order, with the numbers that each tensor so far holds."""

    def __init__(self, program: Program, kernels: dict[str, _Kernel]):
        self._program, self._kernels = program, kernels
        self._numel: dict[str, int] = {}

    def block(self, statements: list[ast.stmt]) -> None:
        for statement in statements:
            match statement:
                case ast.With(body=body):
                    self.block(body)
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    self._named(name, value)
                case ast.Expr(value=ast.Call() as call):
                    self._call(call)
                case ast.Assign(targets=[ast.Tuple()]) | ast.Delete() | ast.Return():
                    pass
                case _:
                    raise ValueError(f"generated program: unknown statement {ast.unparse(statement)!r}")

    def _named(self, name: str, value: ast.expr) -> None:
        match value:
            case ast.Name(id=other):
                self._numel[name] = self._numel[other]
            case ast.Call(func=ast.Name(id="empty_strided_cuda"), args=[shape, *_]):
                self._numel[name] = math.prod(ast.literal_eval(shape))
            case ast.Call(func=ast.Name(id="reinterpret_tensor")):
                self._numel[name] = self._numbers(value)
            case ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Attribute(attr="sum") as of), attr="view")):
                # A kernel of torch adds up the parts that programs left in a workspace, in fp32.
                read, self._numel[name] = _view(of.value), _view(value)
                self._program.launches.append(Launch(TORCH_SUM, 4 * read, 4 * self._numel[name]))
            case ast.Call(func=function) if ast.unparse(function) in _SILENT:
                pass
            case _:
                raise ValueError(f"generated program: unknown value {ast.unparse(value)!r}")

    def _call(self, call: ast.Call) -> None:
        function = ast.unparse(call.func)
        if function == "assert_size_stride":
            self._numel[call.args[0].id] = math.prod(ast.literal_eval(call.args[1]))
        elif function in _MATRIX_PRODUCTS:
            self._program.matrix_products += 1
        elif function.endswith(".run"):
            self._program.launches.append(self._launch(function.removesuffix(".run"), call.args))
        elif function not in _SILENT:
            raise ValueError(f"generated program: unknown call {ast.unparse(call)!r}")

    def _launch(self, name: str, arguments: list[ast.expr]) -> Launch:
        kernel, read, written, again = self._kernels[name], 0, 0, 0
        for argument, (pointer, size) in zip(arguments, kernel.pointers.items(), strict=False):
            amount = size * self._numbers(argument) if size else 0
            loads = kernel.loads[pointer]
            read += amount * min(loads, 1)
            again += amount * max(loads - 1, 0)
            written += amount * min(kernel.stores[pointer], 1)
        return Launch(name, read, written, again)

    def _numbers(self, tensor: ast.expr) -> int:
        if isinstance(tensor, ast.Name):
            return self._numel[tensor.id]
        return math.prod(ast.literal_eval(tensor.args[1]))  # reinterpret_tensor(x, shape, …)


def _view(call: ast.expr) -> int:
    """The numbers of `x.view(3, 4)` or `x.view([12])`."""
    return math.prod(size for argument in call.args for size in _flat(ast.literal_eval(argument)))


def _flat(value: int | list[int]) -> Iterator[int]:
    yield from value if isinstance(value, list) else [value]


def _kernel(source: str) -> _Kernel:
    function = next(node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef))
    names = [argument.arg for argument in function.args.args]
    types = signature(source)
    # A scalar argument has a place and no size.
    pointers = {name: _SIZES[types[name][1:]] if types.get(name, "").startswith("*") else 0 for name in names}
    found = {"load": Counter(), "store": Counter()}
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("tl.atomic"):
            raise ValueError(f"generated kernel: {ast.unparse(node)!r} is neither a load nor a store")
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"tl.load", "tl.store"}:
            used = {name.id for name in ast.walk(node.args[0]) if isinstance(name, ast.Name)}
            (pointer,) = used & {name for name, size in pointers.items() if size}
            found[node.func.attr][pointer] += 1
    return _Kernel(pointers, found["load"], found["store"])


def signature(source: str) -> dict[str, str]:
    """The types of a generated kernel's arguments: "*bf16", "i32", "constexpr"."""
    dicts = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Dict)]
    for node in dicts:
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == "signature":
                return ast.literal_eval(value)
    raise ValueError("generated kernel: it has no signature")
