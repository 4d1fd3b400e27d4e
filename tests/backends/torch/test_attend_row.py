"""The attention of one row in one kernel: as `plain_attend` says, whatever pieces its view is cut into."""

import pytest

from stretto.backends.torch.device import has_triton, is_interpreting

torch = pytest.importorskip("torch", reason="torch is an extra")
if not has_triton() or not (is_interpreting() or torch.cuda.is_available()):
    pytest.skip("kernels need a GPU, or TRITON_INTERPRET=1 and triton", allow_module_level=True)

from stretto.backends.torch.attention_layer import plain_attend  # noqa: E402
from stretto.backends.torch.kernels import attend_launch  # noqa: E402
from stretto.backends.torch.work import AttentionWork, Scoring  # noqa: E402

DEVICE = "cpu" if is_interpreting() else "cuda"
TYPES = [torch.float32] if is_interpreting() else [torch.float32, torch.float16, torch.bfloat16]
SIZE = 32
POSITION = 7


def numbers(*values):
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def work_of(cells, first, length):
    """The work of one row that attends to entries first … length of a view that does not begin at 0."""
    views = torch.cat([torch.full((3,), 10**6), cells]).to(torch.int32).to(DEVICE)
    none = numbers(0)
    return AttentionWork(
        views, torch.zeros_like(views), numbers(POSITION), numbers(3), numbers(first), numbers(length),
        none, none, none, 1, None, None, None,
    )  # fmt: skip


def turning(heads, kv_heads, angles):
    """Constants, tensors and numbers of heads that are rotated in pairs of halves, and nothing else."""
    constants = {
        "H": heads, "HK": kv_heads, "D": SIZE, "PAIRS": SIZE // 2, "ADJACENT": False, "AXES": False,
        "Q_NORM": 0, "Q_LAYER": False, "Q_GAIN": 0, "K_NORM": 0, "K_LAYER": False, "K_GAIN": 0,
        "V_NORM": 0, "V_GAIN": 0, "AFTER": False, "WARM": False,
    }  # fmt: skip
    cos, sin = angles.cos().to(DEVICE), angles.sin().to(DEVICE)
    rotation = [cos, sin, numbers(POSITION), numbers(0)]
    at_k, at_v = heads * SIZE, (heads + kv_heads) * SIZE
    return attend_launch.Turning(
        constants, [cos, cos, cos], rotation, (0.0, 0.0, 0.0, 0.0, 1.0, 0.0), at_k, at_v
    )


def rotated(x, angles):
    """x [heads, SIZE] at POSITION."""
    c, s = angles[POSITION].cos(), angles[POSITION].sin()
    a, b = x[:, : SIZE // 2], x[:, SIZE // 2 :]
    return torch.cat((a * c - b * s, b * c + a * s), 1)


@pytest.mark.parametrize(
    ("heads", "kv_heads"), [(4, 2), (3, 1)] if is_interpreting() else [(4, 2), (3, 1), (40, 2)]
)
@pytest.mark.parametrize(
    ("first", "length"),
    [(0, 1), (0, 2), (0, 65), (3, 200)] + ([] if is_interpreting() else [(0, 1100), (900, 40_000)]),
)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("sinks", [False, True])
def test_it_attends_as_the_plain_version(heads, kv_heads, first, length, dtype, sinks, monkeypatch):
    if is_interpreting():
        monkeypatch.setattr(attend_launch, "ROW_PIECES", 3)  # several turns each
    torch.manual_seed(length)
    n_cells = length + 5
    keys, values = (torch.randn(n_cells, kv_heads, SIZE).to(dtype).to(DEVICE) for _ in range(2))
    cells = torch.randperm(n_cells)[:length]
    projected = torch.randn(1, (heads + 2 * kv_heads) * SIZE)
    angles = torch.outer(torch.arange(16.0), 1 / (1 + torch.arange(SIZE // 2)))
    scoring = Scoring(0.3, sinks=torch.randn(heads).to(DEVICE) if sinks else None)
    work = work_of(cells, first, length)
    own = int(cells[-1])

    q = rotated(projected[0, : heads * SIZE].view(heads, SIZE), angles)
    k, v = projected[0, heads * SIZE :].view(2, kv_heads, SIZE)
    wanted_k, wanted_v = (each.to(dtype).to(DEVICE) for each in (rotated(k, angles), v))
    expected_keys, expected_values = keys.clone(), values.clone()
    expected_keys[own], expected_values[own] = wanted_k, wanted_v
    expected = torch.empty(1, heads * SIZE, device=DEVICE)
    plain = AttentionWork(**{**vars(work), "views": work.views[3:], "offsets": numbers(0)})
    plain_attend(q.to(dtype)[None].to(DEVICE), expected_keys, expected_values, plain, scoring, expected)

    out = torch.full((1, heads * SIZE), float("nan"), device=DEVICE)
    for _ in range(2):  # counters are 0 again after the first
        attend_launch.launch_row(
            projected.to(DEVICE), turning(heads, kv_heads, angles), keys, values, numbers(own), work,
            scoring, out,
        )  # fmt: skip
    exact = dtype == torch.float32
    torch.testing.assert_close(out, expected, atol=1e-5 if exact else 2e-2, rtol=1e-5 if exact else 2e-2)
    torch.testing.assert_close(
        keys, expected_keys, atol=1e-6 if exact else 2e-2, rtol=1e-6 if exact else 2e-2
    )
    assert torch.equal(values, expected_values)
