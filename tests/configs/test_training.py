import pytest

from mlsys_lab.configs import TrainConfig
from mlsys_lab.errors import InputError


@pytest.mark.parametrize(
    ("field", "value"), [("batch_size", 0), ("seq_len", 8.0), ("steps", True), ("lr", float("nan")), ("seed", -1)]
)
def test_a_number_out_of_range_is_named(field, value):
    plan = {"batch_size": 4, "seq_len": 8, "steps": 3, "lr": 0.1} | {field: value}
    with pytest.raises(InputError, match=f"{field} out of range: got {value!r}"):
        TrainConfig(**plan)
