"""A generated program is read to the last statement: what is launched, and how many bytes it moves."""

import pytest

from benchmarks.left_to_torch.generated import TORCH_SUM, Launch, read_program, signature

KERNEL = """
import triton
import triton.language as tl
@triton_heuristics.reduction(
    triton_meta={'signature': {'in_out_ptr0': '*fp32', 'in_ptr0': '*bf16', 'ws_ptr': '*fp32', 'xnumel': 'i32',
    'XBLOCK': 'constexpr'}, 'device': DeviceProperties(type='cuda')},
)
@triton.jit
def double(in_out_ptr0, in_ptr0, ws_ptr, xnumel, XBLOCK: tl.constexpr):
    for offset in tl.range(0, xnumel, XBLOCK):
        a = tl.load(in_ptr0 + (offset + tl.arange(0, XBLOCK)), None)
    b = tl.load(in_ptr0 + tl.arange(0, XBLOCK), None).to(tl.float32)
    c = tl.load(in_out_ptr0 + tl.arange(0, XBLOCK), None)
    tl.store(in_out_ptr0 + tl.arange(0, XBLOCK), a + b + c, None)
    tl.store(ws_ptr + 0 * XBLOCK, a, None)
    tl.store(ws_ptr + 1 * XBLOCK, b, None)
"""
PROGRAM = f"""
async_compile = AsyncCompile()
double = async_compile.triton('double', '''{KERNEL}''', device_str='cuda')

class Runner:
    def call(self, args):
        primals_1, primals_2 = args
        args.clear()
        assert_size_stride(primals_1, (8, 16), (16, 1), 'input')
        assert_size_stride(primals_2, (16, 16), (16, 1), 'input')
        with torch.cuda._DeviceGuard(0):
            torch.cuda.set_device(0)
            primals_1 = copy_if_misaligned(primals_1)
            buf0 = empty_strided_cuda((8, 16), (16, 1), torch.float32)
            extern_kernels.mm(primals_1, reinterpret_tensor(primals_2, (16, 16), (1, 16), 0), out=buf0)
            buf1 = buf0; del buf0  # reuse
            workspace_0 = empty_strided_cuda((64, ), (1, ), torch.float32)
            raw_stream0 = get_raw_stream(0)
            double.run(buf1, primals_1, workspace_0, 128, stream=raw_stream0)
            buf2 = workspace_0[0 * (2) * (16) : (0 + 1) * (2) * (16)].view(2, 16).sum(dim=0).view([16])
            SLOT
        return (buf1, reinterpret_tensor(buf2, (4, 4), (4, 1), 0), )
"""


def test_every_launch_is_counted_with_the_bytes_that_it_moves():
    program = read_program(PROGRAM.replace("SLOT", "del buf2"))
    numbers = 8 * 16
    assert program.launches == [
        # In place: read and written, and bf16 in twice; the workspace is written once, in two parts.
        Launch("double", read=4 * numbers + 2 * numbers, written=4 * numbers + 4 * 64, read_again=2 * numbers),
        Launch(TORCH_SUM, read=4 * 2 * 16, written=4 * 16),
    ]
    assert program.matrix_products == 1
    assert list(program.sources) == ["double"]


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("extern_kernels.convolution(primals_1, primals_2)", "unknown call"),
        ("buf3 = torch.ops.aten.sort.default(buf2)", "unknown value"),
        ("buf3 = buf2.to(torch.bfloat16)", "unknown value"),
        ("buf1 += 1", "unknown statement"),
    ],
)
def test_what_is_not_known_is_an_error_and_not_left_out(statement, kind):
    with pytest.raises(ValueError, match=kind):
        read_program(PROGRAM.replace("SLOT", statement))


def test_an_atomic_addition_is_not_taken_for_a_store():
    with pytest.raises(ValueError, match="neither a load nor a store"):
        read_program(PROGRAM.replace("SLOT", "del buf2").replace("tl.store(ws_ptr + 0", "tl.atomic_add(ws_ptr + 0"))


def test_the_types_of_a_kernel_are_those_of_its_signature():
    assert signature(KERNEL)["in_ptr0"] == "*bf16"
    with pytest.raises(ValueError, match="no signature"):
        signature("def double(x): pass")
