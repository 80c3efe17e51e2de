"""Draw the pictures of the methods' pages: which weights of one small layer are trained in which round.

    python docs/make_pictures.py

Nothing is made up: the windows come from `Method.assign`, what is changed elsewhere from `Method.finish`, weights that
begin at 0 from `Method.first_state`. The layer has 8 units in and 8 out, so a picture is a few kilobytes of SVG; a test
compares the files with what this draws. For a method that looks at the weights these are trained, on a small task.
Methods that hold everything, and differ in the local step alone, have another picture: the way that `step.take_step`
goes on two small quadratic losses. Of methods whose clients hold no slices the tensors are drawn that stand for the
layer in what `Part.cut` sends, in their shapes. Of methods of adapters it is B and A of the layer, and what of them a
client trains.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from fractions import Fraction
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

import fedwidth
from fedwidth.analysis.replay import replay
from fedwidth.devices.memory import Memory, training_memory
from fedwidth.methods import Beginning, Closing, Method, Task
from fedwidth.methods.fjord import local_widths
from fedwidth.settings import TrainingSettings
from fedwidth.training.rule import Rule
from fedwidth.training.step import report_of, take_step
from fedwidth.training.weights import Weights

FOLDER = Path(__file__).parent / "images" / "methods"
UNITS, SHOWN, ROUNDS = 8, 4, 64
LAYER = "2.weight"
ROWS = (
    ("one client of capacity 1/2", (1 / 2,)),
    ("one client of capacity 1/4", (1 / 4,)),
    ("four clients of capacity 1/4", (1 / 4,) * 4),
)
MORE_ROWS = {
    "fedmosaic": ("clients of capacity 1/2, 1/4, 1/4, 1/8", (1 / 2, 1 / 4, 1 / 4, 1 / 8)),
    "fedladder": ("clients of capacity 1, 1/2, 1/4, 1/8", (1.0, 1 / 2, 1 / 4, 1 / 8)),
    "fedimportance": ("clients of capacity 1, 1/2, 1/4, 1/4", (1.0, 1 / 2, 1 / 4, 1 / 4)),
}
"""Cohorts that only the picture of this method has."""
ELSEWHERE = {"fedbrb": "dots: changed by the broadcast alone", "fedtile": "dots: changed as copies, nobody held them"}
"""What it means that a weight nobody trained has changed."""
ORDER = ("fedavg", "heterofl", "fjord", "feddropout", "fedminoccurances", "fedecover", "fedrolex", "fedcover")
ORDER += ("fedstack", "fedbrb", "fedimportance", "fedtile", "fedmosaic", "fedladder", "fedprox", "scaffold")
STEPS = {"fedprox": {"mu": 1.0}, "scaffold": {}}
"""Methods that hold everything and change the step: they are drawn by their way, with these options."""
FROZEN, DEEP = (1.0, 3 / 4, 5 / 8, 1 / 2), 6
"""Capacities of the devices, and layers of the network, where layers are frozen."""
HELD = (1.0, 1 / 2, 1 / 4, 1 / 8)
"""Capacities of the devices whose tensors are drawn where these are no slices."""
TAUGHT = {
    "feddf": "every width is a model of its own; the server teaches each on public data what all say together",
    "dsfl": "models stay with clients, which send what they say of public samples; the server teaches its own",
    "fedgkt": "features leave each client where the model is split; the server has the full model behind it",
    "fedet": "every width is a model of its own; a projection lets all end in the same layer, here behind this one",
    "fedbe": "the server teaches the average on public data what likely models say together",
}
AVERAGED = {
    "fedit": "server: the mean of B, and the mean of A",
    "hetlora": "server: zeros where a client has no rank, weights by the length of B A",
    "flexlora": "server: the mean of B A, decomposed again",
    "flora": "server: the mean of B A goes into the frozen weight, and adapters begin anew",
    "ffalora": "server: the mean of B; A is the same for all",
    "rolora": "server: the mean of what was trained; the other is the same for all",
}
CELL, GAP, EDGE, TOP = 10, 16, 14, 34
SIDE = UNITS * CELL
WIDTH = 2 * EDGE + (SHOWN + 1) * SIDE + SHOWN * GAP
STEP = SIDE + 46
PALE, DARK = (214, 227, 250), (23, 74, 173)
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#1f2937}.b{font-weight:600}.s{font-size:11px;fill:#4b5563}"
    ".m{text-anchor:middle}.e{text-anchor:end}"
)

MODEL = nn.Sequential(nn.Linear(UNITS, UNITS), nn.ReLU(), nn.Linear(UNITS, UNITS), nn.ReLU(), nn.Linear(UNITS, UNITS))
PLAN = fedwidth.trace(MODEL, torch.zeros(2, UNITS))


def rounds_of(method: Method, capacities: tuple[float, ...]) -> Iterator[list[Task]]:
    """The tasks of one round after the other."""
    if "state" in method.reads:
        return iter(rounds_trained(method.name, capacities))
    return replay(method, PLAN, [list(enumerate(capacities))] * ROUNDS)


@cache
def rounds_trained(name: str, capacities: tuple[float, ...]) -> list[list[Task]]:
    """The same where it depends on the weights: every client learns to give back its own 32 inputs."""
    method, cohort, rounds = fedwidth.methods()[name], list(enumerate(capacities)), []
    random = torch.Generator().manual_seed(0)
    state = {
        name: torch.randn(shape, generator=random, dtype=torch.float64) / UNITS**0.5
        for name, shape in PLAN.shapes.items()
    }
    inputs = [torch.randn(32, UNITS, generator=random, dtype=torch.float64) for _ in cohort]
    model, modules = deepcopy(MODEL).double(), {}
    for round in range(ROUNDS):
        tasks = method.assign(PLAN, cohort, round, state=state)
        rounds.append(tasks)
        updates = []
        for task in tasks:
            size = task.index.size
            small = modules[size] if size in modules else modules.setdefault(size, task.index.module(model, PLAN))
            small.load_state_dict(fedwidth.extract(state, PLAN, task.index))
            updates.append((_learn(small, inputs[task.client]), task.index, 1.0))
        state = fedwidth.merge(state, updates, PLAN)
    return rounds


def _learn(small: nn.Module, inputs: Tensor) -> dict[str, Tensor]:
    """The client's weights after ten steps of SGD."""
    optimiser = torch.optim.SGD(small.parameters(), lr=0.1, weight_decay=0.01)
    for _ in range(10):
        optimiser.zero_grad()
        nn.functional.mse_loss(small(inputs), inputs).backward()
        optimiser.step()
    return fedwidth.state_of(small)


def trained(method: Method, tasks: list[Task], round: int) -> Tensor:
    """For every weight of the layer, the share of the round's clients (and of their local steps) that train it."""
    grid = torch.zeros(UNITS, UNITS)
    for task in tasks:
        widths = local_widths(task.capacity, method.values) if method.name == "fjord" else [task.capacity]
        for width in widths:
            narrower = width != task.capacity
            index = method.select(PLAN, capacity=width, round=round) if narrower else task.index
            rows, columns = index[LAYER]
            grid[rows[:, None], columns] += 1 / len(widths)
    return grid / len(tasks)


def changed(method: Method, tasks: list[Task], round: int, enrolled: tuple[float, ...]) -> Tensor:
    """The weights of the layer that are not what they were after clients that add 1 to all they hold."""
    state = {name: torch.zeros_like(tensor) for name, tensor in fedwidth.state_of(MODEL).items()}
    sums = {}
    for task in tasks:
        held = {name: tensor + 1 for name, tensor in fedwidth.extract(state, PLAN, task.index).items()}
        sums.setdefault(task.index.key, fedwidth.CohortSum(task.index)).add(fedwidth.Update(held, task.index, 1.0))
    told = {"tasks": tasks, "round": round, "rounds": ROUNDS, "enrolled": enrolled, "options": method.values}
    return method.finish(Closing(state, list(sums.values()), PLAN, **told))[LAYER] != 0


def empty(method: Method, enrolled: tuple[float, ...]) -> Tensor:
    """The weights of the layer that are 0 before the first round."""
    ones = {name: torch.ones_like(tensor) for name, tensor in fedwidth.state_of(MODEL).items()}
    return method.first_state(Beginning(ones, PLAN, enrolled, options=method.values))[LAYER] == 0


def draw_method(method: Method) -> str:
    """The picture of one method: a row for each cohort, a column for each of the first rounds, and the sum of all."""
    rows = [*ROWS, *([MORE_ROWS[method.name]] if method.name in MORE_ROWS else [])]
    height = TOP + len(rows) * STEP
    parts = [_text(_left(column) + SIDE / 2, 20, f"round {column}", "m") for column in range(SHOWN)]
    parts.append(_text(_left(SHOWN) + SIDE / 2, 20, f"{ROUNDS} rounds", "m b"))
    for row, (title, capacities) in enumerate(rows):
        top = TOP + row * STEP
        parts.append(_text(EDGE, top + 14, title, "b"))
        total, zeros = torch.zeros(UNITS, UNITS), empty(method, capacities)
        for round, tasks in enumerate(rounds_of(method, capacities)):
            share = trained(method, tasks, round)
            total += share
            if round < SHOWN:
                dots = changed(method, tasks, round, capacities) & (share == 0)
                parts.append(_grid(_left(round), top + 22, share, dots, zeros=zeros))
        parts.append(_grid(_left(SHOWN), top + 22, total / total.max(), zeros=zeros))
        parts.append(_text(WIDTH - EDGE, top + 36 + SIDE, _summary(total), "s e"))
    parts.append(_text(EDGE, height - 10, "columns: units in, rows: units out", "s"))
    notes = [ELSEWHERE[method.name]] if _broadcasts(method) else []
    notes += ["grey: 0 at the start"] if bool(empty(method, ROWS[0][1]).any()) else []
    for note in notes:
        parts.append(_text(EDGE, height + 8, note, "s"))
        height += 18
    return _svg(height, f"{method.title}: the weights of one layer that clients train, round by round", parts)


def draw_overview(methods: list[Method]) -> str:
    """One tile for each method: four clients of capacity 1/4, all rounds."""
    columns, side = 3, 128
    apart = (WIDTH - 2 * EDGE - columns * side) / (columns - 1)
    height = 2 * EDGE + -(-len(methods) // columns) * (side + 56) - 16
    parts = []
    for number, method in enumerate(methods):
        left = EDGE + number % columns * (side + apart)
        top = EDGE + number // columns * (side + 56)
        tasks = enumerate(rounds_of(method, ROWS[-1][1]))
        total = torch.stack([trained(method, found, round) for round, found in tasks]).sum(0)
        parts.append(_text(left, top + 12, method.title, "b"))
        parts.append(_grid(left, top + 20, total / total.max(), cell=side // UNITS))
        parts.append(_text(left, top + side + 35, _summary(total), "s"))
    title = f"The weights of one layer that four clients of capacity 1/4 train in {ROUNDS} rounds, method by method"
    return _svg(height, title, parts)


def draw_parts(method: Method) -> str:
    """The tensors that stand for the layer in what devices of four sizes are sent."""
    state = fedwidth.state_of(MODEL)
    memory = method.first_memory(Beginning(state, PLAN, HELD, options=method.values))
    module = LAYER.removesuffix("weight")
    notes = [TAUGHT[method.name]] if method.name in TAUGHT else []
    height = TOP + len(HELD) * STEP + 18 * len(notes)
    parts = []
    for row, capacity in enumerate(HELD):
        part = method.select(PLAN, capacity=capacity, state=state, memory=memory)
        sent = {name: tensor for name, tensor in part.cut(state, PLAN).items() if name.startswith(module)}
        held = {name.removeprefix(module): t.squeeze(0) if t.dim() == 3 else t for name, t in sent.items()}
        tensors = {name: tensor for name, tensor in held.items() if tensor.dim() == 2}
        number, top = sum(tensor.numel() for tensor in tensors.values()), TOP + row * STEP - 20
        title = f"capacity {_fraction(capacity)}: {number} of {UNITS * UNITS} weights"
        parts.append(_text(EDGE, top + 14, title, "b"))
        left = EDGE
        for name, tensor in sorted(tensors.items()):
            rows, columns = tensor.shape
            parts.append(_block(left, top + 22, rows, columns))
            parts.append(_text(left + columns * CELL + 6, top + 34, f"{name} {rows} × {columns}", "s"))
            left += columns * CELL + 110
    for number, note in enumerate(notes):
        parts.append(_text(EDGE, height - 12 - 18 * number, note, "s"))
    return _svg(height, f"{method.title}: what devices of four sizes hold of one layer of 8 × 8 weights", parts)


def draw_layers(method: Method) -> str:
    """Which layers of a small network devices of four sizes train in four rounds, the first layer on the left."""
    layers = [layer for _ in range(DEEP) for layer in (nn.Linear(64, 64), nn.ReLU())]
    model, example = nn.Sequential(*layers[:-1]), torch.zeros(2, 64)
    plan, state = fedwidth.trace(model, example), fedwidth.state_of(model)

    def takes(module: nn.Module) -> Memory:
        return training_memory(module, example, batch=10)

    beginning = Beginning(state, plan, FROZEN, options=method.values, model=model, takes=takes)
    memory = method.first_memory(beginning)
    step, high, wide = 62, 26, (SIDE - 4) / DEEP
    height, parts = TOP + len(FROZEN) * step - 6, []
    for row, capacity in enumerate(FROZEN):
        top = TOP + row * step - 20
        why = "" if method.unfit is None else method.unfit(memory, capacity)
        runs = len(memory.get(f"runs.{capacity:g}", ()))
        ways = "left out" if why else "all layers" if capacity == 1 else f"{runs} runs fit"
        parts.append(_text(EDGE, top + 14, f"capacity {Fraction(capacity)}: {ways}", "b"))
        for round in range(SHOWN):
            part = method.select(plan, capacity=capacity, round=round, memory=memory, number=row)
            first, stop = (0, DEEP) if part.is_whole else (part.first, part.stop)
            left = _left(round)
            for layer in range(DEEP):
                fill = _shade(0.8) if first <= layer < stop else "#fff"
                parts.append(
                    f'<rect x="{left + layer * wide:g}" y="{top + 22:g}" width="{wide - 2:g}" height="{high}"'
                    f' fill="{fill}" stroke="#cbd5e1"/>'
                )
    return _svg(height, f"{method.title}: which of {DEEP} layers devices of four sizes train in four rounds", parts)


def draw_adapters(method: Method) -> str:
    """Which columns of B and rows of A devices of four sizes train in two rounds, and what the server does then."""
    model = fedwidth.adapt(MODEL, UNITS, [LAYER.removesuffix(".weight")])
    plan = fedwidth.trace(model, torch.zeros(2, UNITS))
    plan = fedwidth.trace(model, torch.zeros(2, UNITS), keep=[n for n in plan.groups if n not in plan.rank_groups])
    (adapter,) = plan.adapters
    height, parts = TOP + 2 * STEP + 18, []
    for row in range(2):
        top = TOP + row * STEP - 20
        parts.append(_text(EDGE, top + 14, f"round {row + 1}: columns of B and rows of A that are trained", "b"))
        resting = method.local.rests(plan, row) if method.local is not None and method.local.rests else frozenset()
        for column, task in enumerate(method.assign(plan, list(enumerate(HELD)), row)):
            units = task.index[adapter.down][0].tolist()
            left = _left(column)
            for name, place in ((adapter.up, 0.0), (adapter.down, SIDE / 2 + 4)):
                shown = [] if name in resting else units
                parts.append(_factor(left + place, top + 30, shown, columns=name == adapter.up))
            held = f"rank {len(units)} of {UNITS}"
            parts.append(_text(left, top + 30 + SIDE / 2 + 14, held, "s"))
    parts.append(_text(EDGE, height - 12, AVERAGED[method.name], "s"))
    return _svg(height, f"{method.title}: what devices of four sizes train of an adapter of rank 8", parts)


def _factor(left: float, top: float, units: list[int], *, columns: bool) -> str:
    """A factor of 8 x 8 in small cells, with some of its columns or rows dark."""
    cell, side = SIDE / 2 / UNITS - 0.5, SIDE / 2 - 4
    lines = "".join(f"M{at * cell:g} 0v{side:g}M0 {at * cell:g}h{side:g}" for at in range(UNITS + 1))
    dark = "".join(
        f"M{u * cell:g} 0h{cell:g}v{side:g}h-{cell:g}z" if columns else f"M0 {u * cell:g}h{side:g}v{cell:g}h-{side:g}z"
        for u in units
    )
    return (
        f'<g transform="translate({left:g} {top:g})"><path fill="#fff" d="M0 0h{side:g}v{side:g}h-{side:g}z"/>'
        f'<path fill="{_shade(0.8)}" d="{dark}"/><path stroke="#cbd5e1" stroke-width=".5" fill="none" d="{lines}"/></g>'
    )


def _fraction(capacity: float) -> str:
    return "1" if capacity == 1 else f"1/{round(1 / capacity)}"


def _block(left: float, top: float, rows: int, columns: int) -> str:
    """A matrix of cells."""
    wide, high = columns * CELL, rows * CELL
    lines = "".join(f"M{at} 0v{high}" for at in range(0, wide + 1, CELL))
    lines += "".join(f"M0 {at}h{wide}" for at in range(0, high + 1, CELL))
    return (
        f'<g transform="translate({left:g} {top:g})"><path fill="{_shade(0.5)}" d="M0 0h{wide}v{high}h-{wide}z"/>'
        f'<path stroke="#cbd5e1" stroke-width=".6" fill="none" d="{lines}"/></g>'
    )


CLIENTS = (
    (torch.tensor([-1.0, -0.6]), torch.tensor([1.0, 0.2])),
    (torch.tensor([1.0, 0.6]), torch.tensor([0.2, 1.0])),
)
"""Where each is best off, and its curvature there: the loss is 1/2 sum of curvature (w - best)^2."""
LOCAL_STEPS, SERVER_STEPS, RATE = 30, 12, 0.1
PLAIN_SGD = TrainingSettings(momentum=0.0, weight_decay=0.0, clip=0.0)


def walk(method: Method) -> list[tuple[Tensor, list[Tensor]]]:
    """Round by round: where the server stands, and the clients' ways from there [steps + 1, 2]."""
    rule, place = Rule.of(method), torch.tensor([-0.2, 1.1])
    server, own = torch.zeros(2), [torch.zeros(2) for _ in CLIENTS]
    found = []
    for _ in range(SERVER_STEPS):
        ways, reports = [], []
        for number, (best, curvature) in enumerate(CLIENTS):
            numbers = {"rate": RATE, "learning_rate": RATE, "local_steps": LOCAL_STEPS}
            weights = Weights([place.clone()], [None], start=[place.clone()], **numbers)
            weights.sent = {"control": [server], "own": [own[number]]}
            way = [place.clone()]
            for _ in range(LOCAL_STEPS):
                weights.gradients = [curvature * (weights.values[0] - best)]
                take_step(weights, rule, PLAIN_SGD, 1.0)
                way.append(weights.values[0].clone())
            reports.append(report_of(weights, rule, 1.0))
            ways.append(torch.stack(way))
        found.append((place, ways))
        place = torch.stack([way[-1] for way in ways]).mean(0)
        if "own" in reports[0]:
            own = [report["own"][0] for report in reports]
            server = server + sum(report["change"][0] for report in reports) / len(CLIENTS)
    return [*found, (place, [])]


def draw_steps(method: Method) -> str:
    """FedAvg and the method side by side, on the way to what is best for two clients together."""
    side, top = 225, 30
    parts = []
    for number, each in enumerate((fedwidth.method("fedavg"), method)):
        left = EDGE + number * (WIDTH - 2 * EDGE - side)
        set_ = ", ".join(f"{name} {value:g}" for name, value in STEPS.get(each.name, {}).items())
        parts.append(_text(left, 20, each.title + (f", {set_}" if set_ else ""), "b"))
        parts.append(_ways(left, top, side, walk(each)))
        away = float((walk(each)[-1][0] - _common()).norm())
        parts.append(_text(left, top + side + 16, f"after {SERVER_STEPS} rounds {away:.2f} from the best", "s"))
    note = f"rings: best for each client; cross: for both; {LOCAL_STEPS} local steps a round"
    parts.append(_text(EDGE, top + side + 36, note, "s"))
    return _svg(top + side + 46, f"{method.title} and FedAvg on two quadratic losses", parts)


def _common() -> Tensor:
    """Where the sum of the clients' losses is least."""
    return sum(curvature * best for best, curvature in CLIENTS) / sum(curvature for _, curvature in CLIENTS)


def _ways(left: float, top: float, side: float, rounds: list[tuple[Tensor, list[Tensor]]]) -> str:
    """The plane from -1.3 to 1.3: pale the clients' ways, dark the server's."""

    def at(point: Tensor) -> str:
        x, y = ((float(value) / 1.3 + 1) * side / 2 for value in (point[0], -point[1]))
        return f"{x:.1f} {y:.1f}"

    parts = [f'<g transform="translate({left:g} {top:g})">', f'<path fill="#fff" d="M0 0h{side}v{side}h-{side}z"/>']
    ways = "".join(f"M{at(way[0])}" + "".join(f"L{at(p)}" for p in way[3::3]) for _, each in rounds for way in each)
    parts.append(f'<path stroke="#9db9ee" stroke-width="1" fill="none" d="{ways}"/>')
    line = "L".join(at(place) for place, _ in rounds)
    parts.append(f'<path stroke="{_shade(1)}" stroke-width="1.6" fill="none" d="M{line}"/>')
    for place, _ in rounds:
        x, y = at(place).split()
        parts.append(f'<circle cx="{x}" cy="{y}" r="2.2" fill="{_shade(1)}"/>')
    for best, _ in CLIENTS:
        x, y = at(best).split()
        parts.append(f'<circle cx="{x}" cy="{y}" r="5" fill="none" stroke="#b45309" stroke-width="1.6"/>')
    x, y = at(_common()).split()
    parts.append(f'<path stroke="#b45309" stroke-width="1.8" d="M{x} {y}m-5-5l10 10m0-10l-10 10"/>')
    parts.append(f'<path stroke="#cbd5e1" fill="none" d="M0 0h{side}v{side}h-{side}z"/></g>')
    return "".join(parts)


def _broadcasts(method: Method) -> bool:
    """Whether the first round changes weights that nobody trained."""
    tasks = next(rounds_of(method, ROWS[0][1]))
    return bool((changed(method, tasks, 0, ROWS[0][1]) & (trained(method, tasks, 0) == 0)).any())


def _summary(total: Tensor) -> str:
    """The share of weights that were trained, and Jain's index of how often."""
    share = (total > 0).double().mean()
    evenness = total.double().mean().square() / total.double().square().mean()
    return f"{100 * share:.0f} %, evenness {evenness:.2f}"


def _grid(
    left: float, top: float, share: Tensor, dots: Tensor | None = None, *, zeros: Tensor | None = None, cell: int = CELL
) -> str:
    """Cells from pale to dark by their share, none where it is zero; a dot where a weight changed untrained, and grey
    where one began at 0 and is not trained.
    """
    side = UNITS * cell
    parts = [f'<g transform="translate({left:g} {top:g})">', f'<path fill="#fff" d="M0 0h{side}v{side}h-{side}z"/>']
    if zeros is not None and bool((zeros & (share == 0)).any()):
        path = "".join(
            f"M{column * cell} {row * cell}h{cell}v{cell}h-{cell}z"
            for row, column in (zeros & (share == 0)).nonzero().tolist()
        )
        parts.append(f'<path fill="#d1d5db" d="{path}"/>')
    for value in sorted({round(float(each), 2) for each in share.flatten() if each > 0}):
        cells = (share * 100).round() == round(value * 100)
        path = "".join(f"M{column * cell} {row * cell}h{cell}v{cell}h-{cell}z" for row, column in cells.nonzero())
        parts.append(f'<path fill="{_shade(value)}" d="{path}"/>')
    if dots is not None and bool(dots.any()):
        middle = cell // 2 - 1
        path = "".join(f"M{column * cell + middle} {row * cell + middle}h2v2h-2z" for row, column in dots.nonzero())
        parts.append(f'<path fill="{_shade(0.7)}" d="{path}"/>')
    lines = "".join(f"M{at} 0v{side}M0 {at}h{side}" for at in range(0, side + 1, cell))
    parts.append(f'<path stroke="#cbd5e1" stroke-width=".6" fill="none" d="{lines}"/></g>')
    return "".join(parts)


def _shade(value: float) -> str:
    mixed = (round(pale + (dark - pale) * value) for pale, dark in zip(PALE, DARK, strict=True))
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def _left(column: int) -> float:
    return EDGE + column * (SIDE + GAP)


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{text}</text>'


def _svg(height: float, title: str, parts: list[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" height="{height:g}"'
        f' role="img"><title>{title}</title><style>{STYLE}</style>'
        f'<rect width="{WIDTH}" height="{height:g}" rx="6" fill="#f8fafc"/>'
    )
    return "\n".join([head, *parts, "</svg>\n"])


def draw_all() -> dict[str, str]:
    """Every picture by its file name."""
    found = fedwidth.methods()
    ordered = sorted(found, key=lambda name: ORDER.index(name) if name in ORDER else len(ORDER))
    slicing = [
        name
        for name in ordered
        if name not in STEPS and name not in TAUGHT and found[name].slices and not found[name].adapters
    ]
    pictures = {f"{name}.svg": draw_method(found[name]) for name in slicing}
    others = [name for name in ordered if name in TAUGHT or not found[name].slices]
    pictures |= {
        f"{name}.svg": draw_layers(found[name]) if found[name].freezes else draw_parts(found[name]) for name in others
    }
    pictures |= {
        f"{name}.svg": draw_steps(found[name].with_options(**STEPS[name])) for name in ordered if name in STEPS
    }
    pictures |= {f"{name}.svg": draw_adapters(found[name]) for name in ordered if found[name].adapters}
    return pictures | {"overview.svg": draw_overview([found[name] for name in slicing])}


def main() -> None:
    """Write them."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in draw_all().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
        print(f"{name}: {len(text) / 1000:.1f} kB")


if __name__ == "__main__":
    main()
