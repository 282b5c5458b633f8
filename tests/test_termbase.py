"""Private words that the field has a term for: none of them is left in code, labs or chapters.

A word is on the list only if it is wrong wherever it stands: `share` and `place`, which are right somewhere, are not.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TERMS = {
    # parallelism: Megatron-LM, torch.distributed, ZeRO
    "take_columns": "ColumnParallelLinear",
    "RowLinear": "RowParallelLinear",
    "VocabularyEmbedding": "VocabParallelEmbedding",
    "divided_cross_entropy": "vocab_parallel_cross_entropy",
    "StatesDivided": "ZeRO-1",
    "GradientsDivided": "ZeRO-2",
    "WeightsDivided": "ZeRO-3",
    "divide_transformer": "apply_tensor_parallel",
    "divide_experts": "apply_expert_parallel",
    "late_weights|LateWeights": "WeightGradStore",
    "most_kept": "max_in_flight",
    "BucketQueue": "BucketReducer",
    "Crossings": "OffloadTraffic",
    # serving: vLLM
    "Chooser": "SampleInput",
    "host_pages": "num_host_blocks",
    "best_drafts": "best_num_speculative_tokens",
    "open_texts|running_texts|waiting_texts": "open, running, waiting sequences",
    # the grader: nbgrader
    "deciding": "trusted",
    "HOPELESS": "LOAD_FAILED",
    "HeavyAnswerError": "AnswerTooLargeError",
    "SilentRankError": "RankTimeoutError",
    "read_trouble|find_trouble|describe_trouble": "problem",
    "HandIns?": "FoundNotebook, FoundSubmissions",
    "assign_share|judge_share|read_shares": "shard",
    "give_texts|lend_texts": "kernel sources",
    # diffusion: EDM, diffusers
    "ClassifierFree": "ClassifierFreeGuidance",
    "MOST_CHURN": "MAX_CHURN",
    # English
    "hangs on": "depends on",
    "look whether": "check whether",
}
FOLDERS = {
    "mlsys_lab": ("*.py", "*.js"),
    "grader": ("*.py", "*.md"),
    "solutions": ("*.py",),
    "tests": ("*.py",),
    "book": ("*.py",),
    "book/chapters": ("*.md",),
}


def test_the_fields_terms_are_used() -> None:
    files = {path for folder, kinds in FOLDERS.items() for kind in kinds for path in (ROOT / folder).rglob(kind)}
    terms = [(re.compile(rf"\b(?:{word})\b"), term) for word, term in TERMS.items()]
    found = [
        f"{path.relative_to(ROOT)}:{number}: say {term}, not {match[0]}"
        for path in sorted(files - {Path(__file__)})
        if "_build" not in path.parts
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        for word, term in terms
        if (match := word.search(line))
    ]
    assert not found, "\n".join(found)
