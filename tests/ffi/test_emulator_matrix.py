"""mma.sync of every shape and type: fragments laid out as the ISA says, against a product in float64."""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest

from tests.ffi.emulation import emulate, kernel

FORMATS: dict[str, Any] = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "f32": np.float32,
    "tf32": np.float32,
    "f64": np.float64,
    "s32": np.int32,
    "s8": np.int8,
    "u8": np.uint8,
}
RANGES = {"s8": (-128, 128), "u8": (0, 256), "s4": (-8, 8), "u4": (0, 16), "b1": (0, 2)}
BITS = {"s4": 4, "u4": 4, "b1": 1}


class Case(NamedTuple):
    shape: str
    d: str
    a: str
    b: str
    suffix: str = ""

    @property
    def name(self) -> str:
        layout = "row.col" + (".satfinite" if self.suffix == "satfinite" else "")
        end = f".{self.suffix}.popc" if self.suffix in ("xor", "and") else ""
        return f"mma.sync.aligned.{self.shape}.{layout}.{self.d}.{self.a}.{self.b}.{self.d}{end}"


CASES = [
    *(Case(f"m16n8k{k}", d, a, a) for k in (8, 16) for d, a in (("f16", "f16"), ("f32", "f16"))),
    *(Case(f"m16n8k{k}", "f32", "bf16", "bf16") for k in (8, 16)),
    *(Case(f"m16n8k{k}", "f32", "tf32", "tf32") for k in (4, 8)),
    *(
        Case(f"m16n8k{k}", d, a, b)
        for k in (16, 32)
        for d in ("f16", "f32")
        for a, b in (("e4m3", "e5m2"), ("e5m2", "e4m3"))
    ),
    *(Case(shape, *["f64"] * 3) for shape in ("m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16")),
    *(
        Case(shape, "s32", a, b, suffix)
        for shape in ("m8n8k16", "m16n8k16", "m16n8k32")
        for a, b, suffix in (("s8", "u8", ""), ("u8", "s8", "satfinite"))
    ),
    *(
        Case(shape, "s32", a, b)
        for shape in ("m8n8k32", "m16n8k32", "m16n8k64")
        for a, b in (("s4", "u4"), ("u4", "s4"))
    ),
    *(
        Case(shape, "s32", "b1", "b1", operation)
        for shape in ("m8n8k128", "m16n8k128", "m16n8k256")
        for operation in ("xor", "and")
    ),
]


def bits_of(name: str) -> int:
    return BITS.get(name) or 8 * np.dtype(FORMATS[name]).itemsize


def draw(name: str, shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    if name in RANGES:
        return rng.integers(*RANGES[name], shape)
    values = rng.standard_normal(shape).astype(FORMATS[name])
    if name == "tf32":  # its low 13 bits do not count
        values = (values.view(np.uint32) & 0xFFFFE000).view(np.float32)
    return values


def codes(name: str, matrix: np.ndarray) -> np.ndarray:
    """The elements' bits as integers."""
    bits = bits_of(name)
    if name in RANGES:
        return matrix.astype(np.int64) & (2**bits - 1)
    return matrix.view(f"u{bits // 8}").astype(np.uint64)


def fragment(name: str, matrix: np.ndarray, places: list[list[tuple[int, int]]]) -> np.ndarray:
    """Registers, 32 lanes of each, from the places in the matrix that each lane's elements have."""
    width = max(32, bits_of(name))
    per, elements = width // bits_of(name), codes(name, matrix)
    registers = np.zeros((len(places[0]) // per, 32), f"u{width // 8}")
    for lane, own in enumerate(places):
        for e, (row, column) in enumerate(own):
            code = int(elements[row, column]) << (bits_of(name) * (e % per))
            registers[e // per, lane] |= registers.dtype.type(code)
    return registers


def places(m: int, k: int, per: int, *, transposed: bool = False) -> list[list[tuple[int, int]]]:
    """Of A, or of B transposed: lane l holds row l / 4, eight rows on in each register, then columns."""
    found = []
    for lane in range(32):
        own = []
        for column in range(0, k, 4 * per):
            for row in range(0, m, 8):
                first = column + per * (lane % 4)
                own += [(row + lane // 4, first + h) for h in range(per)]
        found.append([(c, r) for r, c in own] if transposed else own)
    return found


def accumulator(m: int) -> list[list[tuple[int, int]]]:
    return [
        [(row + lane // 4, 2 * (lane % 4) + h) for row in range(0, m, 8) for h in range(2)]
        for lane in range(32)
    ]


def run(name: str, fragments: list[np.ndarray], like: np.ndarray) -> np.ndarray:
    """The registers of D, shaped like those of C, which are the last of the fragments."""
    body, letters = "mov.u32 %r60, %tid.x;\n", "abc"
    declared, operands = [], []
    for letter, registers in zip(letters, fragments, strict=True):
        names = [f"%{letter}{r}" for r in range(len(registers))]
        size = registers.itemsize
        kind = ("f64" if size == 8 else "b32") if letter != "d" else ""
        declared.append(f".reg .{kind} {', '.join(names)};")
        body += f"mad.wide.u32 %rd1, %r60, {size}, %x{letter};\n"
        for r, register in enumerate(names):
            body += f"ld.global.{kind} {register}, [%rd1+{32 * size * r}];\n"
        operands.append("{" + ", ".join(names) + "}")
    size, kind = like.itemsize, "f64" if like.itemsize == 8 else "b32"
    out = [f"%d{r}" for r in range(len(like))]
    declared.append(f".reg .{kind} {', '.join(out)};")
    body += f"{name} {{{', '.join(out)}}}, {', '.join(operands)};\n"
    body += f"mad.wide.u32 %rd1, %r60, {size}, %y;\n"
    for r, register in enumerate(out):
        body += f"st.global.{kind} [%rd1+{32 * size * r}], {register};\n"
    result = np.zeros_like(like)
    text = kernel("\n".join([*declared, body]), ["xa", "xb", "xc", "y"])
    emulate(text, [*fragments, result])
    return result


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: case.name.removeprefix("mma.sync.aligned.")
)
def test_products(case: Case):
    m, k = int(case.shape[1:].split("n")[0]), int(case.shape.split("k")[1])
    rng = np.random.default_rng(m * k)
    a, b = draw(case.a, (m, k), rng), draw(case.b, (k, 8), rng)
    c = rng.integers(-1000, 1000, (m, 8)) if case.d == "s32" else draw(case.d, (m, 8), rng)
    if case.suffix == "satfinite":
        c[0] = 2**31 - 5
        c[1] = -(2**31) + 5
    c = c.astype(FORMATS[case.d])
    per = max(1, 32 // bits_of(case.a))
    fragments = [
        fragment(case.a, a, places(m, k, per)),
        fragment(case.b, b, places(8, k, per, transposed=True)),
        fragment("s32" if case.d == "s32" else case.d, c, accumulator(m)),
    ]
    got = run(case.name, fragments, fragments[2])
    wide = (a.astype(np.float64), b.astype(np.float64))
    product = wide[0] @ wide[1]
    if case.suffix == "xor":
        product = np.abs(wide[0][:, :, None] - wide[1][None]).sum(1)
    want = product + c.astype(np.float64)
    if case.d == "s32":
        want = want.clip(-(2**31), 2**31 - 1) if case.suffix == "satfinite" else want
        assert np.array_equal(got, fragment("s32", want.astype(np.int32), accumulator(m)))
        return
    values = got.view(FORMATS[case.d]).astype(np.float64)
    expected = np.empty((m, 8))
    for lane, own in enumerate(accumulator(m)):
        for e, place in enumerate(own):
            per_d = 2 if case.d == "f16" else 1
            flat = values.reshape(len(got), 32, -1)
            expected[place] = flat[e // per_d, lane, e % per_d]
    epsilon = float(ml_dtypes.finfo(FORMATS[case.d]).eps)
    # A tensor core cuts products of 16-bit and smaller floats below the largest one's last places.
    absolute = (64 if case.d == "f32" else 8) * epsilon
    np.testing.assert_allclose(expected, want, rtol=4 * epsilon, atol=absolute)


def test_integer_sums_wrap_without_satfinite():
    case = Case("m8n8k16", "s32", "u8", "u8")
    ones = np.full((8, 16), 255)
    c = np.full((8, 8), 2**31 - 1, np.int32)
    fragments = [
        fragment("u8", ones, places(8, 16, 4)),
        fragment("u8", ones.T.copy(), places(8, 16, 4, transposed=True)),
        fragment("s32", c, accumulator(8)),
    ]
    got = run(case.name, fragments, fragments[2])
    assert (got.view(np.int32) == 2**31 - 1 + 16 * 255 * 255 - 2**32).all()


def quad_pair(lane: int) -> int:
    """The number, of eight, of a lane in its quad pair: 0 to 3 and 16 to 19 make the first."""
    return lane % 4 + 4 * (lane // 16)


@pytest.mark.parametrize("d", ["f16", "f32"])
@pytest.mark.parametrize("layout", ["row.row", "row.col", "col.row", "col.col"])
def test_quad_pairs(layout: str, d: str):
    """m8n8k4 of float16: four products of 8 x 4 and 4 x 8 matrices."""
    rng = np.random.default_rng(4)
    a, b = draw("f16", (4 * 8, 4), rng), draw("f16", (4 * 4, 8), rng)
    c = draw(d, (4 * 8, 8), rng)
    a_rows, b_rows = (word == "row" for word in layout.split("."))
    in_a, in_b, in_c = [], [], []
    for lane in range(32):
        pair, n, high = lane % 16 // 4, quad_pair(lane), 4 * (lane // 16)
        own_a = [(n, i) if a_rows else (i + high, lane % 4) for i in range(4)]
        own_b = [(lane % 4, i + high) if b_rows else (i, n) for i in range(4)]
        if d == "f16":
            own_c = [(n, i) for i in range(8)]
        else:
            own_c = [
                (high + (lane & 1) + (i & 2), (i & 4) + (lane & 2) + (i & 1)) for i in range(8)
            ]
        in_a.append([(8 * pair + r, column) for r, column in own_a])
        in_b.append([(4 * pair + r, column) for r, column in own_b])
        in_c.append([(8 * pair + r, column) for r, column in own_c])
    fragments = [fragment("f16", a, in_a), fragment("f16", b, in_b), fragment(d, c, in_c)]
    got = run(f"mma.sync.aligned.m8n8k4.{layout}.{d}.f16.f16.{d}", fragments, fragments[2])
    products = a.reshape(4, 8, 4).astype(np.float64) @ b.reshape(4, 4, 8).astype(np.float64)
    want = (products.reshape(32, 8) + c.astype(np.float64)).astype(FORMATS[d])
    expected = fragment(d, want, in_c)
    if d == "f16":
        assert np.array_equal(got, expected)
    else:  # cut, not rounded
        np.testing.assert_allclose(got.view(np.float32), expected.view(np.float32), rtol=1e-5)


@pytest.mark.parametrize("types", ["rn.f64.f64.f64.f64", "f64.f64.f64.f64.rn"])
def test_wmma_of_float64(types: str):
    """nvcc writes the rounding last."""
    random = np.random.default_rng(4)
    a, b = random.integers(-9, 9, (8, 4)) / 4, random.integers(-9, 9, (4, 8)) / 4
    text = kernel(
        f"""wmma.load.a.sync.aligned.row.m8n8k4.f64 {{%fd1}}, [%a], 4;
        wmma.load.b.sync.aligned.row.m8n8k4.f64 {{%fd2}}, [%b], 8;
        mov.f64 %fd3, 0d3FF0000000000000;
        wmma.mma.sync.aligned.row.row.m8n8k4.{types} {{%fd4, %fd5}}, {{%fd1}}, {{%fd2}}, {{%fd3, %fd3}};
        wmma.store.d.sync.aligned.row.m8n8k4.f64 [%y], {{%fd4, %fd5}}, 8;""",
        ["a", "b", "y"],
    )
    y = np.zeros((8, 8))
    emulate(text, [a, b, y])
    np.testing.assert_array_equal(y, a @ b + 1)


def test_what_is_not_emulated_is_refused_by_name():
    for line in (
        "mma.sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.e2m1.e2m1.f32 {%f0, %f1, %f2, %f3},"
        " {%r0, %r1, %r2, %r3}, {%r4, %r5}, {%f0, %f1, %f2, %f3};",
        "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r0, %r1}, [%rd0];",
        "wmma.load.a.sync.aligned.row.m8n8k32.s4 {%r0}, [%rd0];",
    ):
        name = line.split()[0]
        with pytest.raises(NotImplementedError, match=f"`{name}` is not among the known forms"):
            emulate(kernel(line), [np.zeros(1, np.float32)] * 2)
