"""Lab 05's solution and the package agree, and later labs run on what a learner accepted."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from mlsys_lab import stack
from mlsys_lab.configs import preset
from mlsys_lab.flops import activations, cache, compute, parameters
from mlsys_lab.stack.artifact import Artifact
from mlsys_lab.stack.workspace import Workspace
from tests.labs.harness import labs, module_of

LAB = next(lab for lab in labs() if lab.info.topic == "transformer-arithmetic")
MODELS = ("gpt2", "gpt2-xl", "llama2-7b", "llama2-70b", "llama3-8b")


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    return module_of(LAB.reference, "reference.ipynb")


@pytest.mark.parametrize("name", MODELS)
def test_the_lab_and_the_package_agree(name: str, reference: ModuleType) -> None:
    config, tokens = preset(name), 512
    assert reference.count_parameters(config) == parameters(config).total
    training = compute.training(config, config.context, batch=4).model
    assert reference.training_flops(config, 4 * config.context) == training
    assert reference.attention_share(config, tokens) == pytest.approx(compute.attention_share(config, tokens))
    assert reference.attention_crossover(config) == pytest.approx(compute.attention_crossover(config))
    assert reference.kv_cache_bytes(config, 3, tokens) == cache.cache_bytes(config, tokens, 3)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("name", ["llama2-7b", "llama2-70b"])
def test_activations_agree(name: str, recompute: str, reference: ModuleType) -> None:
    config, tokens = preset(name), 512
    kept, whole = (activations.layer(config, tokens, 2, recomputation=kind) for kind in (recompute, "none"))
    layers = activations.stack(kept, whole, layers=config.n_layers)
    expected = layers + activations.head_bytes(config, tokens, 2)
    assert reference.activation_bytes(config, tokens, 2, recompute) == expected


def test_an_accepted_artifact_takes_the_places_of_the_courses_counts(tmp_path: Path) -> None:
    workspace = Workspace.create(tmp_path)
    workspace.accept("transformer-arithmetic", Artifact.parse("05.ipynb", LAB.reference))
    layer = stack.load("transformer-arithmetic", workspace)
    whose = {layer.sources[name] for name in ("TransformerConfig", "count_parameters", "training_flops")}
    assert whose == {"yours"}
    config = layer.TransformerConfig("tiny", n_layers=2, d_model=8, n_heads=2, d_ff=16, vocab_size=11, context=4)
    assert layer.training_flops(config, 4) > 6 * layer.count_parameters(config)
