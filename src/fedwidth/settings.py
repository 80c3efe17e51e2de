"""Every setting of a run, with its type, default and meaning: the one place `run --explain` and the checks read.

A run is described by these frozen records and nothing else; two runs with equal settings and seed give equal bits.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

PRECISIONS = ("float32", "tf32", "bf16")


def key(
    default: Any,
    help: str,
    *,
    choices: tuple[str, ...] = (),
    least: float | None = None,
    below: float | None = None,
    share: bool = False,
) -> Any:
    """A documented setting: default, one line of help, and what is allowed.

    A share is above 0 and at most 1, and may be written as text: "1/16".
    """
    extra = {"help": help, "choices": choices, "least": least, "below": below, "share": share}
    if isinstance(default, (dict, list)):
        return field(default_factory=lambda: type(default)(default), metadata=extra)
    return field(default=default, metadata=extra)


@dataclass(frozen=True)
class MethodSettings:
    """Which units clients train (see `fedwidth methods`)."""

    name: str = key("fedrolex", "method, as listed by `fedwidth methods`, or package.module:METHOD")
    options: dict[str, Any] = key({}, "options of the method, e.g. {step = 1}")


@dataclass(frozen=True)
class LocalSettings:
    """How clients train what they hold, where another method than the one that chooses it says so."""

    name: str = key("", "method whose local rule trains the sub-models, e.g. fedprox; empty: the method's own")
    options: dict[str, Any] = key({}, "options of that rule, e.g. {mu = 0.01}")


@dataclass(frozen=True)
class ModelSettings:
    """The global model on the server."""

    name: str = key("cnn", "mlp, cnn, lenet, preresnet18, transformer, or package.module:factory")
    options: dict[str, Any] = key({}, "keyword arguments of the model's factory")
    width: float = key(1.0, 'share of the model\'s width the server holds, e.g. "1/16" for the smallest', share=True)
    weights: str = key(
        "", "weights to begin with: a file of safetensors, or the folder of an earlier run; empty: new ones"
    )
    fresh: str = key("", "tensors that begin anew all the same, with commas between: 'classifier.*'")
    heads: str = key("within", "slice inside attention heads, or whole heads", choices=("within", "whole"))
    keep: str = key("", "width groups that stay whole, with commas between: 'embedding, layers.*'")


@dataclass(frozen=True)
class ArchitectureSettings:
    """A network that clients of some capacities hold in place of a width of the run's model."""

    name: str = key("", "as model.name: mlp, cnn, lenet, preresnet18, transformer, or package.module:factory")
    options: dict[str, Any] = key({}, "keyword arguments of the network's factory")
    capacities: list[float] = key([], "the capacities whose clients hold it, each in one table alone", share=True)
    label: str = key("", "what it is called; empty: its name")


@dataclass(frozen=True)
class AdapterSettings:
    """Low-rank adapters: the model is frozen, and clients train as many ranks as they can afford."""

    rank: int = key(
        0, "rank of the adapters, of which a capacity is a share; 0: none, the model itself is trained", least=0
    )
    targets: str = key("", "layers that get one, with commas between: '*.query, *.value'; empty: all but the last")
    alpha: float = key(
        0.0, "what products are scaled by is alpha / rank, for every client; 0: alpha is the rank", least=0
    )
    train: str = key("", "parameters that are trained whole beside them, with commas between: 'classifier.*'")
    outside: str = key(
        "freeze",
        "ranks that a client does not train: folded into its frozen weights, or left out",
        choices=("freeze", "drop"),
    )
    widths: bool = key(False, "slice the frozen model's widths by capacity too")
    average: str = key(
        "units",
        "unit by unit (Eq. 10), or exactly: decomposed again, with the residual in frozen weights, or stacked there",
        choices=("units", "svd", "residual", "stack"),
    )


@dataclass(frozen=True)
class DataSettings:
    """The data and how clients share it."""

    name: str = key(
        "digits",
        "digits, mnist, cifar10, cifar100, text, stackoverflow, synthetic_text, or package.module:function",
    )
    root: str = key("", "folder of the data; empty: --data, then FEDWIDTH_DATA, then the cache")
    options: dict[str, Any] = key({}, "options of the loader, e.g. {words = 10000}")
    cache: int = key(
        0,
        "MiB of samples to hold of data sets of your own that are read as they are needed; 0: all, from the start",
        least=0,
    )
    clients: int = key(100, "number of clients", least=1)
    partition: str = key(
        "iid", "iid, labels, random_labels (the thesis), dirichlet, natural, or package.module:function"
    )
    partition_options: dict[str, Any] = key({}, "options of the partition, e.g. {per_client = 2}")
    validation: float = key(
        0.0, "share of the training data that no client trains on, to choose settings by; below 1", least=0
    )
    public: float = key(
        0.0, "share of the training data that the server holds instead of clients, without labels; below 1", least=0
    )
    public_name: str = key("", "another data set that the server holds, without labels, e.g. cifar100")


@dataclass(frozen=True)
class ObjectiveSettings:
    """What the model is trained for."""

    name: str = key(
        "auto",
        "classification, next-word, regression, multi-label, segmentation, or package.module:OBJECTIVE; auto: next-word"
        " for text, else classification",
    )
    loss: str = key(
        "", "package.module:function (output, targets) -> the mean loss of a batch; empty: the objective's own"
    )
    metric: str = key(
        "",
        "mse, rmse, mae or r2 (regression), f1 or label_accuracy (multi-label), mean_iou or pixel_accuracy"
        " (segmentation), or package.module:function (output, targets) -> one number for each sample; empty: the first",
    )
    better: str = key(
        "",
        "of a metric that is a function of yours: which values are better; empty: higher",
        choices=("", "higher", "lower"),
    )
    output: str = key(
        "", "what counts of a model's output: a name, a number, or all; empty: its logits, or the first of a tuple"
    )


@dataclass(frozen=True)
class DeviceSettings:
    """What clients can afford, and who takes part in a round."""

    capacities: str | list[float] = key(
        "a1-b1-c1-d1-e1",
        "letters a…e for 1, 1/2, 1/4, 1/8, 1/16 with sampling weights, or numbers such as '1:1 1/16:9'; or 'household';"
        " or each client's own in a list",
        share=True,
    )
    relative_to: str = key(
        "server",
        "what capacities are shares of: the server's model, or the model at full width, so that devices stay as they"
        " are whatever model.width is, as in a sweep over it",
        choices=("server", "model"),
    )
    budgets: dict[str, Any] = key(
        {},
        "what classes of devices can spend on a round, e.g. {phone = {memory = '512MB', upload = '5MB', weight = 3}};"
        " each gets the widest capacity that fits, and capacities are left out; empty: capacities say it",
    )
    profiles: dict[str, Any] = key(
        {},
        "shares of width groups by capacity, where they are not all of one width, e.g. {'1/4' = {'features.*' = 0.5}};"
        " a group that is not named has the capacity's own",
    )
    dynamic: bool = key(False, "draw every client's capacity anew each round instead of once")
    per_round: int = key(10, "clients that take part in a round; with poisson sampling: on average", least=1)
    sampling: str = key(
        "fixed",
        "how they are drawn: so many each time, or each client by itself with the same probability",
        choices=("fixed", "poisson"),
    )
    excluded: list[float] = key(
        [], "capacities whose clients are left out of every round they are drawn for", share=True
    )
    whole_only: bool = key(
        False, "leave out the clients that cannot hold the whole of the server's model, as if `excluded` named them"
    )
    correlate: str = key(
        "none",
        "what the weakest devices hold, where capacities are fixed: no matter what, some classes alone, fewest or most"
        " samples",
        choices=("none", "labels", "few-samples", "many-samples"),
    )
    correlate_strength: float = key(1.0, "how closely they do, from 0 (as drawn) to 1 (in order)", least=0)
    rates: dict[str, Any] = key(
        {}, "multiply-adds per second by capacity, e.g. {1 = 4e9, '1/4' = 1e9}, or {all = 1e9}; empty: not simulated"
    )
    bandwidth: dict[str, Any] = key({}, "bytes per second, down and up alike, by capacity; empty: not simulated")
    deadline: float = key(0.0, "seconds after which a client is left out of a round; 0: all are waited for", least=0)
    dropout: float = key(0.0, "probability that a client fails in a round; below 1", least=0)


@dataclass(frozen=True)
class TrainingSettings:
    """Local training on a client."""

    optimiser: str = key("sgd", "local optimiser", choices=("sgd", "adam", "adamw"))
    lr: float = key(0.1, "initial learning rate", least=0)
    momentum: float = key(0.9, "momentum of SGD", least=0)
    weight_decay: float = key(5e-4, "weight decay", least=0)
    batch_size: int = key(10, "samples a step", least=1)
    epochs: int = key(1, "passes over the client's data a round", least=1)
    steps: int = key(0, "local steps a round; 0: as many as the epochs give", least=0)
    schedule: str = key(
        "constant", "learning rate over rounds", choices=("constant", "multistep", "exponential", "cosine")
    )
    milestones: list[int] = key([], "rounds at which multistep decays")
    decay: float = key(0.1, "factor of multistep (at each milestone) and exponential (each round)", least=0)
    clip: float = key(1.0, "largest gradient norm; 0: no clipping", least=0)
    mask: str = key(
        "zero",
        "logits of classes a client lacks: 0 (as published), -inf, or untouched",
        choices=("zero", "inf", "none"),
    )
    smoothing: float = key(
        0.0,
        "label smoothing: weight of a term that pulls towards equal probabilities, of classes a client lacks as well",
        least=0,
        below=1000,
    )
    scaler: bool = key(True, "divide activations by the client's capacity while training (HeteroFL)")
    augment: bool = key(True, "random crop and flip where the data set defines them")


MIN_HOLDERS = 3
"""Clients that must hold an element for a robust sum: of fewer values nobody can say which one is wrong."""


@dataclass(frozen=True)
class ServerSettings:
    """How updates become the new global model."""

    weighting: str = key("equal", "weight of a client", choices=("equal", "samples", "model-size", "updates", "hybrid"))
    label_rows: bool = key(True, "average classifier rows over the clients that have the label (HeteroFL)")
    optimiser: str = key("plain", "server optimiser", choices=("plain", "fedavgm", "fedadam", "fedyogi"))
    lr: float = key(1.0, "server step", least=0)
    momentum: float = key(0.9, "momentum of fedavgm, first moment of fedadam and fedyogi", least=0, below=1)
    second_moment: float = key(0.99, "second moment of fedadam and fedyogi", least=0, below=1)
    epsilon: float = key(1e-3, "adaptivity of fedadam and fedyogi", least=0)
    lr_decay: float = key(1.0, "factor on the server step every `lr_every` rounds", least=0)
    lr_every: int = key(1, "rounds after which the server step is multiplied by `lr_decay` again", least=1)
    lr_until: int = key(0, "round after which the server step stays as it is; 0: it never does", least=0)
    holders_exponent: float = key(
        1.0, "1: an element is averaged over the clients that hold it; 0: over all of the round; or between", least=0
    )
    norms: str = key(
        "shared",
        "normalisation layers: the same for all clients, or for each capacity its own (NeFL)",
        choices=("shared", "by-capacity"),
    )
    clip: float = key(0.0, "largest norm of an update, in multiples of the round's median; 0: no limit", least=0)
    screen: bool = key(False, "leave out updates that point away from those of the round's others")
    robust: str = key(
        "none",
        "how single updates are averaged, element by element over those who hold it: all, without the extremes, the"
        " middle one, or all with bounded norms",
        choices=("none", "trimmed", "median", "norm-bounded"),
    )
    robust_share: float = key(
        0.2, "of trimmed: the share that is left out at each end; above 0 and below a half", least=0
    )
    robust_bound: float = key(
        1.0, "of norm-bounded: the largest norm of an update, in multiples of the round's median; above 0", least=0
    )
    strikes: int = key(3, "answers refused, or far beyond clip, after which a client is left out; 0: never", least=0)
    quarantine: int = key(10, "rounds for which it is left out then", least=1)


@dataclass(frozen=True)
class SecureSettings:
    """Secure sums: the server learns what clients trained together, and of none what it trained alone."""

    enabled: bool = key(False, "secure sums: simulated in runs, real in deployments; label_rows is false unless set")
    min_clients: int = key(8, "clients that must hold a part of the model for its sum to be opened", least=2)
    clip: float = key(1.0, "largest change of one weight in a round that counts; above 0", least=0)
    max_weight: float = key(
        0.0,
        "the most that a client counts for where server.weighting is samples, updates or hybrid, whose weights are then"
        " summed too; 0: these are refused",
        least=0,
    )


@dataclass(frozen=True)
class PrivacySettings:
    """Differential privacy: how little the model may tell of any one client."""

    noise: float = key(
        0.0, "standard deviation of the noise on the sum of updates, in multiples of clip; 0: none", least=0
    )
    clip: float = key(1.0, "largest norm of a client's whole update; above 0", least=0)
    delta: float = key(1e-5, "probability with which epsilon may not hold; far below 1 / clients", least=0)
    epsilon: float = key(0.0, "budget: the run ends before it would cost more; 0: no limit", least=0)
    accountant: str = key(
        "pld", "how rounds are added up: privacy loss distributions, or Rényi divergences", choices=("pld", "rdp")
    )
    adjacency: str = key(
        "add-or-remove",
        "what nobody may notice: that a client exists (needs poisson sampling), or what it trained",
        choices=("add-or-remove", "zero-out"),
    )
    min_denominator: float = key(
        1.0, "least number that a sum is divided by, where fewer clients are expected; above 0", least=0
    )
    quantile: float = key(
        0.0, "share of updates that are to be shorter than clip, which then follows them; 0: clip stays", least=0
    )
    clip_rate: float = key(0.2, "how fast it follows them", least=0)
    bits_noise: float = key(
        0.0, "noise on the number of updates that were not clipped; 0: a twentieth of the clients of a round", least=0
    )


@dataclass(frozen=True)
class EvaluationSettings:
    """What is measured, and when."""

    every: int = key(10, "rounds between evaluations; the last round is always evaluated", least=1)
    also: list[int] = key([], "further rounds after which it is evaluated, such as some of the last ones")
    norm: str = key(
        "static", "batch norm: statistics from training data, or of each test batch", choices=("static", "batch")
    )
    test: bool = key(True, "accuracy of the global model on the test set; false: on the validation samples alone")
    local: bool = key(True, "accuracy of the global model on each client's own test data")
    capacities: list[float] = key([], "also measure the global model's sub-model at these capacities", share=True)
    capacities_every: int = key(
        0, "rounds between evaluations that measure these too; 0: all do; the last round's always does", least=0
    )
    draws: int = key(
        10,
        "sub-models of each capacity that are measured after the last round, where its clients hold different units",
        least=1,
    )
    alarm: float = key(
        0.0,
        "points of accuracy (by validation where there is one) below the best of the last 5 evaluations that are"
        " noted as an alarm; 0: none",
        least=0,
    )
    batch_size: int = key(500, "samples a step", least=1)
    statistics_samples: int = key(0, "training samples for static statistics; 0: all", least=0)


@dataclass(frozen=True)
class RaySettings:
    """Workers of `engine = "ray"`. Only `engine`, and whether they hold GPUs, can change results."""

    address: str = key("", "cluster to use: auto, host:port; empty: start one on this machine for the run")
    engine: str = key("auto", "engine inside each worker", choices=("auto", "serial", "vectorised", "cuda"))
    cpus: float = key(1.0, "CPUs a worker takes, also less than one", least=0.01)
    gpus: float = key(0.0, "GPUs a worker takes, e.g. 0.25; 0: workers train on the CPU", least=0)


@dataclass(frozen=True)
class Settings:
    """One run."""

    name: str = key("", "a name for tables and reports")
    answers: str = key("", "the published number this run answers to")
    seed: int = key(1, "all randomness of the run comes from it", least=0)
    rounds: int = key(100, "communication rounds", least=1)
    method: MethodSettings = field(default_factory=MethodSettings)
    local: LocalSettings = field(default_factory=LocalSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    models: list[ArchitectureSettings] = key(
        [], "other networks than widths of the run's model, one [[models]] for each: name, options, capacities, label"
    )
    adapter: AdapterSettings = field(default_factory=AdapterSettings)
    data: DataSettings = field(default_factory=DataSettings)
    objective: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    devices: DeviceSettings = field(default_factory=DeviceSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    secure: SecureSettings = field(default_factory=SecureSettings)
    privacy: PrivacySettings = field(default_factory=PrivacySettings)
    evaluation: EvaluationSettings = field(default_factory=EvaluationSettings)
    ray: RaySettings = field(default_factory=RaySettings)
    engine: str = key(
        "auto", "how clients are trained", choices=("auto", "serial", "processes", "vectorised", "cuda", "ray")
    )
    workers: int = key(0, "worker processes; 0: one per core. Results do not depend on it", least=0)
    device: str = key("cpu", "cpu or cuda")
    precision: str = key(
        "tf32",
        "arithmetic of convolutions and matrix products; on a CPU tf32 is float32, and bf16 helps wide layers alone",
        choices=PRECISIONS,
    )
    slots: int = key(10, "clients of one width the cuda engine trains at a time; results do not depend on it", least=1)
    client_memory: str = key(
        "host", "where what clients remember is kept (SCAFFOLD): in memory, or in files", choices=("host", "disk")
    )
    checkpoint_every: int = key(
        0, "rounds between checkpoints, each waited for; 0: by time, beside the training. The end makes one", least=0
    )
    checkpoint_seconds: float = key(60.0, "seconds between checkpoints by time", least=0)
    checkpoint_history: int = key(
        0, "earlier checkpoints to keep, besides every tenth round's, to go back to; 0: the last alone", least=0
    )
