"""What the results page says of the queue."""

from reproduction.queue import queue_texts
from reproduction.yardsticks import Yardsticks

from fedwidth.analysis.wording import over_seeds
from fedwidth.reproduce.queue import work_through
from fedwidth.reproduce.queue_file import read_queue
from two_runs import write_queue


def test_the_page_shows_what_was_asked_and_what_is_left(tmp_path):
    results, queue = tmp_path / "results", write_queue(tmp_path)
    assert list(queue_texts(results, [], Yardsticks([]))) == []
    done = work_through(read_queue(queue, ["steps"]), results=results, work=tmp_path / "work", say=lambda _: None).done
    (results / "queue.toml").write_text(queue.read_text())
    title, _, table, left = queue_texts(results, done, Yardsticks(done))
    assert title == "## Asked beside the tables"
    last = over_seeds(100 * record.final_accuracy for record in done)
    (row,) = table.splitlines()[2:]
    assert row.startswith(f"| `steps` | Why? | fedrolex | {last} | ")
    assert row.endswith(" | 1, 2 |  |"), "nobody has answered yet"
    assert left == "2 jobs left, about 50 s on one H200: `as-it-is`, `both`."
