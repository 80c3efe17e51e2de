"""Every model of the zoo as a program: the same predictions in a fresh runtime, or one line that says why not.

`make test-export` runs this in an environment that has ONNX Runtime and ExecuTorch; without them, those parts are
skipped. What cannot be exported is named here with the reason, so that a model that can be one day fails the test.
"""

import numpy as np
import pytest
import torch
from export_runs import finished
from zoo_models import SAMPLES, answer_of, taken_of

from fedwidth.data import load
from fedwidth.data.trees import leaves
from fedwidth.errors import PlanError
from fedwidth.export.formats import as_executorch, as_onnx, as_torch
from fedwidth.export.load import take
from fedwidth.export.training_program import training_program
from zoo.cases import ZOO

CANNOT: dict[str, dict[str, str]] = {form: {"expert-loop": "cannot make a program"} for form in ("torch", "onnx")}
"""By format: models that cannot be exported, and a part of the line that says so."""
SMALL = ("mlp", "resnet-bn", "vit", "tied-lm")
MAX_DIFFERENT = 0.001


def share_of_differences(one, other):
    """The share of samples (or positions) whose largest logit is another."""
    return float((one.flatten(0, -2).argmax(-1) != other.flatten(0, -2).argmax(-1)).double().mean())


def cases(form):
    return [
        pytest.param(form, name, marks=() if form == "torch" and name in SMALL else pytest.mark.slow) for name in ZOO
    ]


def batches(inputs, batch):
    """The inputs in batches that the program takes."""
    size = batch or SAMPLES
    for start in range(0, SAMPLES, size):
        yield [leaf[start : start + size] if leaf.dim() else leaf for leaf in leaves(inputs)]


@pytest.mark.parametrize(("form", "name"), [*cases("torch"), *cases("onnx")])
def test_predictions_are_the_same_in_another_runtime(form, name, tmp_path):
    if form == "onnx":
        pytest.importorskip("onnxscript", reason="fedwidth[onnx] is not installed")
        runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    taken, inputs = taken_of(name, tmp_path)
    own = answer_of(taken.model, inputs)
    if name in CANNOT[form]:
        with pytest.raises(PlanError, match=CANNOT[form][name]):
            (as_torch if form == "torch" else as_onnx)(taken, None)
        return
    made = (as_torch if form == "torch" else as_onnx)(taken, None)
    batch = None if "any number" in made.notes[0] else 1
    path = tmp_path / "model"
    path.write_bytes(made.content)
    answers = []
    if form == "torch":
        program = torch.export.load(path).module()
        with torch.no_grad():
            names = list(inputs) if isinstance(inputs, dict) else []
            for each in batches(inputs, batch):
                answers.append(program(**dict(zip(names, each, strict=True))) if names else program(*each))
    else:
        options = runtime.SessionOptions()
        options.intra_op_num_threads = 1
        session = runtime.InferenceSession(made.content, options, providers=["CPUExecutionProvider"])
        names = [each.name for each in session.get_inputs()]
        for each in batches(inputs, batch):
            given = dict(zip(names, (np.ascontiguousarray(tensor.numpy()) for tensor in each), strict=True))
            answers.append(torch.from_numpy(session.run(None, given)[0]))
    answer = torch.cat(answers)
    assert answer.shape == own.shape
    assert torch.allclose(answer, own, rtol=1e-3, atol=1e-3)
    assert share_of_differences(answer, own) <= (0 if form == "torch" else MAX_DIFFERENT)


EXPERIMENTAL = pytest.mark.filterwarnings("ignore:This API is experimental")
"""ExecuTorch's runtime for Python says so when it is imported, and at every call."""


@pytest.mark.slow
@EXPERIMENTAL
@pytest.mark.parametrize("name", SMALL)
def test_executorch_answers_as_the_model_does(name, tmp_path):
    pytest.importorskip("executorch.exir", reason="executorch is not installed")
    from executorch.runtime import Runtime

    taken, inputs = taken_of(name, tmp_path)
    made = as_executorch(taken, None)
    method = Runtime.get().load_program(made.content).load_method("forward")
    answers = [method.execute(each)[0].clone() for each in batches(inputs, 1)]
    assert torch.allclose(torch.cat(answers), answer_of(taken.model, inputs), rtol=1e-3, atol=1e-3)


@pytest.mark.slow
@EXPERIMENTAL
@pytest.mark.parametrize("form", ["onnx", "executorch"])
def test_models_that_answer_together_are_one_program(form):
    pytest.importorskip("onnxscript" if form == "onnx" else "executorch.exir", reason=f"{form} is not installed")
    taken = take(finished("method.name=heterofl"), [1, "1/2", "1/4"])
    inputs = load("digits").example(SAMPLES)
    if form == "onnx":
        runtime = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
        session = runtime.InferenceSession(as_onnx(taken, None).content, providers=["CPUExecutionProvider"])
        answer = torch.from_numpy(session.run(None, {session.get_inputs()[0].name: inputs.numpy()})[0])
    else:
        from executorch.runtime import Runtime

        made = as_executorch(taken, None)  # the runtime reads its bytes as long as it runs
        method = Runtime.get().load_program(made.content).load_method("forward")
        answer = torch.cat([method.execute(each)[0].clone() for each in batches(inputs, 1)])
    assert torch.allclose(answer, answer_of(taken.model, inputs), rtol=1e-3, atol=1e-3)


@pytest.mark.slow
@EXPERIMENTAL
def test_one_training_step_in_executorch_is_pytorchs(tmp_path):
    """SGD with rate 0.1, by the runtime's own optimiser; max pooling, whose gradient it has wrong, is refused."""
    training = pytest.importorskip("executorch.extension.training", reason="executorch is not installed")
    taken = take(finished("model.name=mlp", "model.options={hidden=[16]}"), "1/4")
    content = training_program(taken, 4)
    inputs, targets = torch.randn(4, 1, 8, 8), torch.tensor([3, 1, 4, 1])
    runtime = training._load_for_executorch_for_training_from_buffer(content)
    loss = runtime.forward_backward("forward", (inputs, targets))[0]
    parameters = runtime.named_parameters()
    training.get_sgd_optimizer(parameters, 0.1, 0, 0, 0, False).step(runtime.named_gradients())
    taken.model.train()
    own = torch.nn.functional.cross_entropy(taken.model(inputs), targets)
    own.backward()
    assert float(loss) == pytest.approx(float(own.detach()), abs=1e-6)
    after = runtime.named_parameters()
    for name, parameter in taken.model.named_parameters():
        assert torch.allclose(after[f"model.{name}"], parameter - 0.1 * parameter.grad, atol=1e-6)
    with pytest.raises(PlanError, match="max pooling"):
        training_program(take(finished(), "1/4"), 4)
