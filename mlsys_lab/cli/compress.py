"""Quantize a model's linear layers, save it as a checkpoint, and measure what that costs and saves.

MODEL is a Hugging Face folder of a LLaMA-like model (LLaMA, Mistral, Qwen 2 and 3, Gemma 1, OLMo, Phi, OPT, BLOOM), or
one of the two models that come with the course, mlsys-lab-target and mlsys-lab-draft. OUTPUT is a folder in the layout
of compressed-tensors, which vLLM and `transformers` read; `mlsys-lab serve` loads it for --model and --draft, and keeps
its weights packed in memory. Embedding, norms and head stay as they are.

Methods are rounding to nearest (rtn), error compensation (gptq) and activation-aware scales (awq). The last two are
calibrated on --text, of which the last quarter is held out; models with the course's tokenizer take the book by
default. With --int8-activations, --transform moves outliers of activations out of the way first: into the weights
(smooth, as in SmoothQuant), or spread over all channels (rotate, as in QuaRot).

What was written is then loaded again, and compared with the original on the held-out text: size, bits per weight with
scales, perplexity, divergence per token (KL), and the speed of decoding on one thread next to its bound, the time to
read all weights once per token at this machine's copy bandwidth.

examples:
  mlsys-lab compress mlsys-lab-target small --method gptq --bits 4 --group 32
  mlsys-lab serve --model small
  mlsys-lab compress qwen2.5-0.5b-instruct qwen-int8 --bits 8 --text mine.txt
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import fsum
from operator import mul
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from mlsys_lab.cli.app import argument, flag, option
from mlsys_lab.cli.generate import Clock
from mlsys_lab.cli.spinner import spinner
from mlsys_lab.errors import InputError
from mlsys_lab.validation import require_non_negative

if TYPE_CHECKING:
    import torch

    from mlsys_lab.efficiency.evaluation import Comparison
    from mlsys_lab.efficiency.quantization import Recipe
    from mlsys_lab.inference.engine import Engine
    from mlsys_lab.inference.text import ChatTokenizer
    from mlsys_lab.models import Transformer

BITS = (2, 3, 4, 6, 8)
GROUP = 32
COURSE_MODELS = {"mlsys-lab-target": "target", "mlsys-lab-draft": "draft"}
"""Folders of the models that come with the course, by the names that MODEL has for them."""
DECODED, RUNS = 32, 3
"""Tokens that are decoded to measure speed, and how often."""


@dataclass(kw_only=True)
class Arguments:
    """The model, how it is quantized, and where it is written to."""

    model: Annotated[str, argument(f"a folder, or one of {', '.join(COURSE_MODELS)}")]
    output: Annotated[Path, argument("where to write to; it must not exist, or be empty")]
    method: Annotated[Literal["rtn", "gptq", "awq"], option("how weights are rounded")] = "gptq"
    bits: Annotated[int, option(f"of a weight: one of {', '.join(map(str, BITS))}", "N")] = 4
    group: Annotated[
        int | None, option(f"inputs that share a scale; 0 for one per output, as at 8 bits ({GROUP} below)", "N")
    ] = None
    asymmetric: Annotated[bool, flag("--asymmetric", "a zero point for each scale")] = False
    int8_activations: Annotated[bool, flag("--int8-activations", "activations in 8 bits, a scale per token")] = False
    transform: Annotated[Literal["smooth", "rotate"] | None, option("what is done to outliers of activations")] = None
    text: Annotated[Path | None, option("text to calibrate and compare on", "FILE")] = None
    seed: Annotated[int, option("which part of a long text is used", "N")] = 0


def run(args: Arguments) -> int:
    """Write the folder and print what it costs and saves; returns exit code 0."""
    if args.output.exists() and (not args.output.is_dir() or any(args.output.iterdir())):
        raise InputError("the folder is not empty", got=args.output, help="name one that does not exist")
    from mlsys_lab.models.training import one_thread

    with one_thread():
        _compress(args)
    return 0


def _compress(args: Arguments) -> None:
    import torch

    from mlsys_lab.cli.calibration_text import read_windows
    from mlsys_lab.efficiency.evaluation import compare_models
    from mlsys_lab.efficiency.quantization import load_checkpoint, quantize, save_quantized

    recipe = _read_recipe(args)
    with spinner("loading the model") as say:
        source = _load_source(args.model)
        calibration, held_out = read_windows(args.text, source.tokenizer, source.model.config.context, seed=args.seed)
        say("quantizing the blocks")
        if source.dtype == torch.bfloat16:  # vLLM reads scales in the dtype of the model
            recipe = replace(recipe, weights=replace(recipe.weights, scale_dtype=source.dtype))
        quantized = quantize(source.model, recipe, calibration[:, :-1] if recipe.needs_calibration else None)
        with _new_folder(args.output) as folder:
            save_quantized(quantized, folder, dtype=source.dtype, fields=source.fields)
            source.save_tokenizer(folder)
            say("comparing with the original")
            written = load_checkpoint(folder, dtype=quantized.embedding.weight.dtype).eval()
            comparison = compare_models(source.model, written, held_out)
            say("measuring the speed of decoding")
            prompt = held_out[0, : min(DECODED, held_out.shape[1] // 3)].tolist()
            speeds = _measure_speeds([source.model, written], prompt)
            sizes = [_weight_bytes(path) for path in (source.folder, folder)]
    _print(source, written, sizes, comparison, speeds)
    print(f"\ncompared on {held_out[:, 1:].numel():,} tokens; serve it with: mlsys-lab serve --model {args.output}")


class Source(NamedTuple):
    """The model to compress: its folder, the model in fp32, its stored dtype, config.json and tokenizer."""

    folder: Path
    model: Transformer
    dtype: torch.dtype
    fields: dict[str, Any]
    tokenizer: ChatTokenizer

    def save_tokenizer(self, folder: Path) -> None:
        """Write the tokenizer to a folder, in Hugging Face's format."""
        from mlsys_lab.inference.text import BookTokenizer
        from mlsys_lab.inference.text.loading import asset_files
        from mlsys_lab.inference.text.saving import save_huggingface
        from mlsys_lab.models.saving import CONFIG

        if isinstance(self.tokenizer, BookTokenizer):
            save_huggingface(self.tokenizer.tokenizer, folder)
        else:
            for path in asset_files(self.folder):
                if path.name != CONFIG:
                    shutil.copy(path, folder)


def _load_source(name: str) -> Source:
    from mlsys_lab.configs.huggingface import read_fields
    from mlsys_lab.inference.pretrained import FOLDER
    from mlsys_lab.inference.text import load_tokenizer
    from mlsys_lab.models import load

    folder = FOLDER / COURSE_MODELS[name] if name in COURSE_MODELS else Path(name)
    if not (folder / "config.json").is_file():
        expected = f"a folder with config.json and safetensors, or one of {', '.join(COURSE_MODELS)}"
        raise InputError("no such model", got=name, expected=expected)
    if read_fields(folder).get("quantization_config"):
        raise InputError(f"{folder} is quantised already", expected="a model in floating point")
    tokenizer = load_tokenizer(FOLDER if name in COURSE_MODELS else folder)
    model = load(folder)
    dtype = model.embedding.weight.dtype
    fields = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return Source(folder, model.float().eval(), dtype, fields, tokenizer)


def _read_recipe(args: Arguments) -> Recipe:
    """What the options say, with scales in fp16; InputError for options that do not fit together."""
    from mlsys_lab.efficiency.formats import IntFormat
    from mlsys_lab.efficiency.quantization import Recipe, Scheme
    from mlsys_lab.efficiency.quantization.recipes import BY_TOKEN

    if args.bits not in BITS:
        raise InputError("--bits", got=args.bits, expected=f"one of {', '.join(map(str, BITS))}")
    if args.group is not None and args.group < 0:
        raise InputError("--group", got=args.group, expected="1 or more inputs, or 0 for one scale per output")
    require_non_negative(seed=args.seed)
    group = (0 if args.bits == 8 else GROUP) if args.group is None else args.group
    if args.int8_activations and (args.bits != 8 or group or args.asymmetric):
        expected = "--bits 8, one scale per output and no --asymmetric"
        raise InputError("--int8-activations goes with int8 weights", expected=expected)

    format = IntFormat(args.bits, signed=not args.asymmetric)
    scheme = Scheme(format, "group" if group else "channel", group or None)
    activations = BY_TOKEN if args.int8_activations else None
    return Recipe(scheme, args.method, activations=activations, transform=args.transform)


@contextmanager
def _new_folder(output: Path) -> Iterator[Path]:
    """A folder to fill, whose files `output` gets in the end: whatever fails before, none of them is left behind."""
    folder = output.resolve().with_name(f".{output.resolve().name}.partial")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
        output.mkdir(exist_ok=True)
        for path in sorted(
            folder.iterdir(), reverse=True
        ):  # config.json, without which it is no checkpoint, comes last
            shutil.move(path, output)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Speed(NamedTuple):
    """Tokens per second that were decoded, and that the bandwidth of memory allows."""

    measured: float
    bound: float


def _measure_speeds(models: Sequence[Transformer], prompt: list[int]) -> list[Speed]:
    """Speed of each model in the server's engine, one request at a time: the best of a few runs after a warm-up."""
    from mlsys_lab.hardware import measure_copy_bandwidth
    from mlsys_lab.inference.engine import Engine
    from mlsys_lab.models.traffic import token_bytes

    bandwidth = measure_copy_bandwidth()
    engines = [Engine(model, num_blocks=2 * len(prompt), compiled=True) for model in models]
    runs = [[_decode(engine, prompt) for engine in engines] for _ in range(RUNS + 1)]  # in turn
    past = 1.5 * len(prompt)  # in the middle of the text
    return [
        Speed(max(measured), bandwidth / token_bytes(model, past))
        for model, measured in zip(models, zip(*runs, strict=True), strict=True)
    ]


def _decode(engine: Engine, prompt: list[int]) -> float:
    """Tokens per second, for as many tokens as the prompt has."""
    from mlsys_lab.inference.engine import Request, SamplingParams

    clock = Clock()
    greedy = SamplingParams(temperature=0)
    engine.add_request(Request(prompt, len(prompt), greedy, on_token=lambda _: clock.tick()))
    engine.run()
    assert clock.each_s is not None
    return 1 / clock.each_s


def _weight_bytes(folder: Path) -> int:
    """Bytes of the weights' files in a folder."""
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def _print(
    source: Source, written: Transformer, sizes: Sequence[int], comparison: Comparison, speeds: Sequence[Speed]
) -> None:
    """Print a table of the original and the compressed model."""
    from rich.console import Console
    from rich.table import Table

    count = sum(one.numel() for one in source.model.parameters())
    bits = [float(8 * source.dtype.itemsize), _layer_bits(written)]
    rows = {
        "size of the weights, bytes": [f"{size:,}" for size in sizes],
        "bits per weight, all weights": [f"{8 * size / count:.2f}" for size in sizes],
        "bits per weight, quantized layers with scales": [f"{one:.2f}" for one in bits],
        "perplexity, held-out text": [f"{one:.3f}" for one in comparison.perplexities],
        "KL divergence, nats per token": ["", f"{comparison.divergence:.4g}"],
        "decoding on one thread, tokens/s": [f"{speed.measured:.1f}" for speed in speeds],
        "its bound by memory bandwidth, tokens/s": [f"{speed.bound:.1f}" for speed in speeds],
        "fraction of the bound": [f"{speed.measured / speed.bound:.1%}" for speed in speeds],
    }
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for heading in ("original", "compressed"):
        table.add_column(heading, justify="right")
    for name, values in rows.items():
        table.add_row(name, *values)
    Console(highlight=False).print(table)


def _layer_bits(model: Transformer) -> float:
    """Mean bits of a weight of the quantized layers, with its part of scales and zero points."""
    from mlsys_lab.efficiency.quantization.layers import QuantizedLinear

    layers = [module for module in model.modules() if isinstance(module, QuantizedLinear)]
    counts = [layer.out_features * layer.in_features for layer in layers]
    bits = [layer.scheme.bits_per_weight((layer.out_features, layer.in_features)) for layer in layers]
    return fsum(map(mul, bits, counts)) / sum(counts)
