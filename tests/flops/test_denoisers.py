"""Closed forms of DiT and the U-Net against torch's counter, what autograd saves, and the papers' own figures."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from mlsys_lab.diffusion.networks import DiT, UNet
from mlsys_lab.errors import InputError
from mlsys_lab.flops import dit, unet
from mlsys_lab.flops.dit import DiTConfig
from mlsys_lab.flops.unet import UNetConfig

DITS = [
    DiTConfig("a", 3, d_model=16, n_heads=2, size=8, patch=2, channels=1, classes=10),
    DiTConfig("b", 1, d_model=24, n_heads=3, size=9, patch=3, channels=2, classes=0, out_channels=4),
]
UNETS = [
    UNetConfig("a", 8, channels=1, width=8, multipliers=(1, 2), blocks=1, attention_sizes=(4,), head_dim=8, classes=10),
    UNetConfig("b", 12, 3, 6, (1, 2, 3), 2, (12, 3), head_dim=6, out_channels=6),
    UNetConfig("c", 5, 2, 4, (1,), 1, head_dim=2, classes=2, null=False),
]
CASES = pytest.mark.parametrize(
    ("network", "forms", "config"), [*((DiT, dit, c) for c in DITS), *((UNet, unet, c) for c in UNETS)]
)


def images(config, batch=2):
    return torch.randn(batch, config.channels, config.size, config.size), torch.zeros(batch)


@CASES
def test_parameters(network, forms, config):
    assert forms.parameters(config) == sum(p.numel() for p in network(config).parameters())


@CASES
def test_flops_of_a_forward_pass_to_the_flop(network, forms, config):
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        network(config)(*images(config))
    counted = forms.forward(config, 2)
    assert counter.get_total_flops() == (counted if forms is unet else counted.total)
    assert forms.multiply_adds(config) == pytest.approx(counter.get_total_flops() / 4e9)


@pytest.mark.parametrize("name", ["S/2", "B/2", "L/2", "XL/2"])
def test_dit_s_printed_sizes(name):
    """Table 1 and the table of models: parameters in millions, and Gflops that are multiply-adds."""
    printed = {"S/2": (33, 6.06), "B/2": (130, 23.01), "L/2": (458, 80.71), "XL/2": (675, 118.64)}[name]
    config = dit.preset(name)
    assert round(dit.parameters(config) / 1e6) == printed[0]
    assert dit.multiply_adds(config) == pytest.approx(printed[1], rel=1e-3)
    assert dit.forward(config).total == pytest.approx(2e9 * printed[1], rel=1e-3)


def test_adm_s_printed_sizes():
    """Dhariwal and Nichol's 554 million parameters, and the 1120 Gflops that DiT's §5.1 prints for it."""
    assert round(unet.parameters(unet.ADM) / 1e6) == 554
    assert unet.multiply_adds(unet.ADM) == pytest.approx(1120, rel=1e-3)


def kept_bytes(model, *given):
    """Bytes of tensors that autograd keeps of a forward pass, each storage once, weights left out."""
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    seen = {}

    def keep(tensor):
        if tensor.untyped_storage().data_ptr() not in weights:
            seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = model(*given)
    assert result.requires_grad
    return sum(seen.values())


def test_activations_of_a_layer_are_what_autograd_keeps():
    """One layer more keeps one more; on top come two norms' statistics, six vectors and 1 + scale twice."""
    config = DITS[0]
    more = DiTConfig(
        "", 4, *(getattr(config, f) for f in ("d_model", "n_heads", "size", "patch", "channels", "classes"))
    )
    batch, T, D = 2, config.tokens, config.d_model
    with sdpa_kernel(SDPBackend.MATH):
        torch.manual_seed(0)
        given = images(config, batch)
        grown = kept_bytes(DiT(more), *given) - kept_bytes(DiT(config), *given)
    form = dit.activation_bytes(more, batch, element_bytes=4) - dit.activation_bytes(config, batch, element_bytes=4)
    statistics, vectors = 2 * 2 * batch * T * 4, (6 + 2) * batch * D * 4
    assert grown - form == pytest.approx(statistics + vectors, abs=0)


@pytest.mark.parametrize("config", UNETS, ids=lambda config: config.name)
def test_activations_of_a_u_net_are_what_autograd_keeps(config):
    """To the byte. On top come statistics of norms, vectors of an image, and with one head queries, keys and values,
    as its values are not copied out of that tensor."""
    batch, blocks = 3, [block for part in unet.plan(config) for block in part]
    torch.manual_seed(0)
    model = UNet(config)
    with sdpa_kernel(SDPBackend.MATH):
        kept = kept_bytes(model, *images(config, batch))
    statistics = 2 * sum(module.num_groups for module in model.modules() if isinstance(module, torch.nn.GroupNorm))
    vectors = config.width + 4 * 4 * config.width + sum(block.out for block in blocks)  # the condition's; 1 + scale
    labels = 8 if config.classes else 0
    whole = sum(2 * block.out * block.size**2 for block in blocks if block.attention and block.out == config.head_dim)
    form = unet.activation_bytes(config, batch, element_bytes=4)
    assert kept - form == batch * (4 * (statistics + vectors + whole) + labels)


def test_fused_attention_keeps_no_scores():
    config = dit.preset("S/2")
    plain, fused = (dit.activation_bytes(config, fused=fused) for fused in (False, True))
    assert plain - fused == config.n_layers * config.tokens * config.n_heads * (2 * config.tokens - 4)
    plain, fused = (unet.activation_bytes(UNETS[0], fused=fused) for fused in (False, True))
    pixels, heads, attending = 4 * 4, 16 / 8, 1 + 1 + 2  # down, middle, up
    assert plain - fused == attending * pixels * heads * (2 * pixels - 4)


def test_an_unknown_preset_is_one_line():
    with pytest.raises(InputError, match="unknown DiT: got 'M/2', expected S, B, L or XL"):
        dit.preset("M/2")
