"""Every operation in every language refuses what it cannot take: one line that says what, got, and what to do."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from mlsys_lab.errors import CourseError, InputError, MissingToolError
from mlsys_lab.kernels import decode_attention as decoding
from mlsys_lab.kernels import quantized_matmul as quantized
from mlsys_lab.kernels import ragged_attention as ragged
from mlsys_lab.kernels.attention import STEPS as ATTENTION_STEPS
from mlsys_lab.kernels.attention import attention
from mlsys_lab.kernels.cross_entropy import cross_entropy
from mlsys_lab.kernels.decode_attention import decode_attention
from mlsys_lab.kernels.grey import grey
from mlsys_lab.kernels.matmul import matmul
from mlsys_lab.kernels.norms import layer_norm, rms_norm
from mlsys_lab.kernels.puzzles import PUZZLES, solve
from mlsys_lab.kernels.reduction import total
from mlsys_lab.kernels.runtime import on_gpu
from mlsys_lab.kernels.softmax import softmax
from mlsys_lab.kernels.transpose import transpose
from mlsys_lab.kernels.vector_add import vector_add

IN_LANGUAGES: dict[str, tuple[Callable[..., torch.Tensor], tuple[str, ...], list[torch.Tensor]]] = {
    "vector_add": (vector_add, ("numba", "cuda", "triton"), [torch.ones(3, 5), torch.ones(3, 5)]),
    "matmul": (matmul, ("numba", "cuda", "triton"), [torch.ones(3, 5), torch.ones(5, 4)]),
    "grey": (grey, ("numba", "cuda"), [torch.ones(3, 5, 3)]),
    "total": (total, ("numba", "cuda"), [torch.ones(3, 5)]),
    "transpose": (transpose, ("numba", "cuda"), [torch.ones(3, 5)]),
}
HEADS = [torch.ones(1, 2, 4, 8), torch.ones(1, 1, 6, 8), torch.ones(1, 1, 6, 8)]
CACHE = [torch.ones(2, 2, 8), torch.ones(3, 4, 1, 8), torch.ones(3, 4, 1, 8)]
PAGES = [torch.tensor([[0, 1], [2, 0]]), torch.tensor([5, 3])]

Calls = dict[str, tuple[Callable[..., torch.Tensor], list[torch.Tensor]]]
CALLS: Calls = {
    f"{name} in {language}": (functools.partial(function, language=language), inputs)
    for name, (function, languages, inputs) in IN_LANGUAGES.items()
    for language in languages
}
CALLS |= {
    f"puzzle {name}": (functools.partial(solve, name), [torch.ones((4,) * rank) for rank in puzzle.ranks])
    for name, puzzle in PUZZLES.items()
}
CALLS |= {
    "softmax": (softmax, [torch.ones(3, 5)]),
    "layer_norm": (layer_norm, [torch.ones(3, 5), torch.ones(5), torch.ones(5)]),
    "rms_norm": (rms_norm, [torch.ones(3, 5), torch.ones(5)]),
    "cross_entropy": (cross_entropy, [torch.ones(3, 5), torch.tensor([1, 2, 0])]),
}
CALLS |= {f"attention, {step}": (functools.partial(attention, step=step), HEADS) for step in ATTENTION_STEPS}
CALLS |= {
    f"decode_attention, {step}": (functools.partial(decode_attention, step=step), [*CACHE, *PAGES])
    for step in decoding.STEPS
}
CALLS |= {
    f"ragged_attention, {step}": (
        functools.partial(ragged.ragged_attention, step=step),
        [*CACHE, *PAGES, torch.tensor([0, 1, 2])],
    )
    for step in ragged.STEPS
}
CALLS |= {
    f"{multiply.__name__}, {step}": (functools.partial(multiply, step=step), [torch.ones(2, 32), *weights])
    for step in quantized.STEPS
    for multiply, weights in (
        (quantized.int8_matmul, [torch.ones(3, 32, dtype=torch.int8), torch.ones(3)]),
        (quantized.int4_matmul, [torch.ones(3, 16, dtype=torch.uint8), torch.ones(3, 1)]),
    )
}

BAD: dict[str, Callable[[torch.Tensor], Any]] = {
    "another dtype": lambda x: x.to(torch.complex64),
    "a list": lambda x: x.tolist(),
    "an array of NumPy": lambda x: x.numpy(),
    "nothing": lambda x: None,
    "no dimension": lambda x: x.flatten()[0],
    "one dimension more": lambda x: x[None],
    "sparse": lambda x: x.to_sparse(),
    "on another device": lambda x: x.to("meta"),
    "not contiguous": lambda x: torch.stack([x, x], -1)[..., 0],
}
TAKEN = {
    "total": ("no dimension", "one dimension more"),  # the sum of any tensor
    "softmax": ("one dimension more", "on another device"),  # (…, D); alone on its device, and meta is one of torch's
    "layer_norm": ("one dimension more",),
    "rms_norm": ("one dimension more",),
    **{
        f"{name} in cuda": ("on another device",) for name in ("grey", "total", "transpose")
    },  # a GPU is asked for first
    "attention, reference": ("not contiguous",),
    "decode_attention, reference": ("not contiguous",),
    "ragged_attention, reference": ("not contiguous",),
    "ragged_attention, padded": ("not contiguous",),
    **{f"{name}, reference": ("not contiguous",) for name in ("int8_matmul", "int4_matmul")},
}
"""What an operation's first argument may well be; those of the references may have any strides."""


def cases() -> list[tuple[str, int, str]]:
    found = []
    for name, (_, inputs) in CALLS.items():
        taken = TAKEN.get(name.split(" in ")[0], ()) + TAKEN.get(name, ())
        for at in range(len(inputs)):
            floats = inputs[at].is_floating_point()
            strided = name.endswith(("reference", "padded"))
            found += [(name, at, bad) for bad in BAD if bad not in taken or (at and not strided)]
            if strided and not floats:
                found.append((name, at, "not contiguous"))
    return found


@pytest.mark.parametrize(("name", "at", "bad"), cases())
def test_one_line_says_what_is_wrong_with_an_argument(name: str, at: int, bad: str) -> None:
    function, inputs = CALLS[name]
    with pytest.raises(CourseError) as caught:
        function(*inputs[:at], BAD[bad](inputs[at]), *inputs[at + 1 :])
    assert isinstance(caught.value, InputError) and caught.value.got is not None, caught.value
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", CALLS)
def test_without_elements_it_gives_a_result_or_says_why_not(name: str) -> None:
    function, inputs = CALLS[name]
    for empty in ([x[:0] for x in inputs], [x[..., :0] for x in inputs]):
        try:
            assert function(*empty).isfinite().all() or name == "cross_entropy"  # the mean of nothing is NaN
        except InputError as error:
            assert error.got is not None and "\n" not in str(error)
        except MissingToolError as error:
            assert " in cuda" in name and "needs a GPU" in str(error)


@pytest.mark.skipif(on_gpu(), reason="there is a GPU")
@pytest.mark.parametrize("name", [name for name in CALLS if name.endswith(" in cuda")])
def test_cuda_without_a_gpu(name: str) -> None:
    function, inputs = CALLS[name]
    with pytest.raises(MissingToolError, match=r"needs a GPU: got no CUDA device; help: "):
        function(*inputs)


@pytest.mark.parametrize("name", IN_LANGUAGES)
def test_a_language_that_it_is_not_written_in(name: str) -> None:
    function, languages, inputs = IN_LANGUAGES[name]
    for language in {"numba", "cuda", "triton", "metal"} - set(languages):
        with pytest.raises(InputError, match=rf"language.*: got {language}, expected numba or cuda"):
            function(*inputs, language=language)


def test_layer_norm_is_no_rms_norm() -> None:
    with pytest.raises(InputError, match=r"^layer norm needs a bias: got None, expected \(D,\); help: rms_norm has"):
        layer_norm(torch.ones(3, 5), torch.ones(5), None)  # type: ignore[arg-type]
