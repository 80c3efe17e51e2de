"""Evaluation on models whose answers are known: accuracy and loss can be counted by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedwidth.core.narrow import narrow
from fedwidth.core.submodel import extract
from fedwidth.data import IGNORE, Partition, Shares, from_tensors
from fedwidth.data.records import Split
from fedwidth.data.sets.vocabulary import EOS, OOV, PAD
from fedwidth.errors import OptionError
from fedwidth.evaluation import scores
from fedwidth.evaluation.scores import absent_by_client, local_scores, prepare, score, score_together
from fedwidth.experiment import Experiment
from fedwidth.models import StaticBatchNorm2d
from fedwidth.objectives import CLASSIFICATION
from fedwidth.objectives.metric import MeanOf, Measure, Metric
from fedwidth.settings import EvaluationSettings
from small_runs import same, small

CPU = torch.device("cpu")
E = math.e
LOGITS = torch.tensor([[2.0, 0.0, 1.0], [1.0, 3.0, 2.0], [0.0, -1.0, -2.0], [0.0, 1.0, 0.0]])
TARGETS = torch.tensor([0, 2, 1, 1])
"""With the identity as model the inputs are the logits: answers 0, 1, 0, 1, so two of four are right."""


def data_of(logits=LOGITS, targets=TARGETS):
    return from_tensors(logits, targets, logits, targets, classes=3)


def partition_of(data, owners, *, clients, train=None, tested_on="test"):
    test = Shares.of(np.array(owners), clients)
    return Partition("by hand", Shares.of(np.array(train or owners), clients), test, data.train.targets, tested_on)


class TestScore:
    def test_by_hand(self):
        # Losses: log(e² + 1 + e) - 2, log(e + e³ + e²) - 2, log(1 + 1/e + 1/e²) + 1, log(2 + e) - 1.
        losses = [
            math.log(E**2 + 1 + E) - 2,
            math.log(E + E**3 + E**2) - 2,
            math.log(1 + 1 / E + 1 / E**2) + 1,
            math.log(2 + E) - 1,
        ]
        for batch_size in (1, 3, 4, 100):
            found, kept = score(
                nn.Identity(), data_of(), data_of().test, EvaluationSettings(batch_size=batch_size), CPU
            )
            assert (found.value, found.counted) == (0.5, 4)
            assert found.loss == pytest.approx(sum(losses) / 4, rel=1e-6)
            assert torch.equal(kept, LOGITS)

    def test_text_counts_oov_and_eos_but_not_padding(self):
        # The model answers 4 after 3, OOV after 4, EOS after 5. Targets: 4 (right), OOV (right), EOS (right), and after
        # the end nothing; second sequence: 5 where it says 4 (wrong), EOS after 5 (right), nothing.
        answers = {3: 4, 4: OOV, 5: EOS, PAD: PAD, EOS: PAD}
        model = nn.Embedding(6, 6)
        with torch.no_grad():
            model.weight.zero_()
            for word, answer in answers.items():
                model.weight[word, answer] = 1.0
        words = torch.tensor([[3, 4, 5, EOS], [3, 5, PAD, PAD]])
        targets = torch.tensor([[4, OOV, EOS, IGNORE], [5, EOS, IGNORE, IGNORE]])
        data = from_tensors(words, targets, words, targets, classes=6, kind="tokens")
        found, kept = score(model, data, data.test, EvaluationSettings(), CPU)
        assert found.counted == 5
        assert found.value == 4 / 5
        # Right answers cost log(5 + e) - 1, the wrong one log(5 + e).
        assert found.loss == pytest.approx(math.log(5 + E) - 4 / 5, rel=1e-6)
        partition = partition_of(data, [0, 1], clients=2)
        local = local_scores(kept, partition, data, "zero")
        assert local.values.tolist() == [1.0, 0.5]
        assert local.counted.tolist() == [3, 2]
        assert local.mean == pytest.approx(4 / 5)

    def test_large_vocabularies_are_scored_in_smaller_batches(self, monkeypatch):
        sizes = []
        model = nn.Embedding(6, 6)
        model.register_forward_hook(lambda module, inputs, output: sizes.append(len(output)))
        words = torch.zeros(7, 4, dtype=torch.long)
        data = from_tensors(words, words, words, words, classes=6, kind="tokens")
        whole = score(model, data, data.test, EvaluationSettings(), CPU)[0]
        monkeypatch.setattr(scores, "MAX_LOGITS", 50)  # two sequences of 4 words out of 6
        parts = score(model, data, data.test, EvaluationSettings(), CPU)[0]
        assert sizes == [7, 2, 2, 3]
        assert (parts.value, parts.counted) == (whole.value, whole.counted)
        assert parts.loss == pytest.approx(whole.loss)

    def test_nothing_to_count_is_refused(self):
        words, targets = torch.tensor([[1, 2]]), torch.tensor([[IGNORE, IGNORE]])
        data = from_tensors(words, targets, words, targets, classes=6, kind="tokens")
        with pytest.raises(ValueError, match="no target"):
            score(nn.Embedding(6, 6), data, data.test, EvaluationSettings(), CPU)


class TestLocal:
    def local(self, mask, **changes):
        # Client 0 has the labels of samples 0 and 1 (0 and 2), client 1 those of samples 2 and 3 (1 alone), 2 nothing.
        data = data_of()
        return local_scores(LOGITS, partition_of(data, [0, 0, 1, 1], clients=2, **changes), data, mask)

    @pytest.mark.parametrize(
        ("mask", "expected"),
        [
            # answers 0, 1 and 0, 1 against 0, 2 and 1, 1
            ("none", [0.5, 0.5]),
            # client 0 without class 1: answers 0, 2; client 1 answers 1 always
            ("inf", [1.0, 1.0]),
            # absent logits are 0: client 0 has (2, 0, 1) and (1, 0, 2); client 1 (0, -1, 0) -> 0 and (0, 1, 0) -> 1
            ("zero", [1.0, 0.5]),
        ],
    )
    def test_masked_by_hand(self, mask, expected):
        assert self.local(mask).values.tolist() == expected

    def test_samples_that_do_not_count_name_no_class(self):
        targets = torch.tensor([0, IGNORE, 1, IGNORE])
        absent = absent_by_client(partition_of(data_of(targets=targets), [0, 1, 1, 2], clients=3), 3, "zero")
        assert (~absent).tolist() == [[True, False, False], [False, True, False], [False, False, False]]

    def test_mean_weighs_clients_by_their_test_samples(self):
        data = data_of()
        partition = partition_of(data, [0, 1, 1, 1], clients=3, train=[0, 1, 2, 2])
        local = local_scores(LOGITS, partition, data, "none")
        # client 0: 1 of 1; client 1: 1 of 3; client 2 has no test data
        assert local.counted.tolist() == [1, 3, 0]
        assert local.values[:2].tolist() == [1.0, pytest.approx(1 / 3)]
        assert math.isnan(local.values[2])
        assert local.mean == pytest.approx(2 / 4)
        assert local.quantiles == pytest.approx([1 / 3, 1 / 2, 2 / 3, 5 / 6, 1])

    def test_without_any_test_data_there_is_no_mean(self):
        data = data_of()
        partition = partition_of(data, [-1] * 4, clients=2, train=[0, 0, 1, 1])
        local = local_scores(LOGITS, partition, data, "none")
        assert local.mean is None
        assert local.quantiles is None

    def test_held_out_training_samples(self):
        # The thesis' split: samples 1 and 3 are held out of training; labels are those of samples 0 and 2 (0 and 1).
        data = data_of()
        partition = partition_of(data, [-1, 0, -1, 1], clients=2, train=[0, -1, 1, -1], tested_on="train")
        assert partition.labels[0].tolist() == [0]
        local = local_scores(LOGITS, partition, data, "inf")
        assert local.values.tolist() == [0.0, 1.0]

    def test_held_out_samples_in_a_run(self):
        settings = small("data.partition=random_labels", "data.partition_options={per_client=2}")
        experiment = Experiment(settings)
        result = experiment.run()
        model, data, partition = result.model, experiment.data, experiment.partition
        hits = counted = 0
        for client in range(6):
            inputs, targets = data.batch(data.train, partition.test[client])
            logits = model(inputs)
            for label in set(range(10)) - set(partition.labels[client].tolist()):
                logits[:, label] = 0
            hits += int((logits.argmax(1) == targets).sum())
            counted += len(targets)
        assert 0 < counted < len(data.train) * 0.3
        assert result.summary["local_accuracy"] == pytest.approx(hits / counted)


class TestBatchNorm:
    # Training values 0 and 2: mean 1, variance 2 (the running variance is the unbiased one). Test values 3 and 5.
    train, test = torch.tensor([0.0, 2.0]).view(2, 1, 1, 1), torch.tensor([3.0, 5.0]).view(2, 1, 1, 1)

    def logits(self, norm, kind, batch_size):
        data = from_tensors(self.train, torch.zeros(2).long(), self.test, torch.zeros(2).long(), classes=1)
        model = nn.Sequential(norm(1), nn.Flatten())
        settings = EvaluationSettings(norm=kind, batch_size=batch_size)
        state = {name: t.clone() for name, t in model.state_dict().items()}
        prepare(model, state, data, settings, CPU)
        _, kept = score(model, data, data.test, settings, CPU)
        return kept.flatten().tolist()

    @pytest.mark.parametrize("norm", [StaticBatchNorm2d, nn.BatchNorm2d])
    def test_static_statistics_come_from_training_data(self, norm):
        assert self.logits(norm, "static", 2) == pytest.approx([2 / math.sqrt(2), 4 / math.sqrt(2)], rel=1e-4)

    @pytest.mark.parametrize("norm", [StaticBatchNorm2d, nn.BatchNorm2d])
    def test_batch_statistics_come_from_the_test_batch(self, norm):
        # mean 4, (biased) variance 1
        assert self.logits(norm, "batch", 2) == pytest.approx([-1, 1], rel=1e-4)

    def test_static_does_not_depend_on_the_test_batches(self):
        runs = {
            size: Experiment(small("model.name=cnn", "model.options={widths=[4]}", f"evaluation.batch_size={size}"))
            for size in (7, 500)
        }
        found = {}
        for size, experiment in runs.items():
            settings = EvaluationSettings(batch_size=500)
            model = prepare(experiment.model, experiment.first_state, experiment.data, settings, CPU)
            _, found[size] = score(
                model, experiment.data, experiment.data.test, EvaluationSettings(batch_size=size), CPU
            )
        torch.testing.assert_close(found[7], found[500])

    def test_statistics_from_the_first_samples_only(self):
        data = from_tensors(
            torch.tensor([0.0, 2.0, 100.0]).view(3, 1, 1, 1), torch.zeros(3).long(), self.test, torch.zeros(2).long()
        )
        model = nn.Sequential(StaticBatchNorm2d(1), nn.Flatten())
        prepare(model, model.state_dict(), data, EvaluationSettings(statistics_samples=2), CPU)
        assert model[0].running_mean.item() == 1

    def test_a_last_batch_of_one_sample_goes_with_the_one_before(self):
        # Batch norm over (N, C) has no statistics of one sample: 3 samples in batches of 2 would fail.
        inputs, targets = torch.arange(6.0).view(3, 2), torch.zeros(3).long()
        data = from_tensors(inputs, targets, inputs, targets)
        model = nn.Sequential(nn.BatchNorm1d(2))
        for kind in ("static", "batch"):
            settings = EvaluationSettings(norm=kind, batch_size=2)
            prepare(model, model.state_dict(), data, settings, CPU)
            _, kept = score(model, data, data.test, settings, CPU)
            assert len(kept) == 3


def _errors(output, targets):
    return (output.argmax(-1) != targets).double()


class TestCapacities:
    @pytest.mark.parametrize("name", ["fedrolex", "heterofl", "fedbrb", "feddropout"])
    def test_full_width_is_the_global_model(self, name):
        settings = small(f"method.name={name}", "evaluation.capacities=[1, 0.5, 0.125]", "evaluation.every=3")
        line = Experiment(settings).run().metrics[-1]
        assert list(line["capacity_accuracy"]) == ["1", "0.5", "0.125"]
        assert line["capacity_accuracy"]["1"] == line["global_accuracy"]

    @pytest.mark.parametrize("name", ["fedavg", "fedprox", "scaffold"])
    def test_where_every_client_holds_the_whole_model_there_is_no_narrower_one(self, name):
        changes = [f"method.name={name}", "data.validation=0.2", "rounds=1"]
        result = Experiment(small(*changes, "evaluation.capacities=[1, 0.5]")).run()
        for line in (result.metrics[-1], result.summary):
            assert line["capacity_accuracy"] == {"1": line["global_accuracy"]}
            assert line["capacity_validation_accuracy"] == {"1": line["validation_accuracy"]}
        alone = Experiment(small(*changes, "evaluation.capacities=[0.5]")).run()
        assert "capacity_accuracy" not in alone.metrics[-1]
        assert alone.summary["capacity_accuracy"] is None

    def test_validation_samples_see_them_too_where_there_are_some(self):
        changes = [
            "method.name=heterofl",
            "evaluation.capacities=[1, 0.5]",
            "evaluation.every=3",
            "data.validation=0.2",
        ]
        line = Experiment(small(*changes)).run().metrics[-1]
        assert list(line["capacity_validation_accuracy"]) == ["1", "0.5"]
        assert line["capacity_validation_accuracy"]["1"] == line["validation_accuracy"]
        assert line["capacity_accuracy"]["1"] == line["global_accuracy"]
        unseen = Experiment(small(*changes, "evaluation.test=false")).run().metrics[-1]
        assert unseen["capacity_accuracy"] == line["capacity_validation_accuracy"]
        assert "capacity_validation_accuracy" not in unseen

    def test_together_by_hand(self):
        changes = ["method.name=heterofl", "evaluation.capacities=[1, 0.5]", "data.validation=0.2"]
        run = Experiment(small(*changes, "rounds=4"))
        result = run.run()
        inputs, targets = run.data.batch(run.data.test, torch.arange(len(run.data.test)))
        held, wanted = run.data.batch(run.data.train, run.partition.validation)
        right = {"together_accuracy": [], "together_validation_accuracy": []}
        models = []
        for capacity in (1, 0.5):
            index = run.method.select(run.plan, capacity=capacity)
            models.append(narrow(run.model, run.plan, index).eval())
            models[-1].load_state_dict(extract(result.server.state, run.plan, index))
        for name, (asked, labels) in zip(right, ((inputs, targets), (held, wanted)), strict=True):
            mean = sum(model(asked).softmax(-1) for model in models) / 2
            right[name] = float((mean.argmax(-1) == labels).double().mean())
        assert {name: result.metrics[-1][name] for name in right} == pytest.approx(right)

    @pytest.mark.parametrize("lower_is_better", [False, True])
    def test_those_are_chosen_that_do_best_on_validation_samples(self, lower_is_better):
        widths = (1, 0.5, 0.25)
        changes = ["method.name=heterofl", f"evaluation.capacities={list(widths)}", "data.validation=0.2", "rounds=12"]
        error = Metric(Measure("error", "error", higher_is_better=False), MeanOf(_errors))
        objective = replace(CLASSIFICATION, metric=error) if lower_is_better else CLASSIFICATION
        run = Experiment(small(*changes, "seed=3", "training.lr=0.05"), objective=objective)
        result = run.run()
        line, name = result.metrics[-1], objective.metric.name
        models = {}
        for capacity in widths:
            index = run.method.select(run.plan, capacity=capacity)
            models[capacity] = narrow(run.model, run.plan, index).eval()
            models[capacity].load_state_dict(extract(result.server.state, run.plan, index))

        def accuracy(split, samples, chosen):
            asked, labels = run.data.batch(split, samples)
            mean = sum(models[capacity](asked).softmax(-1) for capacity in chosen)
            return float((mean.argmax(-1) == labels).double().mean())

        def reached(chosen):
            return accuracy(run.data.train, run.partition.validation, chosen)

        first = max(widths, key=lambda capacity: reached([capacity]))
        second = max(set(widths) - {first}, key=lambda capacity: reached([first, capacity]))
        assert reached([first, second]) > reached([first]), "a run in which one width alone is best tests nothing"
        expected = {first, second}
        if reached(widths) > reached([first, second]):
            expected = set(widths)
        assert set(line["chosen_capacities"]) == expected
        tested = accuracy(run.data.test, torch.arange(len(run.data.test)), expected)
        assert line[f"chosen_{name}"] == pytest.approx(1 - tested if lower_is_better else tested)

    @pytest.mark.parametrize("change", ["method.name=fedavg", "evaluation.capacities=[0.5]", "method.name=dsfl"])
    def test_one_model_or_models_of_clients_do_not_answer_together(self, change):
        extra = ["method.options={samples=20}"] if "dsfl" in change else []
        run = Experiment(small("method.name=heterofl", "evaluation.capacities=[1, 0.5]", change, *extra))
        assert not [name for name in run.run().metrics[-1] if name.startswith(("together", "chosen"))]

    def test_they_may_be_measured_less_often_and_at_the_end_in_any_case(self):
        changes = ["method.name=heterofl", "evaluation.capacities=[0.5]", "evaluation.every=1", "rounds=5"]
        often = Experiment(small(*changes)).run()
        seldom = Experiment(small(*changes, "evaluation.capacities_every=2")).run()
        name = "capacity_accuracy"
        assert [name in line for line in often.metrics] == [True] * 5
        assert [name in line for line in seldom.metrics] == [False, True, False, True, True]
        assert seldom.summary[name] == often.summary[name]
        assert seldom.metrics[1][name] == often.metrics[1][name]

    def test_who_asks_gets_them_after_any_round(self):
        run = Experiment(small("method.name=heterofl", "evaluation.capacities=[0.5]", "evaluation.capacities_every=4"))
        assert "capacity_accuracy" in run.evaluate(run.first_server())

    def test_further_rounds_are_measured_as_they_always_would_be(self):
        often = Experiment(small("rounds=7", "evaluation.every=1")).run()
        seldom = Experiment(small("rounds=7", "evaluation.every=4", "evaluation.also=[5, 6, 20]")).run()
        name = "global_accuracy"
        assert [line["round"] for line in seldom.metrics if name in line] == [4, 5, 6, 7]
        assert all(line[name] == often.metrics[line["round"] - 1][name] for line in seldom.metrics if name in line)
        with pytest.raises(OptionError, match=r"evaluation.capacities must name each capacity once, not 0.5 twice"):
            small("evaluation.capacities=[1, 0.5, 0.5]")
        with pytest.raises(OptionError, match=r"evaluation.also must be rounds, counted from 1, not \[0\]"):
            small("evaluation.also=[0]")

    def test_how_often_must_be_a_multiple(self):
        with pytest.raises(OptionError, match=r"capacities_every must be a multiple of evaluation.every \(2\), or 0"):
            small("evaluation.every=2", "evaluation.capacities_every=3")

    def test_a_sub_model_by_hand(self):
        # HeteroFL at a half: the first four hidden units and their columns.
        settings = small("method.name=heterofl", "evaluation.capacities=[0.5]")
        experiment = Experiment(settings)
        result = experiment.run()
        state = result.server.state
        inputs, targets = experiment.data.batch(experiment.data.test, torch.arange(355))
        hidden = torch.relu(inputs.flatten(1) @ state["hidden.1.weight"][:4].T + state["hidden.1.bias"][:4])
        logits = hidden @ state["classifier.weight"][:, :4].T + state["classifier.bias"]
        expected = (logits.argmax(1) == targets).double().mean().item()
        assert result.summary["capacity_accuracy"]["0.5"] == pytest.approx(expected)


class TestTogether:
    def test_by_hand(self):
        split = Split(LOGITS, torch.tensor([0, 2, IGNORE, 1]))  # of which the first model has the second wrong
        sure = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 9.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
        metric = CLASSIFICATION.metric
        assert score_together([LOGITS], metric, split) == pytest.approx(2 / 3), "what is ignored does not count"
        assert score_together([LOGITS, sure], metric, split) == 1
        assert score_together([LOGITS[[1, 3]]], metric, split, torch.tensor([1, 3])) == 0.5


class TestValidation:
    def test_measured_by_hand_beside_the_test_set(self):
        experiment = Experiment(small("data.validation=0.1"))
        result = experiment.run()
        data, held = experiment.data, experiment.partition.validation
        assert len(held) == 144  # a tenth of 1,442
        inputs, targets = data.batch(data.train, held)
        logits = result.model(inputs)
        summary = result.summary
        assert summary["validation_accuracy"] == pytest.approx((logits.argmax(1) == targets).double().mean().item())
        assert summary["validation_loss"] == pytest.approx(nn.functional.cross_entropy(logits, targets).item())
        measured = {line["round"]: line["validation_accuracy"] for line in result.metrics if "global_accuracy" in line}
        assert list(measured) == [2, 3]
        assert summary["best_validation_accuracy"] == max(measured.values())
        assert measured[summary["best_validation_round"]] == max(measured.values())

    def test_the_test_set_is_never_touched_where_it_is_not_asked_for(self):
        settings = small("data.validation=0.1", "evaluation.test=false", "evaluation.capacities=[1, 0.5]")
        whole = Experiment(small("data.validation=0.1", "evaluation.capacities=[1, 0.5]"))
        nothing = replace(whole.data, test=Split(torch.full_like(whole.data.test.inputs, 255), whole.data.test.targets))
        one, other = (Experiment(settings, data=data).run() for data in (whole.data, nothing))
        assert one.metrics[-1]["validation_accuracy"] == other.metrics[-1]["validation_accuracy"]
        assert one.summary["capacity_accuracy"] == other.summary["capacity_accuracy"]
        assert one.summary["capacity_accuracy"]["1"] == one.summary["validation_accuracy"]
        assert not {"global_accuracy", "global_loss", "local_accuracy"} & set(one.metrics[-1])
        names = ("global_accuracy", "global_loss", "local_accuracy", "best_global_accuracy", "best_round")
        assert [one.summary[name] for name in names] == [None] * 5
        assert same(one.server.state, whole.run().server.state), "looking changes nothing"

    def test_clients_that_test_on_training_samples_still_do(self):
        changes = ("data.partition=random_labels", "data.partition_options={per_client=2}", "data.validation=0.1")
        one, other = (Experiment(small(*changes, *more)).run() for more in ((), ("evaluation.test=false",)))
        assert one.summary["local_accuracy"] == other.summary["local_accuracy"] is not None

    def test_statistics_of_batch_norms_are_of_samples_that_clients_may_train_on(self):
        settings = small("model.name=cnn", "model.options={widths=[4]}", "data.validation=0.3", "rounds=1")
        experiment = Experiment(settings)
        held, data = experiment.partition.validation, experiment.data
        inputs = data.train.inputs.clone()
        inputs[held] = 255  # as unlike the others as can be
        other = Experiment(settings, data=replace(data, train=Split(inputs, data.train.targets)))
        one, two = (each.run().model.state_dict() for each in (experiment, other))
        assert any("running_mean" in name for name in one)
        assert same(one, two)

    def test_without_it_nothing_is_said_of_it(self):
        result = Experiment(small()).run()
        assert not any("validation" in name for name in (*result.summary, *result.metrics[-1]))

    def test_a_partition_that_holds_nothing_out_is_refused(self):
        partition = Experiment(small()).partition
        with pytest.raises(OptionError, match="data.validation is 0.1, but the partition given holds nothing out"):
            Experiment(small("data.validation=0.1"), partition=partition)
        with pytest.raises(OptionError, match="nothing would be measured"):
            Experiment(replace(small(), evaluation=EvaluationSettings(test=False)), partition=partition)


class TestClasses:
    def test_by_hand(self):
        # Answers 0, 1, 0, 1 to 0, 2, 1, 1: class 0 right, of class 1 one of two, class 2 wrong, class 3 unseen.
        logits = torch.cat([LOGITS, torch.full((4, 1), -9.0)], dim=1)
        data = from_tensors(logits, TARGETS, logits, TARGETS, classes=4)
        found, _ = score(nn.Identity(), data, data.test, EvaluationSettings(batch_size=3), CPU, by_class=True)
        assert found.by_class == [1.0, 0.5, 0.0, None]
        few, _ = score(nn.Identity(), data, data.test, EvaluationSettings(), CPU, torch.tensor([0, 3]), by_class=True)
        assert few.by_class == [1.0, 1.0, None, None]

    def test_at_the_end_of_a_run_and_in_its_summary(self):
        experiment = Experiment(small())
        result = experiment.run()
        assert [("class_accuracy" in line) for line in result.metrics] == [False, False, True]
        found = result.summary["class_accuracy"]
        assert result.metrics[-1]["class_accuracy"] == found
        counts = torch.bincount(experiment.data.test.targets)
        mean = sum(share * int(count) for share, count in zip(found, counts, strict=True)) / len(experiment.data.test)
        assert result.summary["global_accuracy"] == pytest.approx(mean)

    def test_of_validation_samples_where_the_test_set_is_not_seen(self):
        experiment = Experiment(small("data.validation=0.2", "evaluation.test=false"))
        summary = experiment.run().summary
        counts = torch.bincount(experiment.data.train.targets[experiment.partition.validation])
        mean = sum(share * int(count) for share, count in zip(summary["class_accuracy"], counts, strict=True))
        assert summary["validation_accuracy"] == pytest.approx(mean / int(counts.sum()))

    def test_sequences_have_no_class(self):
        words = torch.zeros(7, 4, dtype=torch.long)
        data = from_tensors(words, words, words, words, classes=6, kind="tokens")
        assert score(nn.Embedding(6, 6), data, data.test, EvaluationSettings(), CPU, by_class=True)[0].by_class is None
