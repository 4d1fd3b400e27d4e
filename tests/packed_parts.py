"""Random packed matrices, and what rounding rows to 8 bits makes of them; needs torch."""

import torch

from stretto.backends.torch import layouts, octets
from stretto.weights.formats import Format

PACKED = [Format.Q8_0, Format.Q4_0, Format.Q4_1, Format.MXFP4, Format.Q4_K, Format.Q5_K, Format.Q6_K]
SCALES_AT = {Format.Q6_K: (208,), Format.Q4_0: (0,), Format.Q8_0: (0,)}  # bytes of a block


def packed(fmt, rows, columns, device="cpu"):
    """Random blocks with tame scales."""
    generator = torch.Generator().manual_seed(rows)
    shape = rows, columns // fmt.block, fmt.size
    data = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    if fmt is Format.MXFP4:
        data[..., 0] = 118 + data[..., 0] % 6
    else:
        for at in SCALES_AT.get(fmt, (0, 2)):
            scales = (torch.rand(data.shape[:2], generator=generator) * 2e-3 + 1e-4).half()
            data[..., at : at + 2] = scales[..., None].view(torch.uint8)
    return layouts.pack(data.reshape(rows, -1).to(device), fmt, columns)


def rounded(x, part):
    """x as the kernels round it: 8 bits for each 32 columns, or 256 of formats in blocks of 256."""
    blocks = x.float().reshape(-1, 256 if part.layout.code >= octets.SUPER_CODE else 32)
    most = blocks.abs().amax(1, keepdim=True)
    whole = (blocks * (torch.full_like(most, 127) / most)).round()
    return (whole.double() * (most * (1 / 127)).double()).reshape(x.shape)


def error(y, expected):
    """The largest error, by the largest number."""
    return ((y.double() - expected).abs().max() / expected.abs().max()).item()
