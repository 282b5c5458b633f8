"""Searches and sorts where the reference counts up, and objects where it has plain functions."""

import bisect
import re
from fractions import Fraction

import numpy as np


def parse_einsum(spec, *shapes):
    inputs, result = re.fullmatch(r"([a-zA-Z,]*)->([a-zA-Z]*)", spec).groups()
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


def einsum_flops(spec, *shapes):
    inputs, result, sizes = parse_einsum(spec, *shapes)
    points = np.prod(list(sizes.values()), dtype=object)
    return points * (len(inputs) - (set(result) == set(sizes)))


def best_first_pair(spec, *shapes):
    inputs, result, sizes = parse_einsum(spec, *shapes)
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


def fewest_devices(config, tokens, memory_bytes, *, zero_stage=3, tensor=1, recompute="none", limit=4096):
    """More devices never hold more each, so the first that fits can be bisected."""

    def too_much(data):
        plan = memory_plan(config, tokens, zero_stage=zero_stage, data=data, tensor=tensor, recompute=recompute)
        return sum(plan.values()) > memory_bytes

    groups = range(1, limit // tensor + 1)
    at = bisect.bisect_left(groups, True, key=lambda data: not too_much(data))
    return groups[at] * tensor if at < len(groups) else None


def largest_batch(config, tokens, memory_bytes):
    weights, count = 2 * count_parameters(config), 0
    while weights + kv_cache_bytes(config, count + 1, tokens) <= memory_bytes:
        count += 1
    return count


def choose_machine(config, tokens, machines):
    def served(machine):
        batch = largest_batch(config, tokens, machine.memory_bytes)
        times = zip(
            decode_work(config, batch, tokens), (machine.flops_per_s, machine.bandwidth_bytes_per_s), strict=True
        )
        compute, memory = (Fraction(work) / Fraction(rate) for work, rate in times)
        slower, bound = (memory, "memory") if memory > compute else (compute, "compute")
        dollars = Fraction(machine.dollars_per_hour) * slower * 10**6 / (3600 * batch)
        return Choice(machine.name, batch, float(slower), bound, float(dollars))

    fitting = [machine for machine in machines if largest_batch(config, tokens, machine.memory_bytes) > 0]
    choices = sorted(map(served, fitting), key=lambda choice: choice.dollars_per_million)
    return choices[0] if choices else None


def predict_training_step_s(config, batch, tokens, rates, unit_s):
    seconds = [elementwise_units(config, batch, tokens) * unit_s]
    for _, times, m, k, n in step_products(config, batch, tokens):
        seconds += [2.0 * m * k * n / rates[(m, k, n)]] * times
    return math.fsum(seconds)
