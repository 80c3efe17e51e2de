"""Fed-ET: consensus and loss by hand, the common layer and its projection, and the laws of means."""

import pytest
import torch
from torch import nn

from fedwidth.engines import make_engine
from fedwidth.errors import OptionError
from fedwidth.experiment import Experiment
from fedwidth.methods import under
from fedwidth.methods.fedet import Consensus, consensus, loss, mean_of, weighed
from fedwidth.training.round import run_round
from small_runs import contents, same, small

SAID = torch.tensor([[[6.0, 0.0, 3.0]], [[0.0, 3.0, 0.0]], [[1.0, 1.0, 4.0]]])


def run_of(*changes, options="{steps=3, batch_size=16}"):
    return Experiment(small("method.name=fedet", f"method.options={options}", *changes))


def test_clients_are_weighed_by_the_variance_of_their_logits():
    """Variances 6, 2, 2: weights 0.6, 0.2, 0.2; consensus (3.8, 0.8, 2.6), where the plain mean has a tie."""
    variances = SAID.var(-1, correction=0)
    assert variances[:, 0].tolist() == [6, 2, 2]
    assert weighed(SAID, variances)[0].tolist() == pytest.approx([3.8, 0.8, 2.6])
    plain = SAID.mean(0)[0]
    assert plain[0] == plain[2]


def test_those_who_disagree_are_heard_and_the_loss_follows():
    """y* = 0; the others say (0.5, 2, 2); server logits 0: CE 1.098612, KL 0.149145, loss 1.106070."""
    said = consensus(SAID)
    assert said.label.tolist() == [0]
    assert said.heard.tolist() == [True]
    assert said.dissent[0].tolist() == pytest.approx([0.100368, 0.449816, 0.449816], abs=1e-6)
    server = torch.zeros(1, 3)
    assert loss(server, said, 0.0).item() == pytest.approx(1.098612, abs=1e-6)
    assert (loss(server, said, 1.0) - loss(server, said, 0.0)).item() == pytest.approx(0.149145, abs=1e-6)
    assert loss(server, said, 0.05).item() == pytest.approx(1.106070, abs=1e-6)


def test_where_all_agree_there_is_no_second_term():
    said = consensus(SAID[:1].repeat(3, 1, 1))
    assert said.heard.tolist() == [False]
    assert loss(torch.zeros(1, 3), said, 5.0).item() == pytest.approx(1.098612, abs=1e-6)


def test_clients_that_know_nothing_leave_finite_numbers():
    said = consensus(torch.zeros(2, 4, 3))
    assert bool(loss(torch.zeros(4, 3), said, 1.0).isfinite())


def test_a_consensus_is_packed_and_unpacked():
    said = consensus(torch.randn(5, 7, 4, generator=torch.Generator().manual_seed(0)))
    again = Consensus.unpacked(said.packed())
    assert torch.equal(said.label, again.label)
    assert torch.equal(said.heard, again.heard)
    assert torch.equal(said.dissent, again.dissent)


def test_equal_models_have_themselves_as_mean_bit_for_bit():
    one = {"a": torch.randn(5), "b": torch.tensor(3)}
    assert same(mean_of([one, one, one], ["a", "b"]), one)
    assert mean_of([{"a": torch.tensor([1.0])}, {"a": torch.tensor([4.0])}], ["a"])["a"].item() == 2.5


class TestTheCommonLayer:
    def test_a_narrow_model_ends_in_a_projection_and_the_wide_models_layer(self):
        run = run_of("devices.capacities=b1-c1")
        server = run.first_server()
        (task,) = run.rounds.assign(server, [(0, 0.25)])
        module, tensors = task.part.module(run.model, run.plan), task.part.cut({}, run.plan)
        assert tuple(tensors["classifier.projection.weight"].shape) == (8, 2)
        assert torch.equal(tensors["classifier.layer.weight"], run.first_state["classifier.weight"])
        module.load_state_dict(tensors)
        module.eval()
        inputs, head = run.data.example(), run.first_state
        features = module.hidden(inputs) @ tensors["classifier.projection.weight"].T
        features = features + tensors["classifier.projection.bias"]
        expected = features @ head["classifier.weight"].T + head["classifier.bias"]
        torch.testing.assert_close(module(inputs), expected)

    def test_all_models_end_alike_after_every_round(self):
        run = run_of("rounds=2", "devices.capacities=b1-c1")
        server = run.run().server
        for width in ("0.5", "0.25"):
            own = under(server.memory, f"width.{width}")
            assert torch.equal(own["classifier.layer.weight"], server.state["classifier.weight"])

    def test_without_steps_the_server_has_the_mean_of_all_clients_last_layers_and_nothing_else_of_theirs(self):
        run = run_of("rounds=1", options="{steps=0}")
        engine, server = make_engine(run.trainer), run.first_server()
        tasks = run.rounds.assign(server, [(0, 0.5), (1, 0.25), (2, 1.0)])
        sums, report = engine.run(server.state, run.rounds.send(server, tasks), 0)
        after = run.rounds.close(server, tasks, sums, report)
        names = ("classifier.layer.weight", "classifier.layer.weight", "classifier.weight")
        mean = torch.stack([one.mean[name] for one, name in zip(sums, names, strict=True)]).mean(0)
        torch.testing.assert_close(after.state["classifier.weight"], mean)
        assert torch.equal(after.state["hidden.1.weight"], server.state["hidden.1.weight"])
        own = under(after.memory, "width.0.5")
        torch.testing.assert_close(own["hidden.1.weight"], sums[0].mean["hidden.1.weight"])

    def test_a_model_without_such_a_layer_is_refused(self):
        class Convolutional(nn.Sequential):
            def forward(self, x):
                return super().forward(x).flatten(1)

        model = Convolutional(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 10, 6))
        with pytest.raises(OptionError, match="Fed-ET needs a model that ends in a linear layer of its own"):
            Experiment(small("method.name=fedet"), model=model)


def test_untrained_clients_change_nothing_where_nobody_is_taught():
    run = run_of("training.lr=0", options="{steps=0}")
    engine, server = make_engine(run.trainer), run.first_server()
    after, _, _ = run_round(run.rounds, server, [(0, 0.5), (1, 0.25), (2, 1.0), (3, 0.5)], engine)
    assert same(dict(after.state), dict(server.state))
    assert same(dict(after.memory), dict(server.memory))


def test_a_width_that_took_no_part_keeps_its_body():
    run = run_of("rounds=1")
    engine, server = make_engine(run.trainer), run.first_server()
    after, _, _ = run_round(run.rounds, server, [(0, 0.5)], engine)
    before, now = (under(each.memory, "width.0.25") for each in (server, after))
    assert torch.equal(before["hidden.1.weight"], now["hidden.1.weight"])
    assert not torch.equal(before["classifier.layer.weight"], now["classifier.layer.weight"])


def test_it_resumes_to_the_same_bits(tmp_path):
    class Enough(Exception):
        pass

    def leave(line):
        if line["round"] == 2:
            raise Enough

    changes = ("rounds=4", "checkpoint_every=1")
    run_of(*changes).run(tmp_path / "whole")
    with pytest.raises(Enough):
        run_of(*changes).run(tmp_path / "parts", on_round=leave)
    run_of(*changes).run(tmp_path / "parts", resume=True)
    assert contents(tmp_path / "whole") == contents(tmp_path / "parts")
