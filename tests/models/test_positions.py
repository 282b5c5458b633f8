import pytest
import torch

from mlsys_lab.models.positions import alibi_slopes, rotary_angles, rotate, score_bias

WIDE, HALF = torch.empty(0, dtype=torch.float64), torch.empty(0, dtype=torch.bfloat16)


def test_rotation_is_multiplication_of_complex_numbers():
    x = torch.randn(2, 3, 5, 8, dtype=torch.float64)
    turned = rotate(x, rotary_angles(torch.arange(5), 8, 10_000.0, WIDE))
    places = torch.arange(5, dtype=torch.float64)[:, None]
    turns = torch.tensor([1.0, 0.1, 0.01, 0.001], dtype=torch.float64)
    expected = torch.complex(x[..., :4], x[..., 4:]) * torch.polar(torch.ones(5, 4).double(), places * turns)
    torch.testing.assert_close(turned, torch.cat((expected.real, expected.imag), -1), rtol=0, atol=1e-14)


def test_scores_depend_on_distance_alone():
    q, k = torch.randn(2, 1, 8, dtype=torch.float64)
    angles = rotary_angles(torch.arange(50), 8, 100.0, WIDE)
    scores = rotate(q.expand(50, 8), angles) @ rotate(k.expand(50, 8), angles).T
    for distance in (-20, 0, 1, 30):
        diagonal = scores.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=0, atol=1e-12)


def test_far_angles_are_exact_before_they_are_rounded():
    far = rotary_angles(torch.arange(30_001), 2, 10_000.0, HALF)[:, -1, 0]
    exact = torch.tensor([30_000.0], dtype=torch.float64)
    torch.testing.assert_close(far.double(), torch.stack((exact.cos(), exact.sin()))[:, 0], rtol=0, atol=4e-3)


@pytest.mark.parametrize(
    ("heads", "slopes"),
    [
        (8, [2.0**-n for n in range(1, 9)]),  # arXiv:2108.12409, §3
        (1, [2.0**-8]),
        (3, [2.0**-4, 2.0**-8, 2.0**-2]),  # those of 2, then the first of 4
        (12, [2.0**-n for n in range(1, 9)] + [2.0**-n for n in (0.5, 1.5, 2.5, 3.5)]),
    ],
)
def test_alibi(heads, slopes):
    places = torch.arange(4)
    bias = score_bias(places, places, WIDE, slopes=alibi_slopes(heads, WIDE))
    assert bias.shape == (heads, 4, 4)
    torch.testing.assert_close(bias[:, 3], torch.tensor(slopes).double()[:, None] * torch.tensor([-3.0, -2, -1, 0]))
    assert (bias[:, 0, 1:] == -torch.inf).all() and (bias.diagonal(dim1=1, dim2=2) == 0).all()


@pytest.mark.parametrize("window", [1, 2, 3, 9, None])
def test_a_query_sees_itself_and_those_just_before_it(window):
    queries, keys = torch.tensor([[5, 6], [2, 3]]), torch.arange(3, 8).expand(2, 5)
    bias = score_bias(queries, keys, WIDE, window=window)
    for sequence in range(2):
        for q in range(2):
            query = int(queries[sequence, q])
            seen = [key for key in range(3, 8) if query - (window or 99) < key <= query]
            assert [key for key in range(3, 8) if bias[sequence, 0, q, key - 3] == 0] == seen
    assert set(bias.unique().tolist()) == {-torch.inf, 0.0}
