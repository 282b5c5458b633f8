"""Formats as tables, scales by row, and GPTQ by elimination from the inverse."""


def _table(format):
    one, rows = 2**format.mantissa_bits, []
    for code in range(2 ** (format.bits - 1)):
        exponent, mantissa = divmod(code, one)
        value = (mantissa / one + (exponent > 0)) * 2.0 ** (max(exponent, 1) - format.bias)
        rows.append(value if code <= format.largest_code else float("nan"))
    return torch.tensor(rows, dtype=torch.float64)


def decode(codes, format):
    table = _table(format)
    return torch.cat([table, -table]).float()[codes.long()]


def encode(x, format):
    table = _table(format)[: format.largest_code + 1]
    middles = (table[1:] + table[:-1]) / 2
    size = x.double().abs().contiguous()
    below, above = (torch.bucketize(size, middles, right=right) for right in (False, True))
    codes = torch.where(below % 2 == 0, below, above)  # different at a tie only
    return (codes + 2 ** (format.bits - 1) * torch.signbit(x)).to(torch.uint8)


class Scheme(Scheme):
    def bits_per_weight(self, shape):
        scales = self.split(torch.zeros(shape)).shape[:2].numel()
        extra = 16 if self.format.signed else 24
        return (shape[0] * shape[1] * self.format.bits + scales * extra) / (shape[0] * shape[1])


def max_scale(x, scheme):
    blocks, steps = scheme.split(x.double()), scheme.format.largest
    if scheme.format.signed:
        scale = torch.maximum(blocks.amax(-1), -blocks.amin(-1)) / steps
    else:
        padded = torch.cat([blocks, torch.zeros_like(blocks[..., :1])], -1)
        scale = (padded.amax(-1) - padded.amin(-1)) / steps
    scale = scale.to(torch.float16).float()
    scale[scale == 0] = 1
    if scheme.format.signed:
        return scale, None
    return scale, torch.round(padded.amin(-1).neg().float() / scale).clip(0, steps)


def round_to_codes(x, scale, zero_point, scheme):
    codes = torch.round(scheme.split(x) / scale.unsqueeze(-1))
    codes = codes if zero_point is None else codes + zero_point.unsqueeze(-1)
    codes = torch.minimum(codes, torch.tensor(float(scheme.format.largest)))
    codes = torch.maximum(codes, torch.tensor(float(scheme.format.smallest)))
    return codes.view(x.shape).to(torch.int8 if scheme.format.signed else torch.uint8)


def predict_error(x, clip, format):
    inside = x.abs() <= clip
    rounding = (clip / format.largest) ** 2 / 12 * int(inside.sum())
    return float((rounding + ((x[~inside].abs() - clip) ** 2).sum()) / x.numel())


def mse_scale(x, scheme, fractions=FRACTIONS):
    widest, zero_point = max_scale(x, scheme)
    scales = torch.stack([(fraction * widest).half().float() for fraction in fractions])
    errors = []
    for scale in scales:
        quantized = QuantizedTensor(round_to_codes(x, scale, zero_point, scheme), scale, zero_point, scheme)
        errors.append(((scheme.split(quantized.dequantize()) - scheme.split(x)) ** 2).mean(-1))
    best = torch.stack(errors).argmin(0, keepdim=True)
    return scales.gather(0, best)[0], zero_point


def gptq(weight, hessian, scheme, *, damping=0.01):
    columns, rowwise = weight.shape[1], Scheme(scheme.format, "channel")
    inverse = torch.linalg.inv(hessian + torch.diag(damping * hessian.diag().mean().expand(columns)))
    w, codes, grids = weight.double().clone(), torch.zeros_like(weight), []
    size = scheme.group_size if scheme.strategy == "group" else columns
    for j in range(columns):
        if j % size == 0:
            grids.append(choose_scale(w[:, j : j + size].float(), rowwise))
        scale, zero = grids[-1]
        codes[:, j : j + 1] = round_to_codes(w[:, j : j + 1].float(), scale, zero, rowwise)
        back = (codes[:, j] - (0 if zero is None else zero[:, 0])) * scale[:, 0]
        w[:, j:] -= torch.outer(w[:, j] - back, inverse[0] / inverse[0, 0])
        inverse = inverse[1:, 1:] - torch.outer(inverse[1:, 0], inverse[0, 1:]) / inverse[0, 0]
    zeros = None if scheme.format.signed else torch.cat([zero for _, zero in grids], 1)
    kind = torch.int8 if scheme.format.signed else torch.uint8
    return QuantizedTensor(codes.to(kind), torch.cat([scale for scale, _ in grids], 1), zeros, scheme)


def two_four_mask(scores):
    ranks = scores.reshape(len(scores), -1, 4).argsort(-1).argsort(-1)
    return (ranks >= 2).reshape(scores.shape)
