"""The printed plan."""

from __future__ import annotations

import torch
from torch import nn

import zoo
from fedwidth.plan.trace import trace


def test_a_plan_prints_as_a_table() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    assert str(trace(model, torch.zeros(1, 4))) == "\n".join(
        [
            "1 width group",
            "  group  units  tensor[dimension]",
            "  0          8  0.weight[0], 0.bias[0], 2.weight[1]",
            "",
            "what a device really has",
            "  capacity  parameters  multiply-adds  memory to train (batches of 32)",
            "       1/2       52.2%          50.0%                            61.7%",
            "       1/4       28.4%          25.0%                            42.6%",
            "       1/8       16.4%          12.5%                            33.0%",
            "      1/16       16.4%          12.5%                            33.0%",
            "far from what was asked: at 1/16 a device holds 16% of the parameters",
            "  0, 2 (12%): group '0' keeps 1 of 8 units",
            "  2 (4%): model output",
            "",
            "always whole",
            "  model input   1  0.weight[1]",
            "  model output  2  2.weight[0], 2.bias[0]",
            "",
            "attributes a narrow model changes",
            "  out_features  1  0",
            "  in_features   1  2",
        ]
    )


def test_it_shows_couplings_and_shortens_lists() -> None:
    case = zoo.ZOO["transformer-encoder"]
    text = str(trace(zoo.build(case.full), case.inputs()))
    assert "embedding  =  4 x encoder.layers.0.self_attn.in_proj_weight" in text
    assert "more" in text
    assert "vocabulary" in text
    assert max(map(len, text.splitlines())) < 200
