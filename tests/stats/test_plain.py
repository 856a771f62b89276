"""Every kind of tensor that is not plain memory: read as the numbers it stands for, or declined."""

from __future__ import annotations

import math

import pytest
import torch

from hookscope._stats import Cells, reduce_into

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


@pytest.mark.parametrize("rearranged", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int32], ids=str)
def test_a_view_counts_the_elements_it_shows(reduced, rearranged, dtype):
    x = (torch.randn(4, 5, 6, 7, generator=torch.Generator().manual_seed(1)) * 9).to(dtype)
    reduced.check(rearranged(x))


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
