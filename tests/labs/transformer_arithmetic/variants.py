"""Mistakes that learners make in the lab on transformer arithmetic, as changes of the reference."""

from mlsys_grader.proving.variants import Variant

EINSUM = [
    Variant(
        "an axis of size one passes for any other",
        "if sizes.setdefault(letter, size) != size:",
        "if sizes.setdefault(letter, size) != size and size != 1:",
        ("einsum_parse",),
    ),
    Variant(
        "the last size of a letter counts",
        """            if sizes.setdefault(letter, size) != size:
                raise ValueError(f"{letter} is {sizes[letter]} and {size}")
""",
        "            sizes[letter] = size\n",
        ("einsum_parse",),
    ),
    Variant(
        "letters and axes are not counted",
        """        if len(letters) != len(shape):
            raise ValueError(f"{letters} has {len(letters)} letters, its shape {len(shape)} axes")
        for letter, size in zip(letters, shape, strict=True):
""",
        "        for letter, size in zip(letters, shape):\n",
        ("einsum_parse",),
    ),
    Variant(
        "operands and shapes are not counted",
        """    if len(operands) != len(shapes):
        raise ValueError(f"{len(operands)} operands, {len(shapes)} shapes")
    sizes: dict[str, int] = {}
    for letters, shape in zip(operands, shapes, strict=True):
""",
        "    sizes: dict[str, int] = {}\n    for letters, shape in zip(operands, shapes):\n",
        ("einsum_parse",),
    ),
    Variant(
        "the output may have any letter",
        "if unknown := set(output) - set(sizes):",
        "if unknown := set():",
        ("einsum_parse",),
    ),
    Variant(
        "a letter that is summed is missing from the sizes",
        "    return operands, output, sizes\n",
        "    return operands, output, {letter: sizes[letter] for letter in output}\n",
        ("einsum_parse", "einsum_cost"),
    ),
    Variant(
        "multiply-adds are counted once",
        "(len(operands) - 1 + bool(summed))",
        "max(1, len(operands) - 1)",
        ("einsum_cost",),
    ),
    Variant(
        "every product is a multiply-add",
        "(len(operands) - 1 + bool(summed))",
        "len(operands)",
        ("einsum_cost", "einsum_order"),
    ),
    Variant("two whatever the operands", "(len(operands) - 1 + bool(summed))", "2", ("einsum_cost",)),
    Variant(
        "only the letters of the output are looped over",
        "math.prod(sizes.values())\n",
        "math.prod(sizes[letter] for letter in output)\n",
        ("einsum_cost", "einsum_order"),
    ),
    Variant("the output is not written", "arrays = [*operands, output]", "arrays = operands", ("einsum_cost",)),
    Variant(
        "operands of the same letters are read once", "[*operands, output]", "{*operands, output}", ("einsum_cost",)
    ),
    Variant(
        "always two bytes", "return element_bytes * sum(math.prod(s", "return 2 * sum(math.prod(s", ("einsum_cost",)
    ),
    Variant(
        "the intermediate keeps every letter",
        "if letter in third + output)",
        "if letter)",
        ("einsum_order",),
    ),
    Variant(
        "the intermediate keeps the output's letters only",
        "if letter in third + output)",
        "if letter in output)",
        ("einsum_order",),
    ),
    Variant(
        "the intermediate sums what the output needs",
        "if letter in third + output)",
        "if letter in third)",
        ("einsum_order",),
    ),
    Variant(
        "left to right",
        "for i, j in itertools.combinations(range(3), 2):",
        "for i, j in [(0, 1)]:",
        ("einsum_order",),
    ),
    Variant(
        "the outer two are never first",
        "for i, j in itertools.combinations(range(3), 2):",
        "for i, j in [(0, 1), (1, 2)]:",
        ("einsum_order",),
    ),
    Variant(
        "the last of two equal ones",
        "if best is None or total < best[1]:",
        "if best is None or total <= best[1]:",
        ("einsum_order",),
    ),
    Variant(
        "the output's letters are taken from the first pair only",
        """        total = first + einsum_flops(f"{between},{third}->{output}", middle, shape[third])
""",
        """        rest = "".join(letter for letter in output if letter in between)
        total = first + einsum_flops(f"{between},{third}->{rest}", middle, shape[third])
""",
        ("einsum_order",),
    ),
    Variant("the second step is free", "best = ((i, j), total)", "best = ((i, j), first)", ("einsum_order",)),
]

PARAMETERS = [
    Variant(
        "keys and values have as many heads as queries",
        "queries, keys = c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim\n    attention = c.d_model",
        "queries = keys = c.n_heads * c.head_dim\n    attention = c.d_model",
        ("parameters_llama",),
    ),
    Variant(
        "heads are taken to fill the width",
        "attention = c.d_model * (2 * queries + 2 * keys)",
        "attention = 2 * c.d_model * (c.d_model + c.d_model * c.n_kv_heads // c.n_heads)",
        ("parameters_gpt2", "parameters_llama"),
    ),
    Variant(
        "attention has no output matrix",
        "attention = c.d_model * (2 * queries + 2 * keys)",
        "attention = c.d_model * (queries + 2 * keys)",
        ("parameters_gpt2", "parameters_llama"),
    ),
    Variant(
        "the MLP has two matrices",
        'matrices = 3 if c.activation == "swiglu" else 2',
        "matrices = 2",
        ("parameters_llama",),
    ),
    Variant(
        "the MLP has three matrices",
        'matrices = 3 if c.activation == "swiglu" else 2',
        "matrices = 3",
        ("parameters_gpt2",),
    ),
    Variant(
        "one norm a layer",
        "(2 * c.n_layers + 1) * norm",
        "(c.n_layers + 1) * norm",
        ("parameters_gpt2", "parameters_llama"),
    ),
    Variant(
        "no norm at the end",
        "(2 * c.n_layers + 1) * norm",
        "2 * c.n_layers * norm",
        ("parameters_gpt2", "parameters_llama"),
    ),
    Variant("norms have no bias", "c.d_model * (1 + c.norm_bias)", "c.d_model", ("parameters_gpt2",)),
    Variant(
        "layer norms always have a bias",
        "c.d_model * (1 + c.norm_bias)",
        'c.d_model * (1 + (c.norm == "layer"))',
        ("parameters_gpt2",),
    ),
    Variant("norms always have a bias", "c.d_model * (1 + c.norm_bias)", "c.d_model * 2", ("parameters_llama",)),
    Variant(
        "the bias of keys and values is that of queries",
        "c.qkv_bias * (queries + 2 * keys)",
        "c.qkv_bias * 3 * queries",
        ("parameters_llama",),
    ),
    Variant(
        "biases are wide as their inputs",
        "((matrices - 1) * c.d_ff + c.d_model)",
        "((matrices - 1) * c.d_model + c.d_ff)",
        ("parameters_llama",),
    ),
    Variant(
        "the gate has no bias", "((matrices - 1) * c.d_ff + c.d_model)", "(c.d_ff + c.d_model)", ("parameters_llama",)
    ),
    Variant(
        "biases are forgotten",
        "attention += c.qkv_bias * (queries + 2 * keys) + c.out_bias * c.d_model",
        "pass",
        ("parameters_gpt2", "parameters_llama"),
    ),
    Variant(
        "a tied head counts twice",
        '"head": 0 if c.tied else',
        '"head": 0 if False else',
        ("parameters_gpt2", "parameters_llama"),
    ),
    Variant(
        "every head is tied",
        '"head": 0 if c.tied else',
        '"head": 0 if True else',
        ("parameters_gpt2", "parameters_llama"),
    ),
    Variant(
        "rotary positions are learned",
        'if c.position == "learned" else 0',
        "if c.position else 0",
        ("parameters_llama",),
    ),
    Variant(
        "positions are not counted",
        'c.context * c.d_model if c.position == "learned" else 0',
        "0",
        ("parameters_gpt2",),
    ),
    Variant(
        "one layer only",
        '"attention": c.n_layers * attention',
        '"attention": attention',
        ("parameters_gpt2", "parameters_llama"),
    ),
]

FLOPS = [
    Variant(
        "scores of grouped heads",
        "batch * c.n_heads\n    layer = [",
        "batch * c.n_kv_heads\n    layer = [",
        ("forward_products",),
    ),
    Variant(
        "a batch shares its scores",
        "batch * c.n_heads\n    layer = [",
        "c.n_heads\n    layer = [",
        ("forward_products",),
    ),
    Variant(
        "all heads in one product",
        '("scores", heads, tokens, c.head_dim, tokens)',
        '("scores", batch, tokens, queries, tokens)',
        ("forward_products",),
    ),
    Variant(
        "the whole batch meets itself",
        '("scores", heads, tokens, c.head_dim, tokens)',
        '("scores", c.n_heads, rows, c.head_dim, rows)',
        ("forward_products",),
    ),
    Variant(
        "the causal half",
        '("mixed", heads, tokens, tokens, c.head_dim)',
        '("mixed", heads, tokens, tokens // 2, c.head_dim)',
        ("forward_products",),
    ),
    Variant(
        "keys and values as wide as queries",
        '("key", 1, rows, c.d_model, keys)',
        '("key", 1, rows, c.d_model, queries)',
        ("forward_products",),
    ),
    Variant(
        "the gate is forgotten",
        'if c.activation == "swiglu":\n        layer.append',
        "if False:\n        layer.append",
        ("forward_products", "training_flops"),
    ),
    Variant(
        "every MLP has a gate",
        'if c.activation == "swiglu":\n        layer.append',
        "if True:\n        layer.append",
        ("forward_products", "training_flops"),
    ),
    Variant(
        "the head multiplies in every layer",
        '("head", 1, rows, c.d_model, c.vocab_size)',
        '("head", c.n_layers, rows, c.d_model, c.vocab_size)',
        ("forward_products",),
    ),
    Variant(
        "a tied head is free",
        'return [*products, ("head"',
        'return products if c.tied else [*products, ("head"',
        ("forward_products", "training_flops"),
    ),
    Variant(
        "the embedding multiplies",
        'return [*products, ("head"',
        'return [*products, ("embedding", 1, rows, c.vocab_size, c.d_model), ("head"',
        ("forward_products", "attention_share"),
    ),
    Variant(
        "the output matrix is square",
        '("output", 1, rows, queries, c.d_model)',
        '("output", 1, rows, c.d_model, c.d_model)',
        ("forward_products",),
    ),
    Variant("backward costs as much as forward", "return 3 * flops_of(", "return 2 * flops_of(", ("training_flops",)),
    Variant(
        "one long sequence",
        "forward_products(config, sequences, config.context))\n",
        "forward_products(config, 1, tokens))\n",
        ("training_flops",),
    ),
    Variant(
        "tokens by themselves",
        "forward_products(config, sequences, config.context))\n",
        "forward_products(config, tokens, 1))\n",
        ("training_flops",),
    ),
    Variant(
        "six times parameters times tokens",
        "    return 3 * flops_of(forward_products(config, sequences, config.context))\n",
        "    return 6 * count_parameters(config) * sequences * config.context\n",
        ("training_flops",),
    ),
    Variant("only the scores are quadratic", 'in ("scores", "mixed")]', 'in ("scores",)]', ("attention_share",)),
    Variant(
        "all of attention",
        'in ("scores", "mixed")]',
        'in ("query", "key", "value", "scores", "mixed", "output")]',
        ("attention_share",),
    ),
    Variant(
        "beside the rest, not of all",
        "/ flops_of(products)\n",
        "/ (flops_of(products) - flops_of(quadratic))\n",
        ("attention_share",),
    ),
    Variant(
        "the crossover is a whole number",
        "(total - per_pair) / per_pair",
        "float((total - per_pair) // per_pair)",
        ("attention_share",),
    ),
    Variant(
        "the crossover counts a pair's scores twice",
        "(total - per_pair) / per_pair",
        "total / per_pair",
        ("attention_share",),
    ),
    Variant("a pair costs one product", "per_pair = 4 *", "per_pair = 2 *", ("attention_share",)),
]

COUNT_UP = """    for data in range(1, limit // tensor + 1):
        plan = memory_plan(config, tokens, zero_stage=zero_stage, data=data, tensor=tensor, recompute=recompute)
        if sum(plan.values()) <= memory_bytes:
            return data * tensor
    return None
"""
MEMORY = [
    Variant("rounded down", "own = -(-n_parameters // tensor)", "own = n_parameters // tensor", ("state_bytes",)),
    Variant(
        "the shard is rounded down", "part = -(-own // data)", "part = own // data", ("state_bytes", "fewest_devices")
    ),
    Variant(
        "stages count from zero",
        "if zero_stage >= 1 else own",
        "if zero_stage >= 0 else own",
        ("state_bytes", "fewest_devices"),
    ),
    Variant(
        "stage 2 cuts the weights",
        "part if zero_stage >= 3 else own",
        "part if zero_stage >= 2 else own",
        ("state_bytes",),
    ),
    Variant(
        "only stage 2 cuts the gradients",
        "part if zero_stage >= 2 else own",
        "part if zero_stage == 2 else own",
        ("state_bytes",),
    ),
    Variant("no master copy", '"optimizer": 12 *', '"optimizer": 8 *', ("state_bytes", "fewest_devices")),
    Variant("gradients in fp32", '"gradients": 2 *', '"gradients": 4 *', ("state_bytes", "fewest_devices")),
    Variant("tensor groups cut nothing", "own = -(-n_parameters // tensor)", "own = n_parameters", ("state_bytes",)),
    Variant(
        "the inputs of norms are forgotten",
        "layer = 4 * c.d_model + attention",
        "layer = 2 * c.d_model + attention",
        ("activation_bytes",),
    ),
    Variant(
        "keys and values of every head",
        "2 * c.n_kv_heads * c.head_dim\n    layer = 4",
        "2 * c.n_heads * c.head_dim\n    layer = 4",
        ("activation_bytes",),
    ),
    Variant(
        "the result of attention is not kept",
        "attention = 2 * c.n_heads * c.head_dim +",
        "attention = c.n_heads * c.head_dim +",
        ("activation_bytes",),
    ),
    Variant("SwiGLU keeps three", '{"swiglu": 4,', '{"swiglu": 3,', ("activation_bytes",)),
    Variant("relu keeps both", '"relu": 1}', '"relu": 2}', ("activation_bytes",)),
    Variant("gelu keeps its result only", '"gelu": 2,', '"gelu": 1,', ("activation_bytes",)),
    Variant("one head's softmax", "scores = c.n_heads * tokens", "scores = tokens", ("activation_bytes",)),
    Variant(
        "the scores are kept as well as their softmax",
        "scores = c.n_heads * tokens",
        "scores = 2 * c.n_heads * tokens",
        ("activation_bytes",),
    ),
    Variant(
        "selective keeps the softmax",
        "elements = c.n_layers * layer + scores\n",
        "elements = c.n_layers * (layer + scores)\n",
        ("activation_bytes",),
    ),
    Variant(
        "selective recomputation forgets the layer on its way back",
        "elements = c.n_layers * layer + scores\n",
        "elements = c.n_layers * layer\n",
        ("activation_bytes",),
    ),
    Variant(
        "full recomputation forgets the layer on its way back",
        "elements = (c.n_layers - 1) * c.d_model + layer + scores",
        "elements = c.n_layers * c.d_model",
        ("activation_bytes",),
    ),
    Variant(
        "full recomputation counts an input twice",
        "elements = (c.n_layers - 1) * c.d_model + layer + scores",
        "elements = c.n_layers * c.d_model + layer + scores",
        ("activation_bytes",),
    ),
    Variant(
        "full recomputation keeps no softmax of its layer",
        "elements = (c.n_layers - 1) * c.d_model + layer + scores",
        "elements = (c.n_layers - 1) * c.d_model + layer",
        ("activation_bytes",),
    ),
    Variant(
        "probabilities in bf16",
        "2 * c.d_model) + 4 * c.vocab_size",
        "2 * c.d_model) + 2 * c.vocab_size",
        ("activation_bytes",),
    ),
    Variant("the last norm is forgotten", "2 * (elements + 2 * c.d_model)", "2 * elements", ("activation_bytes",)),
    Variant(
        "elements instead of bytes", "token_bytes = 2 * (elements", "token_bytes = (elements", ("activation_bytes",)
    ),
    Variant(
        "every device of a tensor group holds all",
        "batch * tokens * token_bytes // tensor",
        "batch * tokens * token_bytes",
        ("activation_bytes", "fewest_devices"),
    ),
    Variant(
        "one sequence whatever the batch",
        "return batch * tokens * token_bytes // tensor",
        "return tokens * token_bytes // tensor",
        ("activation_bytes",),
    ),
    Variant(
        "exactly full does not fit",
        "if sum(plan.values()) <= memory_bytes:",
        "if sum(plan.values()) < memory_bytes:",
        ("fewest_devices",),
    ),
    Variant(
        "groups are counted, not devices",
        "            return data * tensor\n",
        "            return data\n",
        ("fewest_devices",),
    ),
    Variant(
        "activations are left out",
        "if sum(plan.values()) <= memory_bytes:",
        'if sum(plan.values()) - plan["activations"] <= memory_bytes:',
        ("fewest_devices",),
    ),
    Variant("the limit is for groups", "range(1, limit // tensor + 1):", "range(1, limit + 1):", ("fewest_devices",)),
    Variant(
        "the limit itself is not tried",
        "range(1, limit // tensor + 1):",
        "range(1, limit // tensor):",
        ("fewest_devices",),
    ),
    Variant(
        "powers of two only",
        "for data in range(1, limit // tensor + 1):",
        "for data in [1, 2, 4, 8, 16, 32, 64]:",
        ("fewest_devices",),
    ),
    Variant(
        "recomputation is not passed on",
        "data=data, tensor=tensor, recompute=recompute)",
        "data=data, tensor=tensor)",
        ("fewest_devices",),
    ),
    Variant(
        "the whole divided by what a device has",
        COUNT_UP,
        """    total = sum(memory_plan(config, tokens, recompute=recompute).values())
    count = tensor * -(-total // (tensor * max(1, memory_bytes)))
    return count if count <= limit else None
""",
        ("fewest_devices",),
    ),
]

STEP = [
    Variant(
        "the way back has one product each",
        "return [*products, *back_x, *back_y]",
        "return [*products, *back_x]",
        ("step_products", "predict_step"),
    ),
    Variant(
        "forward is left out",
        "return [*products, *back_x, *back_y]",
        "return [*back_x, *back_y]",
        ("step_products", "predict_step"),
    ),
    Variant(
        "back to the input: summed over the wrong length",
        "times, m, n, k) for name",
        "times, m, k, n) for name",
        ("step_products",),
    ),
    Variant(
        "back to the weight: summed over the wrong length",
        "times, k, m, n) for name",
        "times, k, n, m) for name",
        ("step_products",),
    ),
    Variant(
        "back only once in all layers",
        'back to its weight", times, k',
        'back to its weight", 1, k',
        ("step_products", "predict_step"),
    ),
    Variant(
        "norms are free",
        "layer = 8 * c.d_model + 4 * heads",
        "layer = 2 * c.d_model + 4 * heads",
        ("elementwise_units",),
    ),
    Variant("scores are written once", "5 * c.n_heads * tokens", "c.n_heads * tokens", ("elementwise_units",)),
    Variant("scores of one head", "5 * c.n_heads * tokens", "5 * tokens", ("elementwise_units",)),
    Variant(
        "the loss in every layer", "(c.n_layers * layer + once)", "c.n_layers * (layer + once)", ("elementwise_units",)
    ),
    Variant(
        "the update for every token",
        "(c.n_layers * layer + once) + count_parameters(c)",
        "(c.n_layers * layer + once + count_parameters(c))",
        ("elementwise_units",),
    ),
    Variant(
        "no update",
        "(c.n_layers * layer + once) + count_parameters(c)",
        "(c.n_layers * layer + once)",
        ("elementwise_units", "predict_step"),
    ),
    Variant(
        "multiply-adds at a rate of FLOPs",
        "sum(2 * times * m * k * n / rates[m, k, n]",
        "sum(times * m * k * n / rates[m, k, n]",
        ("predict_step",),
    ),
    Variant(
        "each shape runs once",
        "sum(2 * times * m * k * n / rates[m, k, n]",
        "sum(2 * m * k * n / rates[m, k, n]",
        ("predict_step",),
    ),
    Variant(
        "all FLOPs at the mean rate",
        "products_s = sum(2 * times * m * k * n / rates[m, k, n] for _, times, m, k, n in products)",
        "products_s = flops_of(products) * len(rates) / sum(rates.values())",
        ("predict_step",),
    ),
    Variant("at the fastest rate", "/ rates[m, k, n]", "/ max(rates.values())", ("predict_step",)),
    Variant(
        "elementwise work is free",
        "return products_s + elementwise_units(config, batch, tokens) * unit_s",
        "return products_s",
        ("predict_step",),
    ),
    Variant(
        "elementwise work in parallel",
        "return products_s + elementwise_units(config, batch, tokens) * unit_s",
        "return max(products_s, elementwise_units(config, batch, tokens) * unit_s)",
        ("predict_step",),
    ),
]

SERVING = [
    Variant(
        "keys but no values",
        "token_bytes = 2 * 2 * config",
        "token_bytes = 2 * config",
        ("serving_memory", "decode_work"),
    ),
    Variant(
        "a cache for every query head",
        "config.n_layers * config.n_kv_heads * config.head_dim",
        "config.n_layers * config.n_heads * config.head_dim",
        ("serving_memory", "decode_work"),
    ),
    Variant(
        "a cache of the model's width", "config.n_kv_heads * config.head_dim", "config.d_model", ("serving_memory",)
    ),
    Variant(
        "one layer's cache",
        "2 * 2 * config.n_layers * config.n_kv",
        "2 * 2 * config.n_kv",
        ("serving_memory", "decode_work"),
    ),
    Variant(
        "weights take no room",
        "left = memory_bytes - 2 * count_parameters(config)",
        "left = memory_bytes",
        ("serving_memory",),
    ),
    Variant(
        "weights of one byte",
        "left = memory_bytes - 2 * count_parameters(config)",
        "left = memory_bytes - count_parameters(config)",
        ("serving_memory",),
    ),
    Variant("a negative batch", "return max(0, int(left //", "return int((left //", ("serving_memory",)),
    Variant(
        "rounded up",
        "int(left // kv_cache_bytes(config, 1, tokens))",
        "math.ceil(left / kv_cache_bytes(config, 1, tokens))",
        ("serving_memory",),
    ),
    Variant("at least one", "return max(0, int(left", "return max(1, int(left", ("serving_memory", "choose_machine")),
    Variant(
        "the new token sees itself only",
        "    flops += 4 * batch * config.n_layers * config.n_heads * config.head_dim * (tokens - 1)\n",
        "",
        ("decode_work",),
    ),
    Variant("one token too many", "config.head_dim * (tokens - 1)\n", "config.head_dim * tokens\n", ("decode_work",)),
    Variant(
        "grouped heads save FLOPs",
        "flops += 4 * batch * config.n_layers * config.n_heads",
        "flops += 4 * batch * config.n_layers * config.n_kv_heads",
        ("decode_work",),
    ),
    Variant(
        "a prefill",
        "flops_of(forward_products(config, batch, 1))",
        "flops_of(forward_products(config, batch, tokens))",
        ("decode_work",),
    ),
    Variant(
        "the batch reads its weights one by one",
        "return flops, 2 * read +",
        "return flops, 2 * batch * read +",
        ("decode_work",),
    ),
    Variant("positions are read", 'sum(table.values()) - table["position"]', "sum(table.values())", ("decode_work",)),
    Variant(
        "the embedding is always read",
        "    if not config.tied:\n        read -=",
        "    if False:\n        read -=",
        ("decode_work",),
    ),
    Variant(
        "a tied embedding is not read",
        "    if not config.tied:\n        read -=",
        "    if True:\n        read -=",
        ("decode_work",),
    ),
    Variant(
        "the cache of one sequence",
        "2 * read + kv_cache_bytes(config, batch, tokens)",
        "2 * read + kv_cache_bytes(config, 1, tokens)",
        ("decode_work",),
    ),
    Variant(
        "compute and memory one after the other",
        "step_s = max(compute_s, memory_s)",
        "step_s = compute_s + memory_s",
        ("choose_machine",),
    ),
    Variant(
        "the faster limit",
        "step_s = max(compute_s, memory_s)",
        "step_s = min(compute_s, memory_s)",
        ("choose_machine",),
    ),
    Variant(
        "what binds is the wrong way round",
        '"compute" if compute_s >= memory_s',
        '"compute" if compute_s < memory_s',
        ("choose_machine",),
    ),
    Variant(
        "memory binds when both times are equal",
        '"compute" if compute_s >= memory_s',
        '"compute" if compute_s > memory_s',
        ("choose_machine",),
    ),
    Variant("price of a step, not of a token", "step_s / batch * 1e6", "step_s * 1e6", ("choose_machine",)),
    Variant(
        "price of an hour as if of a second", "dollars_per_hour / 3600 *", "dollars_per_hour *", ("choose_machine",)
    ),
    Variant(
        "the fastest step",
        "key=lambda choice: choice.dollars_per_million, default",
        "key=lambda choice: choice.step_s, default",
        ("choose_machine",),
    ),
    Variant(
        "the last of two that are equally cheap",
        "return min(choices, key=",
        "return min(choices[::-1], key=",
        ("choose_machine",),
    ),
    Variant(
        "one sequence at a time",
        "        flops, moved = decode_work(config, batch, tokens)\n        compute_s",
        "        batch = 1\n        flops, moved = decode_work(config, batch, tokens)\n        compute_s",
        ("choose_machine",),
    ),
]

MUTANTS = [*EINSUM, *PARAMETERS, *FLOPS, *MEMORY, *STEP, *SERVING]

TRAINING = "    return 3 * flops_of(forward_products(config, sequences, config.context))\n"
MISHAPS = [
    Variant(
        "an intermediate that does not fit the second step",
        "if letter in third + output)",
        "if letter in third)",
        ("einsum_order",),
        says="best_first_pair made an einsum of two that does not fit",
    ),
    Variant(
        "unfinished",
        TRAINING,
        '    raise NotImplementedError("still to do")\n',
        ("training_flops",),
        says="not written yet",
    ),
    Variant(
        "a float where a whole number was asked for",
        TRAINING,
        "    return 3.0 * flops_of(forward_products(config, sequences, config.context))\n",
        ("training_flops",),
        says="training_flops is not a whole number | float",
    ),
    Variant(
        "NaN",
        "return products_s + elementwise",
        "return math.nan * elementwise",
        ("predict_step",),
        says="`predict_step_s with unit_s = 0` has 1 NaN",
    ),
    Variant(
        "an exception",
        TRAINING,
        "    return [][sequences]\n",
        ("training_flops",),
        says="your code stopped with an exception | IndexError: list index out of range",
    ),
    Variant(
        "an endless loop",
        TRAINING,
        "    while True:\n        pass\n",
        ("training_flops",),
        hangs=True,
        says="it did not come to an end | no answer after 1 s",
    ),
    Variant("nothing comes back", TRAINING, "    pass\n", ("training_flops",), says="NoneType None | int"),
    Variant(
        "a part is missing",
        '        "head": 0 if c.tied else c.d_model * c.vocab_size,\n',
        "",
        ("parameters_gpt2",),
        says="parameter_table is not a dictionary of what was asked for",
    ),
    Variant(
        "products without names",
        "products = [(name, c.n_layers * times",
        "products = [(c.n_layers * times",
        ("forward_products",),
        says="forward_products lists no product",
    ),
    Variant(
        "products as lists",
        "products = [(name, c.n_layers * times, m, k, n) for",
        "products = [[name, c.n_layers * times, m, k, n] for",
        ("forward_products",),
        says="forward_products lists no product | list ['query', ",
    ),
    Variant(
        "a number instead of a list",
        "    return [*products, *back_x, *back_y]\n",
        "    return flops_of(products)\n",
        ("step_products",),
        says="step_products gives no list | int",
    ),
    Variant(
        "a number beyond all bounds", '"weights": 2 * ', '"weights": 2**70 * ', ("state_bytes",), says="is out of range"
    ),
    Variant(
        "a name instead of a Choice",
        "return min(choices, key=lambda choice: choice.dollars_per_million, default=None)",
        "return min(choices, key=lambda choice: choice.dollars_per_million).device",
        ("choose_machine",),
        says="choose_machine gives no Choice | str",
    ),
    Variant(
        "one number instead of two",
        "return flops, 2 * read + kv_cache_bytes(config, batch, tokens)",
        "return flops",
        ("decode_work",),
        says="decode_work gives no pair | int",
    ),
    Variant(
        "another exception than ValueError",
        'raise ValueError(f"no operand has {unknown}")',
        'raise KeyError(f"no operand has {unknown}")',
        ("einsum_parse",),
        says="(3, 5)) if letters and shapes do not fit, else an answer",
    ),
    Variant(
        "a list of sizes",
        "    return operands, output, sizes\n",
        "    return operands, output, list(sizes.values())\n",
        ("einsum_parse",),
        says="parse_einsum gives something else",
    ),
]
