"""The race check between the CTAs of a cluster, and rms_norm's kernels that are such."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_ptx
from jax_ptx.ops.rms_norm.config import forward_config
from jax_ptx.ops.rms_norm.config_backward import backward_config
from jax_ptx.ops.rms_norm.kernels import forward_launch
from jax_ptx.ops.rms_norm.kernels_backward import backward_launch
from jax_ptx.ops.rms_norm.options import Options
from jax_ptx.types import by_numpy_name
from tests.test_findings import WRITE, found
from tests.test_races import WAIT

CLUSTER = """
.shared .b32 b; mov.u32 %r1, b; mov.u32 %r2, %cluster_ctarank; xor.b32 %r2, %r2, 1;
mapa.shared::cluster.u32 %r3, %r1, %r2;
st.shared.u32 [b], %i;
{}
ld.shared::cluster.u32 %r4, [%r3];
barrier.cluster.arrive; barrier.cluster.wait;
"""


@pytest.mark.parametrize(
    ("between", "mends"),
    [
        ("barrier.cluster.arrive; barrier.cluster.wait;", None),
        ("fence.acq_rel.cluster; barrier.cluster.arrive.relaxed; barrier.cluster.wait;", None),
        (
            "barrier.cluster.arrive.relaxed; barrier.cluster.wait;",
            "barrier.cluster would order them",
        ),
    ],
)
def test_between_ctas_of_a_cluster(between: str, mends: str | None) -> None:
    findings, _ = found(
        CLUSTER.format(between) + WRITE, block=1, n=2, grid=2, cluster=2, race_check=True
    )
    assert [f.message.endswith(mends or "") for f in findings if f.kind == "race"] == (
        [True] if mends else []
    )


HEARS = """
.shared .b32 sum; .shared .b64 m; mov.u32 %r1, sum; mov.u32 %r2, m; mov.u32 %r3, %cluster_ctarank;
xor.b32 %r3, %r3, 1; st.shared.u32 [sum], 5; mbarrier.init.shared.b64 [m], 1;
mbarrier.arrive.expect_tx.shared.b64 _, [m], 4; barrier.cluster.arrive; barrier.cluster.wait;
mapa.shared::cluster.u32 %r1, %r1, %r3; mapa.shared::cluster.u32 %r2, %r2, %r3;
{}.async.{}shared::cluster.mbarrier::complete_tx::bytes.{}u32 [%r1], %t, [%r2];
{}ld.shared.u32 %r4, [sum];
barrier.cluster.arrive; barrier.cluster.wait;
"""


@pytest.mark.parametrize(
    "operation", [("st", "", ""), ("red", "relaxed.cluster.", "add.")], ids=["st", "red"]
)
def test_stores_that_another_cta_hears_of(operation: tuple[str, str, str]) -> None:
    launch = {"block": 1, "n": 2, "grid": 2, "cluster": 2, "race_check": True}
    body = HEARS.format(*operation, WAIT.format(0, "m"))
    assert found(body + WRITE, **launch)[0] == ()
    findings, _ = found(HEARS.format(*operation, "") + WRITE, **launch)
    assert {finding.kind for finding in findings} == {"race", "exited_peer"}
    assert any("copy into" in finding.message for finding in findings)


# Each CTA reads `a`, sends to the other one, and writes its `a` when it has heard of it.
SENDS = """
.shared .b32 a; .shared .b32 b; .shared .b64 m; mov.u32 %r1, a; mov.u32 %r2, m; mov.u32 %r5, b;
mov.u32 %r3, %cluster_ctarank; xor.b32 %r3, %r3, 1; st.shared.u32 [a], 5;
mbarrier.init.shared.b64 [m], {count}; mbarrier.arrive.expect_tx.shared.b64 _, [m], 4;
barrier.cluster.arrive; barrier.cluster.wait;
mapa.shared::cluster.u32 %r1, %r1, %r3; mapa.shared::cluster.u32 %r2, %r2, %r3;
mapa.shared::cluster.u32 %r5, %r5, %r3;
ld.shared.u32 %r4, [a];
{fence}
st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r5], %t, [%r2];
{arrive}
L0: mbarrier.try_wait.parity.{wait}.cluster.shared::cta.b64 %p1, [m], 0;
@!%p1 bra L0;
{acquire}
st.shared::cluster.u32 [%r1], %i;
barrier.cluster.arrive; barrier.cluster.wait;
"""
ARRIVE = "mbarrier.arrive.{}shared::cluster.b64 _, [%r2];"
RELEASE = "fence.release.sync_restrict::shared::cta.cluster;"
ACQUIRE = "fence.acquire.sync_restrict::shared::cluster.cluster;"


@pytest.mark.parametrize(
    ("fence", "arrive", "wait", "acquire", "is_ordered"),
    [
        # The bytes that an st.async says have come are all that its completion tells of.
        ("", None, "acquire", "", False),
        ("", "", "acquire", "", True),
        ("", "release.cluster.", "acquire", "", True),
        ("", "relaxed.cluster.", "acquire", "", False),
        (RELEASE, "relaxed.cluster.", "acquire", "", True),
        (ACQUIRE, "relaxed.cluster.", "acquire", "", False),
        (RELEASE, "relaxed.cluster.", "relaxed", ACQUIRE, True),
        (RELEASE, "relaxed.cluster.", "relaxed", "", False),
        (RELEASE, "relaxed.cluster.", "relaxed", RELEASE, False),
    ],
)
def test_what_an_arrival_tells(
    fence: str, arrive: str | None, wait: str, acquire: str, is_ordered: bool
) -> None:
    arrival = "" if arrive is None else ARRIVE.format(arrive)
    count = 1 if arrive is None else 2
    body = SENDS.format(count=count, fence=fence, arrive=arrival, wait=wait, acquire=acquire)
    findings, _ = found(body + WRITE, block=1, n=2, grid=2, cluster=2, race_check=True)
    assert [f.kind for f in findings if f.kind == "race"] == ([] if is_ordered else ["race"])


def test_who_waits_for_all_that_is_sent_may_exit() -> None:
    launch = {"block": 1, "n": 2, "grid": 2, "cluster": 2, "race_check": True}
    for wait, kinds in ((WAIT.format(0, "m"), set()), ("", {"exited_peer"})):
        body = HEARS.format("st", "", "", wait).rsplit("barrier.cluster.arrive", 1)[0]
        findings, _ = found(body + WRITE, **launch)
        assert {finding.kind for finding in findings} == kinds


# Every number of CTAs that share a row, with two slots for rows and with more.
@pytest.mark.parametrize(
    ("n", "dtype", "cluster"),
    [(12288, "float32", 2), (49152, "float16", 4), (65536, "bfloat16", 8), (66048, "float32", 16)],
)
def test_backward_kernels_of_clusters_do_not_race(n: int, dtype: str, cluster: int) -> None:
    config = backward_config(n, by_numpy_name(dtype), 90, wide=cluster > 8)
    assert config is not None
    assert config.layout.cluster == cluster
    launch = backward_launch(
        n=n,
        x_dtype=dtype,
        weight_dtype=dtype,
        grouped=False,
        weight_offset=0.0,
        addend=False,
        need_dx=True,
        runs=1,
        final=False,
        one_block=True,
        target=90,
        wide_clusters=cluster > 8,
    )
    assert launch is not None
    rows = 5  # of one cluster: turns enough to come back to either set of partials
    x, w = (np.ones(shape, jnp.dtype(dtype)) for shape in ((rows, n), n))
    results = [jax.ShapeDtypeStruct((rows, n), x.dtype)]
    results.append(jax.ShapeDtypeStruct((cluster, n // cluster), np.float32))
    jax_ptx.emulate(
        launch, x, x, np.ones(rows, np.float32), w, result_types=results, race_check=True
    )


@pytest.mark.parametrize(("n", "dtype"), [(98304, "bfloat16"), (40960, "float32")])
def test_forward_kernels_of_clusters_do_not_race(n: int, dtype: str) -> None:
    config = forward_config(n, by_numpy_name(dtype), 90)
    assert config.layout.cluster > 1
    launch = forward_launch(
        n=n,
        x_dtype=dtype,
        weight_dtype=dtype,
        grouped=False,
        options=Options(1e-6),
        residual=False,
        out_dtype=None,
        with_rstd=False,
        target=90,
    )
    # One cluster of those that take turns: the rows of the others stay unwritten.
    launch = dataclasses.replace(launch, grid=(config.layout.cluster, 1, 1))
    x, w = (np.ones(shape, jnp.dtype(dtype)) for shape in ((3 * config.runs + 1, n), n))
    results = [jax.ShapeDtypeStruct(x.shape, x.dtype)]
    report = jax_ptx.emulate(
        launch, x, w, result_types=results, race_check=True, raise_on_finding=False
    )
    assert {finding.kind for finding in report.findings} == {"unwritten_output"}
