"""How the check of lab 09's divided loss calls the learner's code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlsys_checks.sandboxed.model_parallel.given import copy_tensors, go_back, refuse_change, require_tensor
from mlsys_checks.sandboxed.spec import Arrays
from mlsys_checks.sandboxed.values import array, number

if TYPE_CHECKING:
    from mlsys_lab.comm.rank import Rank


def cross_entropy(artifact: Any, rank: Rank, arrays: Arrays) -> Arrays:
    """Call `vocab_parallel_cross_entropy`, then its backward pass twice, the second with gradient `again` if given."""
    logits, targets = copy_tensors(arrays, "logits", "targets")
    logits.requires_grad_()
    loss = artifact.vocab_parallel_cross_entropy(rank, logits, int(arrays["start"]), targets)
    loss = require_tensor("vocab_parallel_cross_entropy", loss, ())
    answers = {"loss": number("loss", loss.detach())}
    go_back("vocab_parallel_cross_entropy", loss, arrays["gradient"], again=True)
    go_back("vocab_parallel_cross_entropy", loss, arrays.get("again", arrays["gradient"]))
    refuse_change("logits", logits, arrays["logits"], wants=True)
    refuse_change("targets", targets, arrays["targets"])
    return answers | {"logits.grad": array("logits.grad", logits.grad)}
