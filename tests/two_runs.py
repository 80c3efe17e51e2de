"""A table of two small runs, a queue of jobs made of such runs, and a signal that stops them."""

from pathlib import Path

from small_runs import write_recipe

BESIDE = '[[compare]]\nlabel = "heterofl"\nmethod.name = "heterofl"\n'


def write_two_runs(folder: Path) -> str:
    """The recipe as a file: eight rounds of FedRolex, and of HeteroFL beside it."""
    path = Path(write_recipe(folder, BESIDE))
    path.write_text(path.read_text().replace("rounds = 3", "rounds = 8"))
    return str(path)


def write_queue(folder: Path) -> Path:
    """Three jobs: the recipe as it is, another experiment, and two runs of which one is recorded by then."""
    recipe = write_recipe(folder, BESIDE)
    job = '[[job]]\nname = "{}"\nasks = "Why?"\nrecipe = "' + recipe + '"\n{}\n'
    path = folder / "queue.toml"
    path.write_text(
        job.format("as-it-is", 'only = ["fedrolex"]\nseconds = 20')
        + job.format("steps", 'only = ["fedrolex"]\nset = ["method.options.step=2"]\nseeds = [1, 2]\nseconds = 40')
        + job.format("both", "seconds = 30")
    )
    return path


def stop_after(calls: int):
    """A stop signal that comes after it has been asked so many times."""
    left = [calls]

    def stop() -> bool:
        left[0] -= 1
        return left[0] < 0

    return stop
