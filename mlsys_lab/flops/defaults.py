"""What the command line, the site's figures and the chapters take where nobody says otherwise: one set, in one place."""

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
SERVING_EFFICIENCY = 0.6
"""Fraction of its peaks that a server's steps reach."""
