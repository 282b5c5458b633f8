"""Block by block: systems of equations for GPTQ, least squares for what stays, recursion for the budget."""

from functools import cache


def max_scale(x, scheme):
    scales, zeros = [], []
    for row in scheme.split(x):
        for block in row:
            low, high = min(0.0, block.min().item()), max(0.0, block.max().item())
            width = max(high, -low) if scheme.format.signed else high - low
            scale = torch.tensor(width / scheme.format.largest, dtype=torch.float16).item() or 1.0
            scales.append(scale)
            zeros.append(float(min(round(-low / scale), scheme.format.largest)))
    shape = scheme.split(x).shape[:2]
    zero_point = None if scheme.format.signed else torch.tensor(zeros).reshape(shape)
    return torch.tensor(scales).reshape(shape), zero_point


def round_to_codes(x, scale, zero_point, scheme):
    spread = torch.ones_like(scheme.split(x)) * scale[..., None]
    offset = 0 if zero_point is None else (torch.ones_like(spread) * zero_point[..., None]).reshape(x.shape)
    codes = (x.double() / spread.reshape(x.shape)).round() + offset
    codes = codes.clip(scheme.format.smallest, scheme.format.largest)
    return codes.char() if scheme.format.signed else codes.byte()


def hessian(inputs):
    return torch.einsum("ni,nj->ij", inputs.double(), inputs.double())


def gptq(weight, hessian, scheme, *, damping=0.01):
    """Solve for the columns that are left, after each column."""
    total, one = weight.shape[1], Scheme(scheme.format)
    h = hessian + damping * hessian.trace() / total * torch.eye(total, dtype=torch.float64)
    size, left = scheme.group_size or total, weight.double().clone()
    parts = []
    for j in range(total):
        if j % size == 0:
            scale, zero_point = choose_scale(left[:, j : j + size].float(), one)
        quantized = QuantizedTensor(round_to_codes(left[:, j, None], scale, zero_point, one), scale, zero_point, one)
        parts.append(quantized)
        error = left[:, j, None] - quantized.dequantize()
        if j + 1 < total:
            left[:, j + 1 :] += error * torch.linalg.solve(h[j + 1 :, j + 1 :], h[j + 1 :, j])
    zeros = None if scheme.format.signed else torch.cat([part.zero_point for part in parts[::size]], 1)
    scales = torch.cat([part.scale for part in parts[::size]], 1)
    return QuantizedTensor(torch.cat([part.codes for part in parts], 1), scales, zeros, scheme)


def int8_linear(x, weight):
    tokens = quantize_tensor(x, Scheme(INT8))
    products = (tokens.codes.long()[:, None] * weight.codes.long()).sum(-1)
    return products.float() * tokens.scale * weight.scale.flatten()


def refit(weight, mask, hessian, *, damping=0.01):
    h = hessian + damping * hessian.diagonal().mean() * torch.eye(len(hessian)).double()
    root, result = torch.linalg.cholesky(h).T, torch.zeros_like(weight)
    for i in range(len(weight)):
        if mask[i].any():
            target = root @ weight[i].double()
            fitted = torch.linalg.lstsq(root[:, mask[i]], target[:, None]).solution[:, 0]
            result[i, mask[i]] = fitted.to(weight.dtype)
    return result


def allocate(num_bytes, increases, budget_bytes):
    @cache
    def best(layer, left):
        if layer == len(num_bytes):
            return 0.0, ()
        found = (math.inf, ())
        for i, (size, rise) in enumerate(zip(num_bytes[layer], increases[layer], strict=True)):
            if size <= left:
                total, choices = best(layer + 1, left - size)
                found = min(found, (rise + total, (i, *choices)))
        return found

    return list(best(0, budget_bytes)[1])
