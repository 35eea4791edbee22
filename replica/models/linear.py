"""A linear layer for batches from one token to a long prompt."""

import torch

PANEL = 96
"""Outputs of a panel, at most: with 576 inputs 0.2 MB, which stays in L2, and enough of them for
all cores to share evenly."""


class Linear:
    """Multiplies by a matrix that is kept in panels of outputs, [panels, inputs, width].

    On CPU, few rows (8 to 32: decodes, the rest of a prompt after its cached prefix) take a quarter
    less time in panels than whole; one row and long prompts take up to a tenth more.
    """

    def __init__(
        self, weight: torch.Tensor, bias: torch.Tensor | None = None, *, shared: bool = False
    ) -> None:
        """`weight` is [outputs, inputs]; `shared`: it stays in use elsewhere, so do not copy it."""
        outputs, inputs = weight.shape
        width = panel_width(outputs) if weight.device.type == "cpu" else outputs
        panels = weight.view(outputs // width, width, inputs).transpose(1, 2)
        self._panels = panels if shared else panels.contiguous()
        self._bias = bias

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """[rows, inputs] to [rows, outputs]."""
        panels = self._panels
        if len(panels) == 1:
            out = torch.mm(rows, panels[0])
        else:
            blocks = torch.bmm(rows.expand(len(panels), *rows.shape), panels)
            out = blocks.transpose(0, 1).flatten(1)
        return out if self._bias is None else out.add_(self._bias)


def panel_width(outputs: int) -> int:
    """The widest panel that divides `outputs`; all of them if they divide badly."""
    width = next(width for width in range(min(PANEL, outputs), 0, -1) if outputs % width == 0)
    return width if width >= PANEL // 4 else outputs
