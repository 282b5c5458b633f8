"""FLOPs of the fullest stage, by what they are for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlsys_lab.configs.transformer import TransformerConfig
from mlsys_lab.flops import compute
from mlsys_lab.flops.communication import bubble
from mlsys_lab.flops.layout import Layout
from mlsys_lab.flops.stage import stage_flops

CONFIG = TransformerConfig("c", 12, d_model=16, n_heads=8, d_ff=24, vocab_size=32, context=8, n_kv_heads=4)


@given(
    pipeline=st.sampled_from([1, 2, 4]),
    tensor=st.sampled_from([1, 2]),
    recomputation=st.sampled_from(compute.RECOMPUTATIONS),
)
def test_even_stages_share_the_layers_and_the_last_has_the_head(pipeline, tensor, recomputation):
    layout = Layout(data=2, tensor=tensor, pipeline=pipeline, recomputation=recomputation)
    got = stage_flops(CONFIG, layout, batch=16, tokens=8)
    whole = compute.training(CONFIG, 8, 16, recomputation=recomputation, causal=True)
    head = 3 * compute.forward(CONFIG, 8, 16).head
    assert got.model * 2 * tensor == pytest.approx((whole.model - head) / pipeline + head)
    assert got.recomputed * layout.devices == pytest.approx(whole.recomputed)
    assert got.bubble * layout.devices == pytest.approx((whole.hardware - head) * bubble(pipeline, 8))
    assert got.total == got.model + got.recomputed + got.bubble


def test_the_fullest_stage_counts_where_the_last_has_less_in_spite_of_its_head():
    got = stage_flops(CONFIG, Layout(pipeline=5, recomputation="full"), batch=16, tokens=8)
    whole = compute.training(CONFIG, 8, 16, recomputation="full", causal=True)
    layers = whole.model - 3 * compute.forward(CONFIG, 8, 16).head
    assert got.model == pytest.approx(layers * 3 / 12)
    assert got.recomputed == pytest.approx(whole.recomputed * 3 / 12)
