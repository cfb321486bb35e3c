"""Measure the server: throughput against two plainer ones, latency under an open-loop load, a soak, malformed requests.

    python tools/measure_server.py CHECKPOINT                     # ratios at 16 clients; interleaved rounds
    python tools/measure_server.py CHECKPOINT --latency           # Poisson arrivals of 1, 16, 64 clients
    python tools/measure_server.py CHECKPOINT --soak 30           # memory of the server over half an hour
    python tools/measure_server.py CHECKPOINT --malformed 10000

CHECKPOINT is a scalar one of the embedded backbone. `single` computes one response at a time, as a plain model behind HTTP does;
`padded` computes what waits as one padded batch, each response with its own prompt and image. Both are this server with
another runner, so that HTTP, JSON and image decoding are the same in all.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import psutil
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mmrm.eval.benchmarks.benchmark import Location
from mmrm.eval.benchmarks.registry import BENCHMARKS
from mmrm.eval.candidates import Candidates
from mmrm.eval.judges.checkpoint import Runtime
from mmrm.eval.judges.packed_judge import Unit, UnitResult
from mmrm.eval.judges.scalar.judge import ScalarJudge
from mmrm.eval.serving.app import Server
from mmrm.eval.serving.service import JudgeToServe, Service, load_served
from mmrm.models.packing.packed_batch import patches_of
from mmrm.models.packing.segments import SegmentTree, TokenisedConversation
from tests.eval.serving.malformed import malformed

RESPONSES = 8
ROUNDS, SECONDS = 5, 8.0
CLIENTS = 16
LOAD = 0.6
"""Share of what 16 closed-loop clients reach that 64 open-loop clients ask for."""


@dataclass(frozen=True)
class Rows:
    """Trees as a padded model takes them: every conversation is a whole row."""

    trees: Sequence[SegmentTree]

    def to(self, device: torch.device) -> Rows:
        """Return it as it is: this measures a CPU."""
        return self

    @property
    def conversations(self) -> list[TokenisedConversation]:
        """The conversations of all trees."""
        return [conversation for tree in self.trees for conversation in tree.conversations()]

    @property
    def cost(self) -> int:
        """Tokens, padding included."""
        lengths = [len(conversation.ids) for conversation in self.conversations]
        return len(lengths) * max(lengths)

    def inputs(self) -> dict[str, torch.Tensor]:
        """Return the padded batch."""
        rows = [torch.tensor(conversation.ids) for conversation in self.conversations]
        lengths = torch.tensor([len(row) for row in rows])
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
        inputs = {"input_ids": ids, "attention_mask": mask}
        images = [place.image for one in self.conversations for place in one.images]
        if images:
            inputs["pixel_values"] = torch.cat([patches_of(image) for image in images])
            inputs["image_grid_thw"] = torch.tensor([image.grid for image in images])
        return inputs


@dataclass(frozen=True)
class Unpacked:
    """Stands in for the encoder where rows are made."""

    control_tokens: tuple[str, ...]

    def pack(self, trees: Sequence[SegmentTree]) -> Rows:
        """Return the trees as padded rows."""
        return Rows(trees)


@dataclass(frozen=True, kw_only=True)
class PlainJudge(ScalarJudge):
    """A judge as a plain server has it: each response is computed by itself, alone or in a padded batch."""

    def units(self, candidates: Candidates) -> list[Unit]:
        """Return each response by itself."""
        return [
            Unit(str(index), candidates, (index,)) for index in range(len(candidates.responses))
        ]

    def run(self, batch: Any, units: Sequence[Unit]) -> list[UnitResult]:
        """Return the score of each row of a padded batch."""
        scores = self.model(**batch.inputs()).logits[:, 0].tolist()
        return [UnitResult((score,)) for score in scores]

    @property
    def can_divide_units(self) -> bool:
        """False: each unit is a single response."""
        return False


def baseline(judging: JudgeToServe, kind: str) -> JudgeToServe:
    """Return the judge as a plain server has it."""
    judge = judging.judge
    assert isinstance(judge, ScalarJudge)
    encoder: Any = Unpacked(judge.packed.encoder.control_tokens)
    token_budget = judge.packed.token_budget if kind == "padded" else 1
    packed = replace(judge.packed, encoder=encoder, token_budget=token_budget)
    plain = PlainJudge(model=judge.model, packed=packed, read=judge.read, columns=judge.columns)
    return replace(judging, judge=plain)


def be(checkpoint: Path, kind: str) -> None:
    """Be a server, until a signal."""
    import socket

    def load() -> JudgeToServe:
        torch.set_num_threads(1)
        judging = load_served(checkpoint, "reward", Runtime(torch.device("cpu")))
        return judging if kind == "ours" else baseline(judging, kind)

    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    service = Service(load)
    Server(service).run([listening])
    if service.failed:
        raise service.failed


@contextmanager
def server(checkpoint: Path, kind: str) -> Iterator[tuple[str, psutil.Process]]:
    """Start a server and wait until it is ready; give its address and process."""
    command = [sys.executable, __file__, str(checkpoint), "--be", kind]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    url = f"http://127.0.0.1:{process.stdout.readline().strip()}"
    while True:
        try:
            if httpx.get(f"{url}/ready", timeout=30).status_code == 200:
                break
        except httpx.TransportError:
            time.sleep(0.5)
        time.sleep(0.2)
    yield url, psutil.Process(process.pid)
    process.terminate()
    assert process.wait(60) == 0


def bodies(images: bool | None = None, number: int = 64) -> list[dict[str, Any]]:
    """Return requests of a group of 8 responses, to prompts of the embedded world; `images` None takes both sorts in turn."""
    examples = list(BENCHMARKS["vl_rewardbench"].load(Location(location="embedded")).examples)
    random.Random(0).shuffle(examples)
    pool = [response.text for example in examples for response in example.responses]
    found = []
    for place, example in enumerate(examples[:number]):
        with_image = place % 2 == 0 if images is None else images
        contents = [
            image if isinstance(image, bytes) else image.read_bytes() for image in example.images
        ]
        uris = [
            f"data:image/png;base64,{base64.b64encode(content).decode()}" for content in contents
        ]
        question = "".join(
            part["text"]
            for turn in example.prompt
            for part in turn["content"]
            if part["type"] == "text"
        )
        others = random.Random(place).sample(pool, RESPONSES - 2)
        group = {
            "messages": question,
            "responses": [*(response.text for response in example.responses), *others],
            "images": uris if with_image else [],
        }
        found.append({"groups": [group]})
    return found


async def closed(url: str, requests: Sequence[Any], clients: int, seconds: float) -> float:
    """Return responses a second of clients that each ask again as soon as they are answered."""
    end, done = time.perf_counter() + seconds, 0
    contents = [json.dumps(one) for one in requests]

    async def ask(client: httpx.AsyncClient, number: int) -> None:
        nonlocal done
        rng = random.Random(number)
        while time.perf_counter() < end:
            answer = await client.post("/v1/rewards", content=rng.choice(contents))
            done += len(answer.json()["groups"][0]["scores"])

    started = time.perf_counter()
    async with httpx.AsyncClient(
        base_url=url, timeout=600, limits=httpx.Limits(max_connections=clients)
    ) as client:
        await asyncio.gather(*(ask(client, number) for number in range(clients)))
    return done / (time.perf_counter() - started)


async def poisson(url: str, requests: Sequence[Any], rate: float, seconds: float) -> list[float]:
    """Return the latencies of requests that arrive `rate` times a second whatever the server does, from their due times."""
    rng, due, tasks = random.Random(0), 0.0, []
    contents, found = [json.dumps(one) for one in requests], list[float]()

    async def ask(client: httpx.AsyncClient, content: str, at: float) -> None:
        await asyncio.sleep(at - time.perf_counter())
        (await client.post("/v1/rewards", content=content)).raise_for_status()
        found.append(time.perf_counter() - at)

    started = time.perf_counter()
    async with httpx.AsyncClient(
        base_url=url, timeout=600, limits=httpx.Limits(max_connections=None)
    ) as client:
        while (due := due + rng.expovariate(rate)) < seconds:
            tasks.append(asyncio.create_task(ask(client, rng.choice(contents), started + due)))
        await asyncio.gather(*tasks)
    return sorted(found)


def metric(url: str, name: str) -> float:
    """Return a value that the server shows."""
    lines = httpx.get(f"{url}/metrics", timeout=30).text.splitlines()
    return float(next(line for line in lines if line.startswith(f"{name} ")).split()[-1])


def throughput(checkpoint: Path) -> None:
    """Print responses a second of the three servers in interleaved rounds, and the ratios of each round."""
    with ExitStack() as stack:
        urls = {
            kind: stack.enter_context(server(checkpoint, kind))[0]
            for kind in ("ours", "padded", "single")
        }
        requests = bodies(images=True)
        check(urls, requests[:4])
        for url in urls.values():
            asyncio.run(closed(url, requests, CLIENTS, SECONDS / 2))  # warm
        rounds = []
        for number in range(ROUNDS):
            kinds = list(urls)[number % 3 :] + list(urls)[: number % 3]
            found = {
                kind: asyncio.run(closed(urls[kind], requests, CLIENTS, SECONDS)) for kind in kinds
            }
            rounds.append(found)
            shown = ", ".join(f"{kind} {found[kind]:.1f}/s" for kind in urls)
            ratios = f"ours/padded {found['ours'] / found['padded']:.2f}, ours/single {found['ours'] / found['single']:.2f}"
            print(f"round {number + 1}: {shown}; {ratios}", flush=True)
        for kind in ("padded", "single"):
            print(f"ours/{kind}: median {median(one['ours'] / one[kind] for one in rounds):.2f}")
        tokens, alone = (
            metric(urls["ours"], f"reward_tokens{name}_total") for name in ("", "_unshared")
        )
        print(
            f"ours: {tokens:,.0f} tokens computed, {alone:,.0f} without sharing: {tokens / alone:.3f}"
        )
        print(
            f"ours: rows filled {metric(urls['ours'], 'reward_row_fill_sum') / metric(urls['ours'], 'reward_row_fill_count'):.2f}"
        )


def check(urls: dict[str, str], requests: Sequence[Any]) -> None:
    """Raise unless all servers give the same scores."""
    for body in requests:
        found = [
            httpx.post(f"{url}/v1/rewards", json=body, timeout=600).json()["groups"][0]["scores"]
            for url in urls.values()
        ]
        worst = max(
            abs(a - b) for scores in found[1:] for a, b in zip(found[0], scores, strict=True)
        )
        assert worst < 1e-4, worst
        print(f"largest difference of a score among the servers: {worst:.1e}")


def latency(checkpoint: Path) -> None:
    """Print p50 and p99 under Poisson arrivals."""
    with server(checkpoint, "ours") as (url, _):
        requests = bodies()
        asyncio.run(closed(url, requests, CLIENTS, SECONDS / 2))
        groups = asyncio.run(closed(url, requests, CLIENTS, SECONDS)) / RESPONSES
        print(
            f"closed loop, {CLIENTS} clients, texts and images: {groups:.1f} groups of {RESPONSES} a second"
        )
        for clients in (1, 16, 64):
            rate = LOAD * groups * clients / 64
            found = asyncio.run(poisson(url, requests, rate, max(30.0, 40 / rate)))
            p50, p99 = found[len(found) // 2], found[min(len(found) - 1, int(len(found) * 0.99))]
            shown = f"p50 {1000 * p50:.0f} ms, p99 {1000 * p99:.0f} ms of {len(found)}"
            print(f"{clients} clients, {rate:.2f} groups/s in all: {shown}", flush=True)


def soak(checkpoint: Path, minutes: float) -> None:
    """Print the server's memory, minute by minute."""
    with server(checkpoint, "ours") as (url, process):
        requests = bodies(number=256)
        found, end = [], time.time() + 60 * minutes
        while time.time() < end:
            speed = asyncio.run(closed(url, requests, CLIENTS, 30))
            found.append(process.memory_info().rss / 2**20)
            print(
                f"{minutes - (end - time.time()) / 60:.1f} min: RSS {found[-1]:.1f} MiB, {speed:.1f} responses/s",
                flush=True,
            )
        print(
            f"RSS start {found[0]:.1f}, middle {found[len(found) // 2]:.1f}, end {found[-1]:.1f} MiB"
        )


def send_malformed(checkpoint: Path, number: int) -> None:
    """Print how malformed requests are answered, with sound ones among them that must keep their scores."""
    with server(checkpoint, "ours") as (url, _), httpx.Client(base_url=url, timeout=600) as client:
        sound, rng, statuses = bodies(number=2)[0], random.Random(0), Counter[int]()
        expected = client.post("/v1/rewards", json=sound).json()["groups"][0]["scores"]
        for count in range(number):
            path, content = malformed(rng)
            answer = client.post(path, content=content)
            statuses[answer.status_code] += 1
            assert 400 <= answer.status_code < 500, (path, content[:500], answer.text)
            if count % 500 == 0:
                scores = client.post("/v1/rewards", json=sound).json()["groups"][0]["scores"]
                assert max(abs(a - b) for a, b in zip(scores, expected, strict=True)) < 1e-5
        print(
            f"{number:,} malformed requests: {dict(statuses)}; sound ones among them kept their scores"
        )


def main() -> None:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--be", choices=["ours", "padded", "single"], help=argparse.SUPPRESS)
    parser.add_argument("--latency", action="store_true")
    parser.add_argument("--soak", type=float, metavar="MINUTES")
    parser.add_argument("--malformed", type=int, metavar="N")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.be:
        be(options.checkpoint, options.be)
    elif options.latency:
        latency(options.checkpoint)
    elif options.soak:
        soak(options.checkpoint, options.soak)
    elif options.malformed:
        send_malformed(options.checkpoint, options.malformed)
    else:
        throughput(options.checkpoint)


if __name__ == "__main__":
    main()
