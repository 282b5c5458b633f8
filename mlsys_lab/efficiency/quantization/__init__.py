"""Weights and activations of a model in few bits: fewer bytes per decoded token, and so a lower bound on its time.

scheme        Scheme: format of the codes, and which numbers share a scale
tensor        QuantizedTensor: codes, scales and zero points of a matrix
calibration   quantize_tensor(x, scheme, method) rounds to nearest; choose_scale by max, percentile or squared error
gptq          gptq(weight, hessian(inputs), scheme): later columns compensate the errors of earlier ones
awq           awq_scale(weight, inputs, scheme): weights of large inputs scaled up before they are rounded (AWQ)
folding       channels scaled up where they are produced and down where they are consumed
smoothquant   smooth(model, calibration, alpha): outliers of activations moved into the weights (SmoothQuant)
rotation      rotate(model): outliers spread over the residual stream by a Hadamard matrix; hadamard(n)
outliers      plant_outliers(model, channels, exponent): outliers for a model that has none
layers        QuantizedLinear: packed weights, dequantized at each call; activations may be rounded as well
llm_int8      MixedInt8Linear: 8-bit activations, with outlier columns in 16 bits (LLM.int8)
recipes       Recipe, RECIPES: how a layer is quantized, by name
compiled      use_compiled(model): on a CPU, products of few tokens read the codes without dequantizing them
convert       quantize(model, recipe, calibration=None) -> a quantized copy of a model
checkpoint    save_quantized(model, folder), load_checkpoint(folder): Hugging Face folders, quantized or not
qat           prepare_qat(model, recipe): a copy that trains with rounded weights (straight-through estimator)
qlora         add_qlora(model, lora_rank): frozen NF4 weights with quantized scales, and adapters that train
"""

from mlsys_lab.efficiency.quantization.awq import awq_scale
from mlsys_lab.efficiency.quantization.calibration import Clipping, choose_scale, quantize_tensor
from mlsys_lab.efficiency.quantization.checkpoint import load_checkpoint, save_quantized
from mlsys_lab.efficiency.quantization.compiled import use_compiled
from mlsys_lab.efficiency.quantization.convert import quantize
from mlsys_lab.efficiency.quantization.gptq import gptq, hessian
from mlsys_lab.efficiency.quantization.layers import QuantizedLinear
from mlsys_lab.efficiency.quantization.llm_int8 import MixedInt8Linear
from mlsys_lab.efficiency.quantization.outliers import plant_outliers
from mlsys_lab.efficiency.quantization.qat import prepare_qat
from mlsys_lab.efficiency.quantization.qlora import add_qlora
from mlsys_lab.efficiency.quantization.recipes import RECIPES, Recipe
from mlsys_lab.efficiency.quantization.rotation import hadamard, rotate
from mlsys_lab.efficiency.quantization.scheme import Scheme, Strategy
from mlsys_lab.efficiency.quantization.smoothquant import smooth, smooth_scale
from mlsys_lab.efficiency.quantization.tensor import QuantizedTensor

__all__ = [
    "RECIPES",
    "Clipping",
    "MixedInt8Linear",
    "QuantizedLinear",
    "QuantizedTensor",
    "Recipe",
    "Scheme",
    "Strategy",
    "add_qlora",
    "awq_scale",
    "choose_scale",
    "gptq",
    "hadamard",
    "hessian",
    "load_checkpoint",
    "plant_outliers",
    "prepare_qat",
    "quantize",
    "quantize_tensor",
    "rotate",
    "save_quantized",
    "smooth",
    "smooth_scale",
    "use_compiled",
]
