"""Known calls on tensors that the stand-in (fake_exchange.cc) puts on GPUs, in a process of its own."""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

import torch

from tests.ffi.cuda_probe import load_extension
from tests.ffi.fake_driver import HEADER, call, ptx

NAME = b"dlpack_exchange_api"
N = 64
OPTIONS = (1e-6, 0.0, False)


def launcher(extension: Any, results: int) -> Any:
    """Of x, a weight, y and, with two results, an element for each row."""
    count = 2 + results
    record = call(
        ptx("known", ("u64",) * (count + 1), HEADER),
        entry="known",
        key=results,
        unit_bytes=[4 * N, 4 * N, 4 * N, 4][:count],
        dims=[1, 0, 1, 1][:count],
        rows_per_cta=1,
        grid=[2**31 - 1, 1, 1],
    )
    return extension.Launcher(record["attributes"], results)


def capsule(library: Any, major: int = 1, name: bytes = NAME) -> Any:
    get, new = ctypes.pythonapi.PyCapsule_GetPointer, ctypes.pythonapi.PyCapsule_New
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    new.restype, new.argtypes = (
        ctypes.py_object,
        [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
    )
    library.fake_exchange.restype = ctypes.c_void_p
    library.fake_exchange.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
    real = get(torch.Tensor.__dlpack_c_exchange_api__, NAME)
    return new(library.fake_exchange(real, major), name, None)


def refused(extension: Any, exchange: Any) -> str:
    try:
        extension.Tensors(exchange, torch.Tensor.is_neg, torch.empty_strided, None)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "taken"


def main() -> None:
    extension, library = load_extension(sys.argv[1]), ctypes.CDLL(sys.argv[2])
    found: dict[str, Any] = {
        "no capsule": refused(extension, 1),
        "another name": refused(extension, capsule(library, name=b"dltensor")),
        "another version": refused(extension, capsule(library, major=2)),
    }
    made: list[Any] = []

    def empty(sizes: Any, strides: Any, *, dtype: Any, device: int) -> Any:
        made.append(("empty", list(sizes), list(strides), str(dtype), device))
        tensor = torch.empty_strided(sizes, strides, dtype=dtype)
        library.place(ctypes.c_void_p(tensor.data_ptr()), device)
        return tensor

    def at_once(sizes: Any, strides: Any, dtype: Any) -> Any:
        made.append(("at once", list(sizes), list(strides), str(dtype)))
        return torch.empty_strided(sizes, strides, dtype=dtype)

    tensors = extension.Tensors(capsule(library), torch.Tensor.is_neg, empty, at_once)
    calls = extension.KnownCalls(tensors)
    x, weight = torch.ones(2, 3, N), torch.ones(N)
    found["before"] = calls(x, weight, OPTIONS, False)
    calls.keep("alone", launcher(extension, 1), 32, x, weight, OPTIONS, None)
    calls.keep("rows", launcher(extension, 2), 32, x, weight, OPTIONS, torch.float32)
    calls.keep("rows", launcher(extension, 1), 32, x, weight, (1.0, 0.0, True), torch.float32)

    def outcome(*arguments: Any) -> Any:
        made.clear()
        done = calls(*arguments)
        if done is None:
            return [None, *made]
        plan, *results = done
        places = [t.data_ptr() for t in (*arguments[:2], *results)]
        return [plan, *made, places]

    other_x, other_weight = torch.ones(2, 3, N), torch.ones(N)
    for tensor in (other_x, other_weight):
        library.place(ctypes.c_void_p(tensor.data_ptr()), 1)
    odd = torch.ones(6 * N + 1)[1:].view(2, 3, N)
    sparse = torch.eye(N).to_sparse()
    freed = torch.ones(2, 3, N)
    freed.untyped_storage().resize_(0)
    cases: dict[str, tuple[Any, ...]] = {
        "no context": (x, weight, OPTIONS, False),
        "alone": (x, weight, OPTIONS, False),
        "rows": (x, weight, OPTIONS, True),
        "one row": (x[0, 0], weight, OPTIONS, True),
        "a parameter": (x, torch.nn.Parameter(weight), OPTIONS, False),
        "another GPU": (other_x, other_weight, OPTIONS, False),
        "two GPUs": (x, other_weight, OPTIONS, False),
        "negated": (torch._neg_view(x), weight, OPTIONS, False),
        "a negated weight": (x, torch._neg_view(weight), OPTIONS, False),
        "strided rows": (x.transpose(0, 1), weight, OPTIONS, False),
        "a strided weight": (x, torch.ones(2 * N)[::2], OPTIONS, False),
        "misaligned": (odd, weight, OPTIONS, False),
        "a misaligned weight": (x, torch.ones(N + 1)[1:], OPTIONS, False),
        "no rows": (x[:0], weight, OPTIONS, False),
        "a scalar": (torch.ones(()), weight, OPTIONS, False),
        "a longer weight": (x, torch.ones(2 * N), OPTIONS, False),
        "a weight of two dimensions": (x, torch.ones(1, N), OPTIONS, False),
        "shorter rows": (x[..., :8].contiguous(), weight[:8], OPTIONS, False),
        "another dtype": (x.int(), weight, OPTIONS, False),
        "another dtype of the weight": (x, weight.half(), OPTIONS, False),
        "other options": (x, weight, (1e-5, 0.0, False), False),
        "options of other types": (x, weight, (1e-6, 0, False), False),
        "fewer options": (x, weight, (1e-6, 0.0), False),
        "too many options": (x, weight, OPTIONS * 2, False),
        "kept for another count of results": (x, weight, (1.0, 0.0, True), True),
        "no tensor": (1, weight, OPTIONS, False),
        "a sparse tensor": (sparse, weight, OPTIONS, False),
        "zeros without memory": (torch._efficientzerotensor((2, 3, N)), weight, OPTIONS, False),
        "freed": (freed, weight, OPTIONS, False),
    }
    for name, arguments in cases.items():
        found[name] = outcome(*arguments)
        if name == "no context":
            driver = ctypes.CDLL("libcuda.so.1")
            driver.cuCtxPushCurrent_v2(ctypes.c_void_p(1))  # that of GPU 0
    found["any launch"] = launches(tensors, launcher(extension, 2), x, weight, other_x)
    found["new"] = []
    for shape in (None, (4, 2), ()):
        made.clear()
        tensors.empty(x, shape, torch.half)
        found["new"] += made
    made.clear()
    tensors.empty(other_x, (3,), torch.half)
    found["new"] += made
    found["new of none"] = tensors.empty(sparse, None, torch.half)
    print(json.dumps(found))


def launches(tensors: Any, launcher: Any, x: Any, weight: Any, other: Any) -> dict[str, Any]:
    """What `Tensors.launch` says of operands and results, and the addresses of what it takes."""
    y, rows = torch.empty_like(x), torch.empty(6)
    cases = {
        "taken": (32, [x, weight], [y, rows]),
        "in place": (32, [x, weight], [x, rows]),
        "strided": (32, [x.transpose(0, 1), weight], [y, rows]),
        "negated": (32, [x, torch._neg_view(weight)], [y, rows]),
        "misaligned": (2 * x.data_ptr(), [x, weight], [y, rows]),
        "on another GPU": (32, [other, weight], [y, rows]),
        "a result elsewhere": (32, [x, weight], [y, other]),
        "a strided result": (32, [x, weight], [y, torch.empty(6, 2)[:, 0]]),
        "too few results": (32, [x, weight], [y]),
        "empty": (32, [x[:0], weight], [y[:0], rows[:0]]),
        "no tensor": (32, [x, None], [y, rows]),
        "no alignment": (0, [x, weight], [y, rows]),
    }
    outcomes: dict[str, Any] = {}
    for name, (alignment, operands, results) in cases.items():
        taken = tensors.launch(launcher, alignment, operands, results)
        outcomes[name] = [t.data_ptr() for t in (*operands, *results)] if taken else None
    return outcomes


if __name__ == "__main__":
    main()
