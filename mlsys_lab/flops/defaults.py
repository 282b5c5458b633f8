"""Default values of the command line, the site's figures and the chapters: one set for all."""

from __future__ import annotations

DEVICE = "H100"
SEQUENCE_TOKENS = 8192
"""Most tokens of a training sequence, where the model's context is longer."""
RECIPE = "mixed18"
"""Bytes a parameter of training: gradients are accumulated in fp32, as in the runs of `published_runs`."""
PROMPT, ANSWER = 1000, 120
"""Mean tokens of a request: of its prompt and of its answer."""
TTFT_S, TPOT_S = 0.5, 0.05
"""Objective of a server: seconds to the first token, and per token after it."""
SEQUENCES, STEP_TOKENS = 256, 1024
"""Most sequences and most tokens of a server's step."""
SERVING_MEMORY = 0.9
"""Fraction of a device's memory that a server uses."""
TRAINING_EFFICIENCY = 0.65
"""What a real step reaches of the speed at which arithmetic at the peak, memory, links and network take turns: the
median of the runs in `published_runs`, which lie from 0.49 (1.7 billion parameters) to 0.81."""
SERVING_EFFICIENCY = 0.6
"""Fraction of its peaks that a server's steps are taken to reach: an assumption, to be replaced by a measurement."""
