"""Servers of models which do not fit the GPU together, and requests to them through their queue-proxies.

usage: swap.py serve resnet|bert|decode   a PyTorch server on 127.0.0.1; prints the port that it has found
       swap.py drive CONTROL SCALE GBPS POD=IP:PORT POD=IP:PORT POD=IP:PORT

`serve` has a model of SWAP_MIB of weights (default: 2048), all of which a request uses: a network, those of `torch_loop` or an encoder, and layers
behind it.
`drive` sends requests: to one pod after the other, so that each moves a model; to all at random, from eight clients; to one all the time,
while the others' models move. CONTROL is the agent's control API, SCALE what sizes are divided by on a software GPU (1 on a real one), GBPS
what a copy from pinned memory reaches, in GB/s. It compares each answer with the first one to the same input. Exit code 1: an answer differs, a
request was not answered with 200, models do not move, or the restore of one, or what a request takes longer for it, exceeds 1.25 times its
bytes at that rate; of the request beyond 5 ms and the eviction that it waits for as well.
"""

import hashlib
import http.client
import json
import os
import random
import statistics
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MIB = 1 << 20
INPUTS = 4
ROUNDS = 20
SECONDS = 10
CLIENTS = 8
RATIO_MAX = 1.25
# For the hand-over of the lease and a client in Python.
REQUEST_MS = 5


def serve(kind):
    import torch
    import torch_loop
    from torch import nn

    width = 4096
    if kind == "decode":
        layer = nn.TransformerEncoderLayer(1024, 16, 4096, activation="gelu", batch_first=True)
        network, shape = nn.TransformerEncoder(layer, 8, enable_nested_tensor=False), (1, 64, 1024)
    else:
        network, shape = {"resnet": torch_loop.resnet, "bert": torch_loop.bert}[kind]()
    used = sum(weight.numel() * weight.element_size() for weight in network.parameters())
    left = max(int(os.environ.get("SWAP_MIB", "2048")) * MIB - used, 0)
    behind = [nn.Linear(width, width, bias=False) for _ in range(left // (width * width * 4))]
    network, behind = network.cuda().eval(), nn.ModuleList(behind).cuda().eval()
    lock = threading.Lock()

    def compute(seed):
        generator = torch.Generator().manual_seed(seed)
        batch = torch.randn(shape, generator=generator).cuda()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.no_grad():
            begin.record()
            row = network(batch).reshape(-1)[:width]
            row = nn.functional.pad(row, (0, width - row.numel()))
            for layer in behind:
                row = torch.tanh(layer(row))
            end.record()
        out = row.cpu().numpy().tobytes()
        return {"digest": hashlib.sha256(out).hexdigest(), "ms": begin.elapsed_time(end)}

    compute(0)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Head and body are written apart, and the second would wait for the client's acknowledgement.
        disable_nagle_algorithm = True

        def answer(self, body):
            text = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def do_GET(self):
            self.answer({})

        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                self.answer(compute(body["seed"]))

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(f"listening on 127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


class Check:
    def __init__(self, control, pods):
        self.control, self.pods = control, pods
        self.expected, self.failed, self.lock = {}, [], threading.Lock()

    def fails(self, what):
        with self.lock:
            self.failed.append(what)
            if len(self.failed) <= 10:
                print("FAILED ", what, flush=True)

    def infer(self, pod, seed):
        """Returns the time of a request in ms, from the client's side and on the GPU as its server states it."""
        ip, port = self.pods[pod].rsplit(":", 1)
        begin = time.perf_counter()
        connection = http.client.HTTPConnection(ip, int(port), timeout=100)
        try:
            connection.request("POST", "/infer", json.dumps({"input": 1, "output": 1, "seed": seed}), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read()
            body = json.loads(text) if answer.status == 200 else {}
        except (OSError, ValueError, http.client.HTTPException) as error:
            self.fails(f"{pod}: {error!r}")
            return 0.0, 0.0
        finally:
            connection.close()
        took = (time.perf_counter() - begin) * 1e3
        if answer.status != 200:
            self.fails(f"{pod}: {answer.status} {text[:200]!r}")
            return took, 0.0
        # A model-server compares what it computes itself.
        output = body.get("digest", body.get("right"))
        with self.lock:
            first = self.expected.setdefault((pod, seed), output)
        if output in (None, False) or output != first:
            self.fails(f"{pod}: the output for {seed} differs: {output}, {first}")
        computed_ns = body.get("answered_ns", 0) - body.get("read_ns", 0)
        return took, body.get("ms", computed_ns / 1e6)

    def moves(self, pod):
        with urllib.request.urlopen(f"http://{self.control}/v1/instances/{pod}", timeout=10) as answer:
            instance = json.load(answer)
        moves = instance["moves"]
        return {
            "restores": moves["restores"],
            "bytes": moves["restored_bytes"],
            "copied": moves["evicted_copied_bytes"],
            "restore_ns": moves["restore_times"]["sum_ns"],
            "evictions": moves["evictions"],
            "evict_ns": moves["evict_times"]["sum_ns"],
        }

    def since(self, before):
        total = dict.fromkeys(next(iter(before.values())), 0)
        for pod, old in before.items():
            for key, value in self.moves(pod).items():
                total[key] += value - old[key]
        return total

    def snapshot(self):
        return {pod: self.moves(pod) for pod in self.pods}


def drive(control, scale, rate, pods):
    check = Check(control, pods)
    names = list(pods)
    for pod in names:
        for seed in range(INPUTS):
            check.infer(pod, seed)
    resident = {pod: statistics.median(check.infer(pod, n % INPUTS)[0] for n in range(INPUTS * 3)) for pod in names}

    # Each of three models in turn, of which two fit: each request moves one.
    before, took = check.snapshot(), {pod: [] for pod in names}
    for number in range(ROUNDS):
        for pod in names:
            took[pod].append(check.infer(pod, number % INPUTS)[0])
    moved = check.since(before)
    if moved["restores"] < ROUNDS * len(names) * 0.9:
        check.fails(f"{moved['restores']} moves for {ROUNDS * len(names)} requests, each of which needs one")
        return check
    mib = moved["bytes"] / moved["restores"] / MIB * scale
    wire = moved["bytes"] * scale / moved["restores"] / rate / 1e6
    restore = moved["restore_ns"] / moved["restores"] / 1e6
    evict = moved["evict_ns"] / max(moved["evictions"], 1) / 1e6
    print(f"in turn: {ROUNDS * len(names)} requests, {moved['restores']} moves of {mib:.0f} MiB, {moved['copied']} bytes copied out; "
          f"evict {evict:.1f} ms, restore {restore:.1f} ms, {restore / wire:.2f} times its bytes at the {rate:.1f} GB/s of a pinned copy (at most {RATIO_MAX})")
    switch = statistics.median(statistics.median(took[pod]) - resident[pod] for pod in names)
    switch_max = RATIO_MAX * wire + evict + REQUEST_MS
    print(f"in turn: a request takes {statistics.median(resident.values()):.1f} ms if its model is there, {switch:.1f} ms more if it is not, "
          f"{switch / wire:.2f} times its bytes (at most {switch_max:.1f} ms)")
    if restore > RATIO_MAX * wire or switch > switch_max:
        check.fails(f"a restore takes {restore / wire:.2f} and a switch {switch / wire:.2f} times the bytes at the rate of a pinned copy")

    # All at random, at the same time.
    until, counts = time.monotonic() + SECONDS, [0] * CLIENTS

    def client(number):
        pick = random.Random(number)
        while time.monotonic() < until:
            check.infer(pick.choice(names), pick.randrange(INPUTS))
            counts[number] += 1

    before = check.snapshot()
    clients = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()
    print(f"at random: {sum(counts)} requests in {SECONDS} s from {CLIENTS} clients, {check.since(before)['restores']} moves")

    # One computes all the time, while the models of the others move.
    first, others = names[0], names[1:]

    def busy(seconds):
        until, times = time.monotonic() + seconds, []
        while time.monotonic() < until:
            times.append(check.infer(first, 0)[1])
        return sorted(times)

    alone = busy(SECONDS / 2)
    until = time.monotonic() + SECONDS

    def disturb():
        while time.monotonic() < until:
            for pod in others:
                check.infer(pod, 0)

    before = check.snapshot()
    other = threading.Thread(target=disturb)
    other.start()
    beside = busy(SECONDS)
    other.join()
    moved = check.since(before)["restores"]
    if moved == 0:
        check.fails("no model moved beside the requests")
    middle = [statistics.median(times) for times in (alone, beside)]
    last = [times[len(times) * 9 // 10] for times in (alone, beside)]
    print(f"beside loads: a request of {first} computes for {middle[0]:.2f} ms alone and {middle[1]:.2f} ms beside {moved} moves of the others "
          f"({100 * (middle[1] / middle[0] - 1):+.1f} %), 90th percentile {last[0]:.2f} and {last[1]:.2f} ms")
    return check


if sys.argv[1:2] == ["serve"] and len(sys.argv) == 3:
    serve(sys.argv[2])
elif sys.argv[1:2] == ["drive"] and len(sys.argv) > 5:
    of_pods = dict(argument.split("=", 1) for argument in sys.argv[5:])
    failures = drive(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), of_pods).failed
    sys.exit(1 if failures else 0)
else:
    print(__doc__, file=sys.stderr)
    sys.exit(2)
