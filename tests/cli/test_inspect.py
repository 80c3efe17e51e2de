"""`fedwidth methods`, `plan`, `cost` and `coverage`: the papers' numbers as printed, JSON, and bad input."""

import json
import math
import os
import subprocess
import sys

import pytest

from fedwidth.analysis.coverage import measure_coverage
from fedwidth.cli.entry import run_command
from fedwidth.methods import method, methods
from fedwidth.models import build, example_inputs
from fedwidth.plan import trace


def output_of(capsys, *arguments):
    assert run_command(list(arguments)) == 0
    return capsys.readouterr().out


def refuse_constants(name):
    raise AssertionError(f"{name} is not JSON")


def json_of(capsys, *arguments):
    return json.loads(output_of(capsys, *arguments, "--json"), parse_constant=refuse_constants)


def test_cost_prints_table_7_of_fedrolex(capsys):
    printed = output_of(capsys, "cost", "preresnet18", "--rounding", "ceil")
    rows = {line.split("│")[0].strip(): [cell.strip() for cell in line.split("│")[1:]] for line in printed.splitlines()}
    assert list(rows)[2:-1] == ["1", "1/2", "1/4", "1/8", "1/16", "average"]
    assert rows["1"][:4] == ["11.172", "42.62", "555.42", "557.656"]
    assert rows["1/16"][:4] == ["0.04451", "0.17", "2.27", "2.41318"]
    assert rows["average"][:2] == ["2.9781", "11.36"]
    found = json_of(capsys, "cost", "preresnet18", "--rounding", "ceil")
    assert found.keys() == {"model", "rounding", "costs"}
    keys = [
        "capacity",
        "parameters",
        "bytes",
        "megabytes",
        "macs",
        "operations",
        "buffer_bytes",
        "activation_bytes",
        "share",
        "trained_bytes",
        "frozen_bytes",
        "bytes_down",
        "bytes_up",
    ]
    assert [list(record) for record in found["costs"]] == [keys] * 6
    first, *_, last, mean = found["costs"]
    assert (first["parameters"], last["parameters"]) == (11_172_170, 44_510)
    assert round(mean["parameters"] / 1e6, 3) == 2.978


@pytest.fixture(scope="module")
def preresnet18():
    return trace(build("preresnet18"), example_inputs("preresnet18"))


@pytest.mark.parametrize(("n", "share"), [(2, 99.8), (4, 53.5), (8, 26.6), (16, 13.2)])
def test_fedrolex_covers_the_convolutions_of_preresnet18_as_measured(preresnet18, n, share):
    # Windows repeat after 512 rounds, the largest width; both ways of rounding keep the same units.
    measured = measure_coverage(preresnet18, method("fedrolex"), [1 / n], 512)
    assert round(100 * measured.share("convolutions"), 1) == share
    assert measured.full_after is None
    assert measured.share("vectors") == 1.0


@pytest.mark.parametrize("n", [2, 4, 8])
def test_fedbrb_covers_preresnet18_in_n_squared_rounds(preresnet18, n):
    assert measure_coverage(preresnet18, method("fedbrb"), [1 / n], n * n).full_after == n * n


def test_coverage_gives_shares_per_tensor_and_the_theory(capsys):
    arguments = ["coverage", "mlp", "--method", "fedrolex", "--capacity", "1,1/4", "--rounds", "3"]
    found = json_of(capsys, *arguments)
    keys = [
        "method",
        "capacities",
        "rounds",
        "share",
        "share_by_kind",
        "evenness",
        "full_after",
        "share_by_round",
        "tensors",
        "theory",
    ]
    assert list(found) == keys
    assert found["capacities"] == [1.0, 0.25]
    assert found["full_after"] == 1
    assert len(found["share_by_round"]) == 3
    assert set(found["tensors"]) == {
        f"{layer}.{kind}" for layer in ("hidden.1", "hidden.3", "classifier") for kind in ("weight", "bias")
    }
    theory = found["theory"]
    assert theory["indices"] == theory["rolling_rounds"] == 128
    assert theory["random_rounds_exact"] == pytest.approx(128 * sum(1 / i for i in range(1, 129)))
    assert theory["random_rounds_integral"] == pytest.approx(theory["random_rounds_exact"])
    assert theory["random_rounds_order"] == pytest.approx(128 * math.log(128))
    printed = output_of(capsys, *arguments)
    assert "fedrolex at 1,1/4: every weight trained after 1 rounds" in printed
    assert "rolling 128 rounds; random 695.4 (Lemma 1), 695.4 (Lemma 2), order 621.1" in printed
    assert "heterofl at 1/4: not every weight trained within 3 rounds" in output_of(
        capsys, "coverage", "mlp", "--method", "heterofl", "--capacity", "1/4", "--rounds", "3"
    )


def test_methods_lists_paper_equation_and_options(capsys):
    printed = output_of(capsys, "methods")
    found = json_of(capsys, "methods")
    assert list(found) == sorted(methods())
    for name, record in found.items():
        assert list(record)[:4] == ["title", "paper", "equation", "options"]
        first, second = (line for line in printed.splitlines() if line.startswith(f"{name} "))
        assert record["sends"] in first
        assert record["paper"] in second
        assert record["equation"] in second
        assert all(option in second for option in record["options"])
        assert all(list(option) == ["default", "allowed", "help"] for option in record["options"].values())


def test_methods_are_listed_by_family_with_what_they_ask_of_clients_and_server(capsys):
    found = json_of(capsys, "methods")
    facts = {n: (r["family"], r["holds"], r["public_data"], r["secure_sums"]) for n, r in found.items()}
    assert facts["fedrolex"] == ("partial training", "a slice of the model", False, "yes")
    assert facts["feddropout"] == ("partial training", "a slice of the model", False, "no")
    assert facts["fedbrb"] == ("partial training", "a slice of the model", False, "by size")
    assert facts["fedavg"] == ("local training", "the whole model", False, "yes")
    assert facts["fedhm"] == ("low rank", "layers as factors", False, "no"), "products are averaged, not factors"
    assert facts["flanc"] == ("low rank", "layers as factors", False, "no"), "its clients hold no slices"
    assert facts["cocofl"] == ("frozen layers", "the whole model", False, "no")
    assert facts["feddf"] == ("distillation", "a model of its own", True, "no")
    assert facts["fedbe"] == ("distillation", "the whole model", True, "no")
    assert found["scaffold"]["sends"] == "what it holds, and more"
    assert found["scaffold"]["secure_sums"] == "no", "what it sends beside its sub-model would be open"
    assert found["fedtile"]["secure_sums"] == "by size", "its server makes more of sums than their average"
    assert found["fedgkt"]["sends"] == "features, logits and labels of all its samples"
    assert [n for n, r in found.items() if r["architectures"]] == ["dsfl", "feddf", "fedet", "fedgkt"]
    lines = [line.split()[0] for line in output_of(capsys, "methods").splitlines() if line.split()[:1]]
    assert lines.index("fedrolex") < lines.index("fedavg") < lines.index("flanc") < lines.index("feddf")


SMALL_TRANSFORMER = ["transformer", "--set", "layers=1", "--set", "embedding=64", "--set", "hidden=64"]


@pytest.mark.parametrize(
    "arguments",
    [["plan"], ["cost", "--capacities", "1/16"], ["fit", "--upload", "300kB"], ["coverage", "--capacity", "1/16"]],
)
def test_commands_about_a_model_take_a_head_policy(arguments, capsys):
    command, *others = arguments
    asked = [command, *SMALL_TRANSFORMER, *others]
    within, whole = (output_of(capsys, *asked, "--heads", heads) for heads in ("within", "whole"))
    assert within != whole
    assert within == output_of(capsys, *asked)
    assert run_command([*asked, "--heads", "some"]) == 2
    assert capsys.readouterr().err == "error: heads must be 'within' or 'whole', not 'some'\n"


def test_plan_says_what_a_device_really_has(capsys):
    printed = output_of(capsys, "plan", "cnn")
    assert "what a device really has" in printed
    (line,) = (line.split() for line in printed.splitlines() if line.split()[:1] == ["1/2"])
    half, full = (json_of(capsys, "cost", "cnn", "--capacities", c)["costs"][0] for c in ("1/2", "1"))
    assert line[1] == f"{half['parameters'] / full['parameters']:.1%}"
    assert line[2] == f"{half['macs'] / full['macs']:.1%}"


def test_groups_that_are_kept_stay_whole(capsys):
    free, kept = (output_of(capsys, "plan", "mlp", *keep) for keep in ([], ["--keep", "hidden.1"]))
    assert "kept whole as asked" in kept
    assert "kept whole as asked" not in free
    small, large = (
        json_of(capsys, "cost", "mlp", "--capacities", "1/2", *keep)["costs"][0]["parameters"]
        for keep in ([], ["--keep", "hidden.1"])
    )
    assert small < large


def test_a_model_that_reads_words_is_planned_from_their_number(capsys):
    printed = output_of(capsys, "plan", "zoo.own:words", "--tokens", "9")
    assert "embedding.weight" in printed
    found = json_of(capsys, "cost", "zoo.own:words", "--tokens", "9", "--capacities", "1,1/2")
    assert found["costs"][0]["macs"] > found["costs"][1]["macs"]


@pytest.mark.parametrize("command", ["plan", "cost", "coverage", "fit --upload 1MB", "plan --rank 2"])
def test_where_a_model_cannot_read_one_tensor_the_line_says_where_it_can_be_asked(command, capsys):
    name, *others = command.split()
    assert run_command([name, "zoo.own:TwoInputs", "--shape", "4", *others]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert "missing 1 required positional argument: 'other'; commands give a model one tensor" in said
    assert said.endswith("use fedwidth.trace and fedwidth.fit in Python, or devices.budgets in a recipe")


@pytest.mark.parametrize("command", ["plan", "cost", "coverage", "fit --upload 1MB"])
def test_what_a_factory_asks_for_is_named_with_how_to_give_it(command, capsys):
    name, *others = command.split()
    asked = [name, "zoo.own:with_classes", "--shape", "4", *others]
    assert run_command(asked) == 2
    assert capsys.readouterr().err == "error: model 'zoo.own:with_classes' asks for classes: give --set classes=…\n"
    assert run_command([*asked, "--set", "classes=3"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("plan mlp --keep hidden.9", "keep names 'hidden.9', but there is no such width group; there are: hidden.1"),
        ("plan mlp --keep *", "nothing to slice"),
        (
            "plan zoo.own:words",
            "what model 'zoo.own:words' reads is not known: give --shape, e.g. 3x32x32, or --tokens",
        ),
        ("plan zoo.own:words --tokens -1", "--tokens is the length of one input, instead of --shape"),
        ("plan mlp --tokens 9 --shape 1x8x8", "--tokens is the length of one input, instead of --shape"),
        ("cost mlp --capacities 0", "a capacity must be above 0 and at most 1, not '0'"),
        ("cost mlp --capacities 2", "a capacity must be above 0 and at most 1, not '2'"),
        ("cost mlp --capacities 1,,1/2", "a capacity is a number such as 0.25 or 1/4, not ''"),
        ("cost mlp --capacities 1/0", "a capacity is a number such as 0.25 or 1/4, not '1/0'"),
        ("cost mlp --capacities 1e-999999999", "a capacity is a number"),
        ("cost mlp --capacities nan", "a capacity is a number"),
        ("cost mlp --rounding up", "rounding must be 'floor' or 'ceil', not 'up'"),
        ("coverage mlp --method fedavg --rounding up", "rounding must be 'floor' or 'ceil', not 'up'"),
        ("coverage mlp --method flora", "FLoRA hands out ranks of adapters: coverage is of methods that slice a model"),
        ("coverage mlp --rounds 0", "rounds must be a whole number from 1 on, not 0"),
        ("coverage mlp --seed -1", "seed must be a whole number from 0 on, not -1"),
        ("coverage mlp --option step=0", "fedrolex option step must be"),
        ("coverage mlp --option speed=1", "unknown option of fedrolex 'speed'"),
        ("coverage mlp --method rolex", "unknown method 'rolex'"),
        ("coverage mlp --method fedimportance", "looks at the trained weights, so its choices cannot be foreseen"),
        ("plan mlp --heads some", "heads must be 'within' or 'whole', not 'some'"),
        ("plan mlp --shape 0x3", "--shape must be whole numbers such as 3x32x32, not '0x3'"),
        (
            "cost cnn --shape 1x999999x999999",
            "--shape is 1x999999x999999, 999,998,000,001 numbers: an input may",
        ),
        ("coverage cnn --shape 1x99999x99999", "an input may have up to 268,435,456"),
        (
            "plan transformer --tokens 99999999999999999999",
            "--tokens is 99,999,999,999,999,999,999: an input may",
        ),
        ("partition digits --kind dirichlet --set alpha=1e308", "alpha must be a positive number of at most 1e+100"),
        ("plan nothing", "unknown model 'nothing'"),
        ("methods more", "unexpected extra argument"),
    ],
)
def test_bad_input_is_one_line(arguments, message, capsys):
    assert run_command(arguments.split()) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert len(captured.err.splitlines()) == 1


def test_importing_fedwidth_loads_torch_and_nothing_heavy_beside_it():
    heavy = (
        "matplotlib",
        "sklearn",
        "scipy",
        "pandas",
        "rich",
        "typer",
        "click",
        "safetensors",
        "transformers",
        "h5py",
    )
    program = f"import sys, fedwidth; print(*(name for name in {heavy} if name in sys.modules))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True)
    assert found.stdout.strip() == ""
