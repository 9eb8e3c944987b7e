"""PTX that nobody wrote by hand: programs in CUDA C++ as nvcc compiles them, against numpy."""

from __future__ import annotations

import math
import pathlib

import ml_dtypes
import numpy as np
import pytest

from tests.ffi.emulation import emulate

# numpy warns of the overflow of exp.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

FOLDER = pathlib.Path(__file__).parent / "nvcc"
BF16 = ml_dtypes.bfloat16


@pytest.fixture(params=sorted(path.stem for path in FOLDER.glob("*.ptx")))
def text(request: pytest.FixtureRequest) -> str:
    return (FOLDER / f"{request.param}.ptx").read_text()


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)


def integers(low: int, high: int, count: int, dtype: type = np.int32) -> np.ndarray:
    return np.random.default_rng(count).integers(low, high, count, dtype)


def test_block_reduce(text: str):
    x, y = normal(3, 1000), np.zeros(3, np.float32)
    emulate(text, [x, y], entry="block_reduce", grid=(3, 1, 1), block=(128, 1, 1))
    np.testing.assert_allclose(y, x.sum(1), rtol=1e-4, atol=1e-3)


def test_scan(text: str):
    x, y = integers(-9, 9, 256), np.zeros(256, np.int32)
    emulate(text, [x, y], entry="scan", block=(256, 1, 1))
    np.testing.assert_array_equal(y, np.cumsum(x))


def test_transpose(text: str):
    x, y = normal(37, 50), np.zeros((50, 37), np.float32)
    emulate(text, [x, y], entry="transpose", grid=(4, 3, 1), block=(16, 16, 1))
    np.testing.assert_array_equal(y, x.T)


def test_matmul(text: str):
    a, b, c = normal(48, 48), normal(48, 48)[::-1].copy(), np.zeros((48, 48), np.float32)
    emulate(text, [a, b, c], entry="matmul", grid=(3, 3, 1), block=(16, 16, 1))
    np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-4)


def test_histogram(text: str):
    x, bins = integers(0, 256, 5000, np.uint8), np.zeros(256, np.int32)
    emulate(text, [x, bins], entry="histogram", grid=(3, 1, 1), block=(128, 1, 1))
    # Results start with all bits set: -1.
    np.testing.assert_array_equal(bins + 1, np.bincount(x, minlength=256))


def test_warp_sort(text: str):
    x, y = integers(-1000, 1000, 128), np.zeros(128, np.int32)
    emulate(text, [x, y], entry="warp_sort", block=(128, 1, 1))
    np.testing.assert_array_equal(y.reshape(-1, 32), np.sort(x.reshape(-1, 32), 1))


def test_half_arithmetic(text: str):
    x, y = normal(128).astype(np.float16), normal(128)[::-1].astype(np.float16)
    total, product = np.zeros_like(x), np.zeros_like(x)
    emulate(text, [x, y, total, product], 2, entry="halves", block=(64, 1, 1))
    np.testing.assert_array_equal(total, x + y)
    exact = x.astype(np.float64) * y.astype(np.float64) + x.astype(np.float64)
    np.testing.assert_array_equal(product, exact.astype(np.float16))


def test_bfloat16_arithmetic(text: str):
    x, y, z = normal(64).astype(BF16), normal(64)[::-1].astype(BF16), np.zeros(64, BF16)
    emulate(text, [x, y, z], entry="bfloats", block=(64, 1, 1))
    exact = x.astype(np.float32) * y.astype(np.float32) + np.float32(1)
    np.testing.assert_array_equal(z, exact.astype(BF16))


def quotient(a: int, b: int) -> int:
    return abs(a) // b * (1 if a >= 0 else -1)


def test_integer_division(text: str):
    a, b = integers(-(10**9), 10**9, 64), integers(1, 1000, 64)
    got, rest = np.zeros(64, np.int32), np.zeros(64, np.int32)
    emulate(text, [a, b, got, rest], 2, entry="divisions", block=(64, 1, 1))
    pairs = [(int(x), int(y)) for x, y in zip(a, b, strict=True)]
    assert got.tolist() == [quotient(x, y) + quotient(x, 7) for x, y in pairs]
    remainders = [x - quotient(x, y) * y + x - quotient(x, 7) * 7 for x, y in pairs]
    assert rest.tolist() == remainders


def test_64_bit_arithmetic(text: str):
    a, b = integers(-(2**62), 2**62, 64, np.int64), integers(1, 2**40, 64, np.int64)
    out = np.zeros(64, np.int64)
    emulate(text, [a, b, out], entry="wide", block=(64, 1, 1))
    for x, y, got in zip(a.tolist(), b.tolist(), out.tolist(), strict=True):
        high = (x % 2**64 * y) >> 64
        want = quotient(x, y) ^ (x - quotient(x, y) * y) ^ high ^ (x << (y & 63)) ^ (x >> (y & 31))
        want ^= (x % 2**64).bit_count() ^ (64 - y.bit_length())
        assert (want - got) % 2**64 == 0


def test_128_bit_division(text: str):
    a, b, c = (integers(-(2**62), 2**62, 64 + k, np.int64)[:64] for k in range(3))
    a[::4] >>= 62
    c[::3] >>= 30
    got, rest = np.zeros(64, np.int64), np.zeros(64, np.int64)
    emulate(text, [a, b, c, got, rest], 2, entry="very_wide", block=(64, 1, 1))
    for x, y, z, one, other in zip(*(v.tolist() for v in (a, b, c, got, rest)), strict=True):
        n = (x << 64) + y % 2**64
        q = quotient(n, abs(z)) * (1 if z > 0 else -1)
        assert ((q ^ q >> 64) - one) % 2**64 == 0
        assert other == n % 2**128 % 1000003


def test_functions_of_float32(text: str):
    x, out = 3 * normal(256), np.zeros((8, 256), np.float32)
    x[:5] = [100.5, -300.25, 1e-3, 50, 123456.7]
    emulate(text, [x, out], entry="functions", grid=(2, 1, 1), block=(128, 1, 1))
    wide = x.astype(np.float64)
    erf = np.vectorize(math.erf)(wide)
    power = np.abs(wide) ** 1.7
    want = [np.sin(wide), np.cos(wide), np.exp(wide), np.log(np.abs(wide)), power, erf]
    want += [np.tanh(wide), wide / 3]
    np.testing.assert_allclose(out, np.array(want).astype(np.float32), rtol=2e-6, atol=2e-7)


def test_functions_of_float64(text: str):
    x, out = 5 * normal(64).astype(np.float64), np.zeros((4, 64))
    emulate(text, [x, out], entry="doubles", block=(64, 1, 1))
    want = [np.sin(x), np.exp(x), np.log(np.abs(x)), x / 3.7 + np.sqrt(np.abs(x))]
    np.testing.assert_allclose(out, want, rtol=1e-14, atol=1e-15)


def test_called_functions_and_local_arrays(text: str):
    out = np.zeros(64, np.int32)
    emulate(text, [out], entry="local_arrays", block=(64, 1, 1))
    for thread, got in enumerate(out):
        n, steps, trail = thread + 1, 0, [0] * 8
        while n != 1:
            trail[steps % 8] = n
            n, steps = (3 * n + 1 if n % 2 else n // 2), steps + 1
        assert got == steps + sum(trail)


MATRICES = {"f16": np.float16, "bf16": BF16, "tf32": np.float32, "mma": np.float16}


@pytest.mark.parametrize("name", MATRICES)
def test_tensor_cores(text: str, name: str):
    """wmma, and mma.sync with ldmatrix and cp.async."""
    a, b = normal(32, 32).astype(MATRICES[name]), normal(32, 32).astype(MATRICES[name])[::-1].copy()
    c = np.zeros((32, 32), np.float32)
    emulate(text, [a, b, c], entry=f"matmul_{name}")
    if name == "tf32":  # the hardware reads no more of a float32
        a, b = ((x.view(np.uint32) & 0xFFFFE000).view(np.float32) for x in (a, b))
    wide = a.astype(np.float64), b.astype(np.float64)
    want = wide[0] @ wide[1] if name == "mma" else 2 * (wide[0] @ wide[1].T + 0.5)
    np.testing.assert_allclose(c, want, rtol=1e-5, atol=1e-5)


def test_softmax(text: str):
    x, y = 5 * normal(11, 70), np.zeros((11, 70), np.float32)
    emulate(text, [x, y], entry="softmax", grid=(2, 1, 1), block=(32, 3, 1))
    want = np.exp(x - x.max(1, keepdims=True).astype(np.float64))
    np.testing.assert_allclose(y, want / want.sum(1, keepdims=True), rtol=1e-5, atol=1e-9)


def test_bit_tricks(text: str):
    a, b = integers(1, 2**32, 70, np.uint32), integers(1, 2**16, 71, np.uint32)[:70].copy()
    out = np.zeros(70, np.uint32)
    emulate(text, [a, b, out], entry="bit_tricks", block=(70, 1, 1))

    def permuted(x: int, y: int) -> int:
        of = x.to_bytes(4, "little") + y.to_bytes(4, "little")
        return int.from_bytes(bytes(of[k] for k in (4, 7, 1, 3)), "little")

    for i, (x, y) in enumerate(zip(a.tolist(), b.tolist(), strict=True)):
        shift = y % 32
        want = (
            x // y,
            x % y,
            int(f"{x:032b}"[::-1], 2) ^ y.bit_count(),
            (y << shift | x >> (32 - shift)) % 2**32,
            permuted(x, y),
            x // 10 * 7 + x % 1000,
            (x & -x).bit_length() * 1000 + 32 - y.bit_length(),
        )
        assert out[i] == want[i % 7] % 2**32, i


def test_module_variables(text: str):
    x, y, count = np.linspace(-3, 3, 64), np.zeros(64), np.zeros(1, np.int32)
    emulate(text, [x, y, count], 2, entry="polynomial", block=(64, 1, 1))
    want = np.polynomial.polynomial.polyval(x, [0.5, -1, 2, 0.25, 3])
    np.testing.assert_allclose(y, want, rtol=1e-12)
    assert count[0] == 100 + (y > 0).sum()


def test_cluster_reduce(text: str):
    if "cluster_reduce" not in text:
        assert ".target sm_80" in text
        return
    x, y = normal(8, 32), np.zeros(8, np.float32)
    emulate(text, [x, y], entry="cluster_reduce", grid=(8, 1, 1), cluster=(4, 1, 1))
    np.testing.assert_allclose(y, np.repeat(x.reshape(2, -1).sum(1), 4), rtol=1e-4, atol=1e-4)
