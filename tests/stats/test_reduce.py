"""One tensor into eight numbers, by every backend, against the definition in Python's floats."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hookscope._core._stats import EMPTY, Stats
from hookscope._stats import Cells, reduce_into

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
BITS = {torch.float32: np.int32, torch.float64: np.int64, torch.float16: np.int16, torch.bfloat16: np.int16}
EDGES = [0, 1, 7, 8, 9, 15, 16, 17, 31, 33, 2047, 2048, 2049, 4097, 32769, 70001]
VIEWS = {
    "transposed": lambda x: x.transpose(0, 3),
    "permuted": lambda x: x.permute(2, 0, 3, 1),
    "channels_last": lambda x: x.to(memory_format=torch.channels_last),
    "rows": lambda x: x[:, 1:],
    "column": lambda x: x[..., :1],
    "strided": lambda x: x[..., ::2],
    "slice_transposed": lambda x: x[1, :, 2:4].transpose(0, 2),
    "overlapping": lambda x: x.unfold(3, 3, 1),
    "expanded": lambda x: x[:, :, :1].expand(-1, -1, 9, -1),
    "one_value_expanded": lambda x: x[0, 0, 0, 0].expand(4, 5),
    "expanded_and_strided": lambda x: x[:, 0, None].expand(-1, 6, -1, -1)[..., ::2],
    "diagonal": lambda x: x.diagonal(),
    "empty": lambda x: x[:, :0],
}
one_backend_a_test = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def any_bits(draw: st.DrawFn) -> torch.Tensor:
    """Floats of any bit pattern: NaNs with payloads, infinities, subnormals and both zeros come by themselves."""
    dtype = draw(st.sampled_from(FLOATS))
    kind = np.dtype(BITS[dtype])
    patterns = draw(st.binary(max_size=40 * kind.itemsize).map(lambda b: b[: len(b) // kind.itemsize * kind.itemsize]))
    tensor = torch.from_numpy(np.frombuffer(patterns, kind).copy()).view(dtype)
    return tensor.repeat(draw(st.sampled_from([1, 3, 70]))) if dtype is not torch.float64 else tensor.clamp(-1e150, 1e150)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("n", EDGES)
def test_every_length_around_a_vector_or_block_is_right(reduced, dtype, n):
    generator = torch.Generator().manual_seed(n)
    reduced.check(torch.randn(n, generator=generator, dtype=torch.float64).to(dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf, 0.0, -0.0])
def test_one_odd_value_is_counted_wherever_it_stands(reduced, dtype, odd):
    for n in (5, 40, 2100):
        for place in {0, 1, n // 2, n - 2, n - 1}:
            tensor = torch.linspace(1, 2, n, dtype=torch.float64).to(dtype)
            tensor[place] = odd
            reduced.check(tensor)


@one_backend_a_test
@given(tensor=any_bits())
def test_any_bit_pattern_is_right(reduced, tensor):
    reduced.check(tensor)


@one_backend_a_test
@given(tensor=any_bits(), data=st.data())
def test_the_stats_of_any_split_merge_to_those_of_the_whole(reduced, tensor, data):
    cut = data.draw(st.integers(0, len(tensor)))
    merged, whole = reduced(tensor[:cut]).merge(reduced(tensor[cut:])), reduced(tensor)
    assert (*merged[:4], *merged[6:]) == (*whole[:4], *whole[6:])
    finite = tensor[tensor.isfinite()].double()
    assert math.isclose(merged.sum, whole.sum, rel_tol=0, abs_tol=1e-12 * finite.abs().sum().item())
    assert math.isclose(merged.sumsq, whole.sumsq, rel_tol=1e-12)


@one_backend_a_test
@given(tensor=any_bits(), seed=st.integers(0, 99))
def test_the_order_of_the_elements_does_not_matter(reduced, tensor, seed):
    order = torch.randperm(len(tensor), generator=torch.Generator().manual_seed(seed))
    reduced.check(tensor[order], tensor.double().tolist())


@pytest.mark.parametrize("rearranged", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32], ids=str)
def test_a_view_counts_the_elements_it_shows(reduced, rearranged, dtype):
    x = (torch.randn(4, 5, 6, 7, generator=torch.Generator().manual_seed(1)) * 9).to(dtype)
    reduced.check(rearranged(x))


def test_no_element_gives_the_empty_row(reduced):
    for dtype in (*FLOATS, torch.int64, torch.bool):
        assert reduced(torch.empty(0, 3, dtype=dtype)) == EMPTY
        assert reduced(torch.empty(3, 0, dtype=dtype).T) == EMPTY


def test_all_nan_has_neither_minimum_nor_maximum(reduced):
    assert reduced(torch.full((3000,), math.nan)) == Stats(3000, 3000, 0, 0, 0.0, 0.0, math.inf, -math.inf)


def test_a_mask_of_minus_infinity_shows_as_the_minimum(reduced):
    assert reduced(torch.tensor([-math.inf, 1.0, 2.0])) == Stats(3, 0, 1, 0, 3.0, 5.0, -math.inf, 2.0)


@pytest.mark.parametrize("value", [1e30, 3e38, 1e-25, 1e-38, 1e-45])
def test_squares_beyond_what_float32_holds_are_right(reduced, value):
    tensor = torch.full((5000,), value)
    stored = float(np.float32(value))
    assert reduced(tensor).sumsq == pytest.approx(5000 * stored * stored, rel=1e-12)


def test_a_float16_overflow_and_a_subnormal_are_seen_as_stored(reduced):
    tensor = torch.tensor([70000.0, 6e-8, 1e-9, -65504.0]).half()
    assert reduced(tensor) == Stats(4, 0, 1, 1, 2.0**-24 - 65504.0, 65504.0**2 + 2.0**-48, -65504.0, math.inf)


def test_a_sum_that_cancels_keeps_its_small_remainder(reduced):
    tensor = torch.tensor([1e8, 1.0, -1e8] * 3000)
    assert reduced(tensor).sum == 3000.0


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16], ids=str)
def test_integers_and_booleans_are_exact(reduced, dtype):
    tensor = torch.tensor([0, 1, 1, 0, 1] if dtype is torch.bool else [0, 1, 100, 7, 0]).to(dtype)
    reduced.check(tensor)


def test_integers_that_would_overflow_their_own_sum_do_not(reduced):
    assert reduced(torch.full((4,), 2**62)).sum == 2.0**64


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_complex_numbers_count_by_their_absolute_value(reduced):
    for dtype in (torch.complex64, torch.complex128, torch.complex32):
        reduced.check(torch.tensor([3 + 4j, 0, -5j]).to(dtype), [5.0, 0.0, 5.0])
    reduced.check(torch.tensor([3 + 4j, 0]).conj(), [5.0, 0.0])


def test_a_lazily_negated_view_is_read_with_its_sign(reduced):
    imaginary = torch.tensor([1 + 2j, 3 - 4j]).conj().imag
    assert imaginary.is_neg()
    reduced.check(imaginary, [-2.0, 4.0])


def test_eight_bit_floats_are_read_as_the_numbers_they_hold(reduced):
    reduced.check(torch.tensor([1.0, -448.0, 0.0, math.nan]).to(torch.float8_e4m3fn), [1.0, -448.0, 0.0, math.nan])
    reduced.check(torch.tensor([0.5, math.inf]).to(torch.float8_e5m2), [0.5, math.inf])


def test_sparse_tensors_count_their_implicit_zeros_and_sum_duplicates_first(reduced):
    indices = torch.tensor([[0, 0, 2], [1, 1, 0]])
    coo = torch.sparse_coo_tensor(indices, torch.tensor([3.0, 4.0, -2.0]), (3, 4), check_invariants=True)
    reduced.check(coo, [7.0, -2.0] + [0.0] * 10)
    positive = torch.sparse_coo_tensor(indices[:, 1:], torch.tensor([4.0, 2.0]), (3, 4), check_invariants=True)
    reduced.check(positive, [4.0, 2.0] + [0.0] * 10)
    reduced.check(
        torch.sparse_coo_tensor(torch.zeros(1, 0, dtype=torch.long), torch.zeros(0, 2), (5, 2), check_invariants=True), [0.0] * 10
    )


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_compressed_sparse_tensors_count_their_implicit_zeros(reduced):
    dense = torch.tensor([[0.0, 1.5, 0.0, 0.0], [0.0, 0.0, -2.0, 4.0]])
    for sparse in (dense.to_sparse_csr(), dense.to_sparse_csc(), dense.to_sparse_bsr((2, 2))):
        reduced.check(sparse, dense.flatten().tolist())


@pytest.mark.filterwarnings("ignore:.*:UserWarning", "ignore:.*:DeprecationWarning")
def test_quantized_tensors_are_read_as_what_they_stand_for(reduced):
    reduced.check(torch.quantize_per_tensor(torch.tensor([0.5, -1.0, 0.0]), 0.5, 3, torch.qint8), [0.5, -1.0, 0.0])


@pytest.mark.filterwarnings("ignore:.*nested:UserWarning")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_are_read_element_by_element(reduced, layout):
    parts = [torch.arange(6.0).reshape(2, 3), torch.full((1, 3), -9.0)]
    reduced.check(torch.nested.nested_tensor(parts, layout=layout), torch.cat(parts).flatten().tolist())


def test_the_holes_of_a_jagged_tensor_are_not_read(reduced):
    padded = torch.tensor([[1.0, 2.0, 777.0], [3.0, 777.0, 777.0]])
    jagged = torch.nested.narrow(padded, 1, torch.tensor([0, 0]), torch.tensor([2, 1]), layout=torch.jagged)
    reduced.check(jagged, [1.0, 2.0, 3.0])


def test_a_subclass_that_only_overrides_functions_is_read_without_calling_it(reduced):
    class Loud(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            if func.__name__ in ("to", "double", "abs", "sum"):
                raise AssertionError(func)
            return super().__torch_function__(func, types, args, kwargs)

    reduced.check(torch.tensor([1.0, -2.0]).as_subclass(Loud), [1.0, -2.0])


def test_what_holds_no_numbers_is_declined_and_the_row_stays_as_it_was():
    from torch._subclasses.fake_tensor import FakeTensorMode

    row = Cells("cpu").row()
    before = row.view.clone()
    with FakeTensorMode():
        fake = torch.empty(3)
    freed = torch.randn(8)[2:]
    freed_strided = freed[::2]
    freed.untyped_storage().resize_(0)
    freed_complex = torch.randn(8, dtype=torch.complex64)
    freed_complex.untyped_storage().resize_(0)
    for nothing in (fake, torch.empty(3, device="meta"), torch.nn.parameter.UninitializedParameter(), freed, freed_strided, freed_complex):
        assert reduce_into(row, nothing) is False
    assert torch.equal(row.view, before)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch.func.jvp itself calls it
@pytest.mark.parametrize("transform", ["vmap", "grad", "jvp", "functionalize"])
def test_tensors_wrapped_by_a_functorch_transform_are_declined(transform):
    row, answers = Cells("cpu").row(), []
    captured = torch.arange(3)

    def watched(x):
        answers.extend((reduce_into(row, x), reduce_into(row, captured)))
        return x.sum() if transform == "grad" else x * 1

    x = torch.randn(3, 2)
    {
        "vmap": lambda: torch.func.vmap(watched)(x),
        "grad": lambda: torch.func.grad(watched)(x),
        "jvp": lambda: torch.func.jvp(watched, (x,), (x,)),
        "functionalize": lambda: torch.func.functionalize(watched)(x),
    }[transform]()
    assert answers == [False, False]


def test_a_tensor_on_another_device_than_the_row_is_declined():
    row = Cells("meta").row()
    assert reduce_into(row, torch.ones(3)) is False


def test_nothing_of_the_tensor_or_the_generator_changes(reduced):
    leaf = torch.randn(40, 3, requires_grad=True)
    tensor = (leaf * 2).T
    version, values, state = tensor._version, tensor.detach().clone(), torch.get_rng_state()
    reduced(tensor)
    reduced(leaf)
    reduced(tensor[::2].int())
    assert tensor._version == version
    assert torch.equal(tensor, values)
    assert torch.equal(torch.get_rng_state(), state)
    assert not reduced.row.view.requires_grad
    tensor.sum().backward()
    assert torch.equal(leaf.grad, torch.full((40, 3), 2.0))


def test_autocast_changes_no_number(reduced):
    x = torch.randn(333, 3, generator=torch.Generator().manual_seed(0))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for tensor in (x, x.double(), x.bfloat16(), x[::2], (x * 9).int()):
            reduced.check(tensor)


def test_inference_mode_may_begin_or_end_between_any_two_steps():
    with torch.inference_mode():
        cells = Cells("cpu")
        row = cells.row()
        assert reduce_into(row, torch.arange(4.0))
        assert reduce_into(row, torch.arange(4))
        made_inside = torch.arange(4)
    assert reduce_into(row, torch.arange(5))
    assert reduce_into(row, made_inside)
    assert cells.read([row])[0].tolist() == [4, 0, 0, 1, 6, 14, 0, 3]
    with torch.inference_mode():
        assert reduce_into(row, torch.arange(2))
    assert cells.read([row])[0, 0] == 2


def test_defaults_for_new_tensors_do_not_reach_the_rows(monkeypatch):
    torch.set_default_dtype(torch.float16)
    try:
        with torch.device("meta"):
            cells = Cells("cpu")
            row = cells.row()
            assert reduce_into(row, torch.arange(4, device="cpu"))
    finally:
        torch.set_default_dtype(torch.float32)
    assert cells.read([row])[0, 4] == 6
    assert row.view.dtype is torch.float64


def test_a_distributed_tensor_is_read_as_its_local_part():
    import torch.distributed as dist
    from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (2,))
        sharded = distribute_tensor(torch.arange(8.0), mesh, [Shard(0)], src_data_rank=None)
        cells = Cells("cpu")
        row = cells.row()
        assert reduce_into(row, sharded)
    finally:
        dist.destroy_process_group()
    assert cells.read([row])[0].tolist() == [4, 0, 0, 1, 6, 14, 0, 3]
