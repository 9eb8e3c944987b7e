"""Control flow, barriers, exchange between lanes, clusters, calls and atomics in the emulator."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ffi.emulation import HEADER, emulate, kernel, map_lanes

STORE = "mad.wide.u32 %rd9, %i, 4, %y; st.global.b32 [%rd9], %r9;"


def run(body: str, threads: int, *inputs: np.ndarray, before: str = "", **launch) -> np.ndarray:
    """One CTA unless `grid` says otherwise; thread i leaves its result in %r9."""
    ctas = int(np.prod(launch.get("grid", (1, 1, 1))))
    out = np.zeros(threads * ctas, np.uint32)
    text = kernel(body + STORE, [*(f"x{k}" for k in range(len(inputs))), "y"], before=before)
    emulate(text, [*inputs, out], block=(threads, 1, 1), **launch)
    return out


def test_divergent_loops_meet_again():
    # Collatz steps: every lane leaves the loop at its own time.
    body = """
    add.u32 %r1, %t, 1; mov.u32 %r9, 0;
    LOOP: setp.eq.u32 %p1, %r1, 1; @%p1 bra DONE;
    add.u32 %r9, %r9, 1;
    and.b32 %r2, %r1, 1; setp.eq.u32 %p2, %r2, 1;
    @%p2 bra ODD;
    shr.u32 %r1, %r1, 1; bra LOOP;
    ODD: mad.lo.u32 %r1, %r1, 3, 1; bra.uni LOOP;
    DONE:
    activemask.b32 %r3; setp.ne.b32 %p3, %r3, -1; @%p3 mov.u32 %r9, 9999;
    """

    def steps(n: int) -> int:
        count = 0
        while n != 1:
            n, count = (3 * n + 1 if n % 2 else n // 2), count + 1
        return count

    assert run(body, 128).tolist() == [steps(i + 1) for i in range(128)]


def test_predicated_exit_and_return():
    body = "mov.u32 %r9, 7; setp.lt.u32 %p1, %t, 5; @%p1 exit; setp.gt.u32 %p2, %t, 20; @%p2 ret;"
    got = run(body, 32)
    assert got.tolist() == [2**32 - 1] * 5 + [7] * 16 + [2**32 - 1] * 11


def test_lanes_that_wait_for_others_of_their_warp():
    # Lane 0 spins at a smaller pc than the lane that frees it.
    body = """
    .shared .b32 flag;
    setp.eq.u32 %p1, %t, 0; @%p1 st.shared.b32 [flag], 0; bar.sync 0;
    @!%p1 bra SET;
    SPIN: ld.volatile.shared.b32 %r1, [flag]; setp.eq.u32 %p2, %r1, 0; @%p2 bra SPIN;
    bra.uni END;
    SET: mov.u32 %r2, 5; st.volatile.shared.b32 [flag], %r2;
    END: ld.shared.b32 %r9, [flag];
    """
    assert run(body, 32).tolist() == [5] * 32


def test_barriers_and_shared_memory():
    body = """
    .shared .align 4 .b8 buffer[4096];
    mov.u32 %r1, buffer; mad.lo.u32 %r2, %t, 4, %r1; st.shared.u32 [%r2], %t;
    bar.sync 0;
    sub.u32 %r3, 999, %t; mad.lo.u32 %r3, %r3, 4, %r1; ld.shared.u32 %r9, [%r3];
    """
    assert run(body, 1000).tolist() == list(range(999, -1, -1))


def test_named_barriers_hand_over():
    # Two producing warps arrive, two consuming warps wait.
    body = """
    .shared .b32 cell[64];
    mov.u32 %r1, cell; and.b32 %r4, %t, 63; mad.lo.u32 %r2, %r4, 4, %r1; mov.u32 %r9, 0;
    setp.ge.u32 %p1, %t, 64; @%p1 bra CONSUME;
    add.u32 %r3, %t, 100; st.shared.u32 [%r2], %r3;
    bar.arrive 3, 128; bra.uni END;
    CONSUME: bar.sync 3, 128; ld.shared.u32 %r9, [%r2];
    END:
    """
    assert run(body, 128).tolist() == [0] * 64 + list(range(100, 164))


def test_barrier_reductions():
    body = """
    setp.lt.u32 %p1, %t, 40;
    bar.red.popc.u32 %r1, 0, %p1; barrier.red.or.pred %p2, 0, !%p1; bar.red.and.pred %p3, 0, 64, %p1;
    selp.u32 %r2, 1000, 0, %p2; selp.u32 %r3, 10000, 0, %p3; add.u32 %r9, %r1, %r2; add.u32 %r9, %r9, %r3;
    """
    assert run(body, 64).tolist() == [1040] * 64


@pytest.mark.parametrize("threads", [40, 33, 1000])
def test_partly_filled_warps(threads: int):
    assert (
        run("bar.sync 0; bar.sync 0; mov.u32 %r9, %ntid.x;", threads).tolist()
        == [threads] * threads
    )


def shuffle(mode: str, lane: int, b: int, c: int) -> tuple[int, bool]:
    """The ISA's definition: the source lane, and whether it is in range."""
    segment, clamp = c >> 8 & 31, c & 31
    last, first = (lane & segment) | (clamp & ~segment), lane & segment
    source = {"up": lane - b, "down": lane + b, "bfly": lane ^ b, "idx": first | (b & ~segment)}[
        mode
    ]
    inside = source >= last if mode == "up" else source <= last
    return (source if inside else lane), inside


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
def test_shfl(mode: str):
    a = np.random.default_rng(0).integers(0, 2**32, 32, np.uint32)
    for b in (0, 1, 3, 8, 16, 31):
        for width in (32, 16, 8, 2):
            c = (32 - width) << 8 | (0 if mode == "up" else 31)
            body = f"shfl.sync.{mode}.b32 %d|%p1, %a0, {b}, {c}, 0xffffffff; @!%p1 not.b32 %d, %d;"
            want = [shuffle(mode, lane, b, c) for lane in range(32)]
            want = [a[s] if inside else ~a[s] for s, inside in want]
            assert map_lanes(body, [a], np.uint32)[:32].tolist() == want, (mode, b, width)


def test_votes_and_matches():
    body = """
    setp.lt.u32 %p1, %t, 3;
    vote.sync.ballot.b32 %r1, %p1, -1;
    vote.sync.any.pred %p2, %p1, -1; vote.sync.all.pred %p3, %p1, -1; vote.sync.uni.pred %p4, %p1, -1;
    selp.u32 %r2, 16, 0, %p2; selp.u32 %r3, 32, 0, %p3; selp.u32 %r4, 64, 0, %p4;
    or.b32 %r9, %r1, %r2; or.b32 %r9, %r9, %r3; or.b32 %r9, %r9, %r4;
    """
    assert run(body, 32).tolist() == [7 | 16] * 32
    body = "shr.u32 %r1, %t, 3; match.any.sync.b32 %r9, %r1, -1;"
    assert run(body, 32).tolist() == [0xFF << 8 * (i // 8) for i in range(32)]
    body = "mov.u32 %r1, 4; match.all.sync.b32 %r2|%p1, %r1, -1; selp.b32 %r9, %r2, 1, %p1;"
    assert run(body, 32).tolist() == [2**32 - 1] * 32


def test_warp_reductions():
    for op, want in {"add": 496, "max": 31, "min": 0}.items():
        assert run(f"redux.sync.{op}.u32 %r9, %t, -1;", 32).tolist() == [want] * 32
    assert run("not.b32 %r1, %t; redux.sync.min.s32 %r9, %r1, -1;", 32)[0] == 2**32 - 32
    assert run("redux.sync.xor.b32 %r9, %t, -1;", 32).tolist() == [0] * 32
    body = "elect.sync %r1|%p1, -1; selp.u32 %r9, 1, 0, %p1;"
    assert run(body, 32).tolist() == [1] + [0] * 31


def test_groups_of_lanes_synchronise_by_themselves():
    # Each half has its own member mask, and the halves come by different paths.
    body = """
    mov.u32 %r9, %t; setp.lt.u32 %p1, %t, 16; selp.u32 %r1, 0xffff, 0xffff0000, %p1;
    shfl.sync.bfly.b32 %r9, %r9, 1, 31, %r1;
    @%p1 bra LOW;
    add.u32 %r9, %r9, 100; bar.warp.sync 0xffff0000; bra.uni END;
    LOW: add.u32 %r9, %r9, 200; bar.warp.sync 0xffff;
    END: bar.warp.sync -1;
    """
    assert run(body, 32).tolist() == [(i ^ 1) + (200 if i < 16 else 100) for i in range(32)]


def test_divergent_lanes_wait_for_a_shuffle():
    body = """
    mov.u32 %r1, %t; setp.lt.u32 %p1, %t, 4; @!%p1 bra MEET;
    mov.u32 %r2, 10; SPIN: sub.u32 %r2, %r2, 1; setp.ne.u32 %p2, %r2, 0; @%p2 bra SPIN; add.u32 %r1, %r1, 50;
    MEET: shfl.sync.idx.b32 %r9, %r1, 0, 31, -1;
    """
    assert run(body, 32).tolist() == [50] * 32


def test_clusters_share_memory():
    body = """
    .shared .align 4 .b32 cell;
    mov.u32 %r1, %cluster_ctarank; mov.u32 %r2, cell;
    add.u32 %r3, %r1, 10; st.shared.u32 [%r2], %r3;
    barrier.cluster.arrive; barrier.cluster.wait;
    mov.u32 %r4, %cluster_nctarank; add.u32 %r5, %r1, 1; rem.u32 %r5, %r5, %r4;
    mapa.shared::cluster.u32 %r6, %r2, %r5; ld.shared::cluster.u32 %r9, [%r6];
    cvt.u64.u32 %rd1, %r2; cvta.shared.u64 %rd1, %rd1; mapa.u64 %rd2, %rd1, %r5;
    ld.u32 %r7, [%rd2]; setp.ne.u32 %p1, %r7, %r9; @%p1 trap;
    getctarank.u64 %r8, %rd2; setp.ne.u32 %p2, %r8, %r5; @%p2 trap;
    barrier.cluster.arrive.release; barrier.cluster.wait.acquire;
    """
    got = run(body, 32, grid=(8, 1, 1), cluster=(4, 1, 1)).reshape(8, 32)
    assert got[:, 0].tolist() == [11, 12, 13, 10] * 2


def test_special_registers():
    cases = {
        "tid.x": [i % 4 for i in range(24)],
        "tid.y": [i // 4 % 3 for i in range(24)],
        "tid.z": [i // 12 for i in range(24)],
        "laneid": list(range(24)),
        "ntid.y": [3] * 24,
        "nctaid.x": [1] * 24,
        "lanemask_lt": [(1 << i) - 1 for i in range(24)],
    }
    for name, want in cases.items():
        out = np.zeros(24, np.uint32)
        text = kernel(
            f"mov.u32 %r1, %tid.y; mov.u32 %r2, %tid.z; mad.lo.u32 %r3, %r2, 3, %r1; "
            f"mad.lo.u32 %i, %r3, 4, %t;"
            f"mov.u32 %r9, %{name};" + STORE,
            ["y"],
        )
        emulate(text, [out], block=(4, 3, 2))
        assert out.tolist() == want, name


def test_functions_and_local_memory():
    before = """
    .func (.param .b32 result) square_plus(.param .b32 a, .param .align 8 .b8 pair[8])
    {
      .reg .b32 %r<6>;
      ld.param.b32 %r1, [a]; ld.param.b32 %r2, [pair]; ld.param.b32 %r3, [pair+4];
      mad.lo.s32 %r4, %r1, %r1, %r2; add.s32 %r4, %r4, %r3;
      st.param.b32 [result], %r4; ret;
    }
    """
    body = """
    .local .align 4 .b8 stack[16];
    .reg .b64 %sp;
    mov.u64 %sp, stack; cvta.local.u64 %sp, %sp;
    st.u32 [%sp+4], %t; ld.local.u32 %r1, [stack+4];
    setp.gt.u32 %p1, %t, 9; mov.u32 %r9, 0; @%p1 bra SKIP;
    {
      .param .b32 a0; .param .align 8 .b8 a1[8]; .param .b32 r0;
      st.param.b32 [a0], %r1; st.param.b32 [a1], 3; st.param.b32 [a1+4], %t;
      call.uni (r0), square_plus, (a0, a1);
      ld.param.b32 %r9, [r0];
    }
    SKIP:
    """
    assert run(body, 20, before=before).tolist() == [
        i * i + i + 3 if i <= 9 else 0 for i in range(20)
    ]


def test_module_variables():
    before = """
    .const .align 4 .b32 table[4] = {10, 20, 30, 40};
    .global .align 8 .b64 pointer = generic(cells);
    .global .align 4 .b32 cells[3] = {1, 2};
    """.replace(".global .align 8 .b64 pointer = generic(cells);", "")
    before += ".global .align 8 .u64 pointer = generic(cells);"
    body = """
    and.b32 %r1, %t, 3; mul.wide.u32 %rd1, %r1, 4; mov.u64 %rd2, table; add.s64 %rd2, %rd2, %rd1;
    ld.const.u32 %r2, [%rd2]; ld.global.u64 %rd3, [pointer]; ld.global.u32 %r3, [%rd3+4];
    ld.global.u32 %r4, [cells+8]; add.u32 %r9, %r2, %r3; add.u32 %r9, %r9, %r4;
    """
    assert run(body, 8, before=before).tolist() == [12, 22, 32, 42] * 2


def test_atomics():
    counts = np.zeros(4, np.uint32)
    text = kernel(
        """
        and.b32 %r1, %t, 3; mad.wide.u32 %rd1, %r1, 4, %y; red.global.add.u32 [%rd1], 1;
        setp.eq.u32 %p1, %r1, 0; @%p1 atom.global.max.u32 %r2, [%y+12], 1000;
        """,
        ["z", "y"],
    )
    counts_in = np.zeros(1, np.uint32)
    out = counts
    # Results start as 0xFFFFFFFF: the first CTA's count wraps from there.
    emulate(text, [counts_in, out], grid=(10, 1, 1), block=(64, 1, 1))
    assert out[:3].tolist() == [159] * 3
    shared = """
    .shared .b32 cell; .shared .align 8 .f64 sum;
    setp.eq.u32 %p1, %t, 0; @%p1 st.shared.b32 [cell], 0; @%p1 st.shared.f64 [sum], 0d0000000000000000;
    bar.sync 0; atom.shared.add.u32 %r1, [cell], 2; atom.shared.inc.u32 %r2, [cell], 0xffffffff;
    cvt.rn.f64.u32 %fd1, %t; red.shared.add.f64 [sum], %fd1; bar.sync 0;
    ld.shared.u32 %r9, [cell]; ld.shared.f64 %fd2, [sum]; cvt.rzi.u32.f64 %r3, %fd2; add.u32 %r9, %r9, %r3;
    """
    assert run(shared, 64).tolist() == [64 * 3 + 2016] * 64


def test_compare_and_swap_lock():
    # A lock in shared memory, taken by one lane after the other.
    body = """
    .shared .b32 lock; .shared .b32 count;
    setp.eq.u32 %p1, %t, 0; @%p1 st.shared.b32 [lock], 0; @%p1 st.shared.b32 [count], 0; bar.sync 0;
    TRY: atom.shared.cas.b32 %r1, [lock], 0, 1; setp.ne.u32 %p2, %r1, 0; @%p2 bra TRY;
    ld.shared.u32 %r2, [count]; add.u32 %r2, %r2, 1; st.shared.u32 [count], %r2;
    atom.shared.exch.b32 %r3, [lock], 0;
    bar.sync 0; ld.shared.u32 %r9, [count];
    """
    assert run(body, 96).tolist() == [96] * 96


def test_same_result_for_any_number_of_ctas_at_a_time():
    rng = np.random.default_rng(0)
    x = rng.standard_normal(64 * 128, dtype=np.float32)
    text = kernel(
        "mad.wide.u32 %rd1, %i, 4, %x; ld.global.f32 %f1, [%rd1]; atom.global.add.f32 %f2, [%y], %f1;",
        ["x", "y"],
    ).replace("ld.param.u64 %y, [p_y];", "ld.param.u64 %y, [p_y]; ")
    results = set()
    for _ in range(3):
        out = np.zeros(1, np.float32)
        emulate(text, [x, out], grid=(64, 1, 1), block=(128, 1, 1))
        results.add(out.view(np.uint32)[0])
    assert len(results) == 1


def test_other_spaces_of_the_text():
    text = (
        HEADER
        + """
    .visible .func helper() { ret; }
    .visible .entry first(.param .u64 y) { ret; }
    .visible .entry k(.param .u64 .ptr .global .align 4 y)
    .maxntid 64, 1, 1
    .minnctapersm 2
    {
      .loc 1 2 3
      .pragma "nounroll";
      .reg .b64 %rd<3>; ld.param.u64 %rd1, [y]; cvta.to.global.u64 %rd2, %rd1;
      { .reg .b32 %r<2>; mov.u32 %r1, 4; st.global.u32 [%rd2], %r1; }
      { .reg .b32 %r<2>; mov.u32 %r1, 5; st.global.u32 [%rd2+4], %r1; call helper; }
    }
    .section .debug_str { .b8 1, 2 }
    """
    )
    out = np.zeros(2, np.uint32)
    emulate(text, [out])
    assert out.tolist() == [4, 5]


def test_branch_tables():
    body = """
    and.b32 %r1, %t, 3; mov.u32 %r9, 0;
    table: .branchtargets A, B, C, A;
    brx.idx %r1, table;
    A: add.u32 %r9, %r9, 1; bra.uni END;
    B: add.u32 %r9, %r9, 20;
    C: add.u32 %r9, %r9, 300;
    END:
    """
    assert run(body, 8).tolist() == [1, 320, 300, 1] * 2


def test_registers_wider_than_the_type():
    x = np.arange(-4, 60, dtype=np.int8)
    body = """
    mad.wide.u32 %rd1, %t, 2, %x0; ld.global.v2.s8 {%rd2, %rd3}, [%rd1]; add.s64 %rd4, %rd2, %rd3;
    st.global.v2.b16 [%rd5], {%rd2, %rd4}; cvt.u32.u64 %r9, %rd4;
    """.replace("[%rd5]", "[%y]")
    wide = x.astype(np.int32).reshape(-1, 2).sum(1)
    np.testing.assert_array_equal(run(body, 32, x).view(np.int32), wide)


def test_modifiers_in_the_order_of_nvcc():
    """cuda::atomic_ref puts the operation before the order; the assembler takes any order."""
    body = """
    atom.add.relaxed.gpu.u32 %r1, [%y], 1; atom.max.acquire.gpu.u32 %r1, [%y+4], %t;
    atom.or.acq_rel.gpu.b32 %r1, [%y+8], %t; atom.cas.acquire.gpu.b32 %r1, [%y+12], 0, 5;
    atom.exch.acquire.gpu.b32 %r1, [%y+16], 7; red.global.add.release.sys.u32 [%y+20], 2;
    setp.ne.u32 %p1, %t, 0; @%p1 ret; ld.global.relaxed.gpu.u32 %r1, [%y];
    st.gpu.global.release.u32 [%y+24], %r1;
    """
    y = np.zeros(32, np.uint32)
    emulate(kernel(body), [y, y])
    assert y[:7].tolist() == [32, 31, 31, 5, 7, 64, 32]
