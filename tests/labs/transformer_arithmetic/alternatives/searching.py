"""Searches and sorts where the reference counts up, and objects where it has plain functions."""

import bisect
import re
from fractions import Fraction

import numpy as np


def parse_einsum(subscripts, *shapes):
    inputs, result = re.fullmatch(r"([a-zA-Z,]*)->([a-zA-Z]*)", subscripts).groups()
    inputs = inputs.split(",")
    wanted = [
        (letter, size)
        for letters, shape in zip(inputs, shapes, strict=False)
        for letter, size in zip(letters, shape, strict=False)
    ]
    if [len(letters) for letters in inputs] != [len(shape) for shape in shapes]:
        raise ValueError("not as many axes as letters")
    if len(set(wanted)) != len(dict(wanted)) or not set(result) <= set(dict(wanted)):
        raise ValueError("sizes do not agree")
    return inputs, result, dict(wanted)


def einsum_flops(subscripts, *shapes):
    inputs, result, sizes = parse_einsum(subscripts, *shapes)
    points = np.prod(list(sizes.values()), dtype=object)
    return points * (len(inputs) - (set(result) == set(sizes)))


def best_first_pair(subscripts, *shapes):
    inputs, result, sizes = parse_einsum(subscripts, *shapes)
    tried = []
    for pair in ((0, 1), (0, 2), (1, 2)):
        (other,) = set(range(3)) - set(pair)
        kept = sorted(set("".join(inputs[i] for i in pair)) & set(inputs[other] + result))
        steps = [
            (",".join(inputs[i] for i in pair) + "->" + "".join(kept), [shapes[i] for i in pair]),
            ("".join(kept) + "," + inputs[other] + "->" + result, [[sizes[x] for x in kept], shapes[other]]),
        ]
        tried.append((int(sum(einsum_flops(step, *arrays) for step, arrays in steps)), pair))
    flops, pair = min(tried)
    return pair, flops


def fewest_devices(config, tokens, memory_bytes, *, tensor=1, zero_stage=3, recomputation="none", max_devices=4096):
    """More devices never hold more each, so the first that fits can be bisected."""

    def too_much(data):
        how = {"zero_stage": zero_stage, "data": data, "tensor": tensor, "recomputation": recomputation}
        plan = training_memory(config, tokens, **how)
        return sum(plan.values()) > memory_bytes

    groups = range(1, max_devices // tensor + 1)
    at = bisect.bisect_left(groups, True, key=lambda data: not too_much(data))
    return groups[at] * tensor if at < len(groups) else None


def choose_machine(config, tokens, machines):
    def served(machine):
        batch = largest_batch(config, tokens, machine.memory_bytes)
        times = zip(
            decode_work(config, tokens, batch), (machine.peak_flops_per_s, machine.memory_bytes_per_s), strict=True
        )
        compute, memory = (Fraction(work) / Fraction(rate) for work, rate in times)
        slower, limit = (memory, "memory") if memory > compute else (compute, "compute")
        dollars = Fraction(machine.price_per_hour) * slower * 10**6 / (3600 * batch)
        return Choice(machine.name, batch, float(slower), limit, float(dollars))

    fitting = [machine for machine in machines if largest_batch(config, tokens, machine.memory_bytes) > 0]
    choices = sorted(map(served, fitting), key=lambda choice: choice.cost_per_million_tokens)
    return choices[0] if choices else None
