"""`/metrics`: OpenMetrics that can be read, whose counters never go down."""

from __future__ import annotations

import re
from itertools import pairwise

import httpx

from holdfast import Holdfast
from holdfast.figures import Histogram
from holdfast.metrics import ENDED, MEDIA_TYPE, METRICS, OLDEST, READY, WAIT, openmetrics
from tests.http.api import api
from tests.support.factories import add, greet

SAMPLE = re.compile(
    r'(?P<name>[a-z_]+)(?P<labels>\{[a-z]+="(\\.|[^"\\])*"(,[a-z]+="(\\.|[^"\\])*")*\})? (?P<value>\S+)'
)


def read(text: str) -> dict[str, float]:
    """Read what was scraped, line by line; fail for what is no OpenMetrics."""
    *lines, end, rest = text.split("\n")
    assert (end, rest) == ("# EOF", "")
    found: dict[str, float] = {}
    family = ""
    families = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(families) == len(set(families))
    for line in lines:
        if line.startswith("#"):
            assert re.fullmatch(r"# (TYPE|UNIT|HELP) [a-z_]+ .+", line), line
            family = line.split()[2]
            continue
        match = SAMPLE.fullmatch(line)
        assert match, line
        assert match["name"] in (family, f"{family}_total", f"{family}_bucket"), line
        key = line.rpartition(" ")[0]
        assert key not in found, line
        found[key] = float(match["value"])
    return found


async def scrape(client: httpx.AsyncClient) -> dict[str, float]:
    answer = await client.get("/metrics", headers={"Accept": "application/openmetrics-text;version=1.0.0;q=0.5"})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == MEDIA_TYPE
    return read(answer.text)


def grows(name: str) -> bool:
    return "_total{" in name or "_bucket{" in name


async def test_what_has_run_is_counted_and_never_goes_down(hf: Holdfast) -> None:
    ended = 'holdfast_db_attempts_total{queue="default",task="greet",outcome="completed"}'
    async with api(hf) as client:
        scrapes = [await scrape(client)]
        async with hf.worker():
            for number in range(3):
                await hf.wait([await hf.start(greet(name=str(number)))])
                scrapes.append(await scrape(client))
        scrapes.append(await scrape(client))

    last = scrapes[-1]
    assert last[ended] == 3
    assert last['holdfast_db_run_seconds_bucket{queue="default",task="greet",le="+Inf"}'] == 3
    assert last['holdfast_http_requests_total{operation="metrics_read",status="2xx"}'] == 4
    for before, after in pairwise(scrapes):
        assert all(after[name] >= value for name, value in before.items() if grows(name))


async def test_what_stands_now_is_told_by_queue(hf: Holdfast) -> None:
    await hf.start(greet(name="Ada"))
    await hf.start(add(1, 2).options(delay=3600))
    await hf.queue("sums").pause()
    async with api(hf) as client:
        found = await scrape(client)

    assert found['holdfast_db_ready{queue="default"}'] == 1
    assert found['holdfast_db_scheduled{queue="sums"}'] == 1
    assert found['holdfast_db_queue_paused{queue="sums"}'] == 1
    assert found["holdfast_db_open_chains"] == 2


async def test_every_metric_of_the_table_is_answered(hf: Holdfast) -> None:
    async with api(hf) as client:
        text = (await client.get("/metrics")).text

    assert [line.split()[2] for line in text.split("\n") if line.startswith("# TYPE")] == [
        each.name for each in METRICS
    ]


async def test_it_needs_a_viewer_unless_loopback_is_let_in(hf: Holdfast) -> None:
    async with api(hf, token="") as client:
        client.headers.pop("authorization")
        assert (await client.get("/metrics")).status_code == 401
    async with api(hf, token="", metrics_on_loopback=True) as client:
        client.headers.pop("authorization")
        assert (await client.get("/metrics")).status_code == 200


def test_labels_may_have_any_signs() -> None:
    odd = 'a "b"\\c\nd'

    assert read(openmetrics({READY: {(odd,): 7}})) == {'holdfast_db_ready{queue="a \\"b\\"\\\\c\\nd"}': 7}


def test_beyond_500_series_the_rest_is_added_up_and_nothing_is_lost() -> None:
    many = {("default", f"task-{number:04}", "completed"): 1 for number in range(2_000)}
    found = read(openmetrics({ENDED: many}))

    assert len(found) == 500
    assert sum(found.values()) == 2_000
    assert found['holdfast_db_attempts_total{queue="other",task="other",outcome="other"}'] == 1_501


def test_the_rest_never_goes_down_when_a_task_comes() -> None:
    many = {("default", f"task-{number:04}", "completed"): 5 for number in range(600)}
    before = read(openmetrics({ENDED: many}))
    after = read(openmetrics({ENDED: {**many, ("a", "new", "completed"): 1}}))

    assert all(after[name] >= value for name, value in before.items() if name in after)


def test_the_oldest_of_the_rest_is_the_oldest_of_them() -> None:
    found = read(openmetrics({OLDEST: {(f"queue-{number:04}",): number for number in range(700)}}))

    assert found['holdfast_db_oldest_ready_seconds{queue="other"}'] == 699


def test_the_buckets_of_a_histogram_add_up() -> None:
    histogram = Histogram.of([0.5, 1, 3.9, 5, 1_000, 10**9])
    found = read(openmetrics({WAIT: {("default", "greet"): histogram}}))
    by_bound = {name.partition('le="')[2].rstrip('"}'): value for name, value in found.items()}

    assert (by_bound["0.001"], by_bound["0.004"], by_bound["0.016"], by_bound["+Inf"]) == (1, 3, 4, 6)
    assert [*by_bound.values()] == sorted(by_bound.values())
