"""PyTorch programs whose memory leaves the GPU by order of the agent and returns, which must compute what they computed before.

usage: evict.py ADDRESS POD [resnet|bert|decode|weights]…

ADDRESS is the agent's control API, POD the pod in which this program runs under the preload library. Each program runs beside evictions and
restores; its outputs are compared bit for bit with those before. `weights` holds WEIGHTS_MIB of blocks of 2 and 20 MiB (default: 16,384) and
prints how long they take to leave, changed and unchanged, and to return, beside what a pinned copy takes in the same run. Exit code 1: an
output differs, or an order was refused.
"""

import hashlib
import json
import os
import sys
import threading
import time
import urllib.error
import urllib.request

import torch
import torch_loop
from torch import nn

MIB = 1 << 20
address, pod = sys.argv[1], sys.argv[2]
failed = []


def check(holds, what):
    if not holds:
        failed.append(what)
        print("FAILED ", what)


def order(verb):
    request = urllib.request.Request(f"http://{address}/v1/instances/{pod}:{verb}?wait=true", data=b"", method="POST")
    try:
        with urllib.request.urlopen(request, timeout=200) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return json.load(error)


def instance():
    with urllib.request.urlopen(f"http://{address}/v1/instances/{pod}", timeout=10) as answer:
        return json.load(answer)


def evict_when_ready():
    """Evicts once the host memory has come."""
    until = time.monotonic() + 120
    while True:
        answer = order("evict")
        if answer.get("reason") != "no-memory" or time.monotonic() > until:
            return answer
        time.sleep(0.2)


def line(name, answer):
    if "ms" not in answer:
        return f"{name}: refused: {answer}"
    times = ", ".join(f"{key} {value:.1f}" for key, value in answer["ms"].items())
    return f"{name}: {answer['bytes'] / MIB:.0f} MiB, {answer['copied_bytes'] / MIB:.0f} copied; ms: {times}"


def digest(tensors):
    sha = hashlib.sha256()
    for tensor in tensors:
        sha.update(tensor.contiguous().cpu().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()


def cycles(name, compute, count=3):
    """Compares the outputs of a program before and after its memory was away: while it is idle, and while it computes."""
    expected = compute()
    check(compute() == expected, f"{name}: its own outputs differ")
    for number in range(count):
        away = evict_when_ready()
        print(line(f"{name}, evict {number}", away))
        check(away.get("state") == "host", f"{name}: evict: {away}")
        if number == 0:
            back = order("restore")
            print(line(f"{name}, restore {number}", back))
            check(back.get("state") == "resident", f"{name}: restore: {back}")
        # Otherwise its first use brings it back.
        check(compute() == expected, f"{name}: outputs differ after cycle {number}")
    moved, refused = 0, {}
    over = threading.Event()

    def orders():
        nonlocal moved
        while not over.is_set():
            answer = order("evict")
            if answer.get("state") == "host":
                moved += 1
            else:
                reason = answer.get("reason", "?")
                refused[reason] = refused.get(reason, 0) + 1
            time.sleep(0.02)

    thread = threading.Thread(target=orders)
    thread.start()
    until, rounds = time.monotonic() + 4, 0
    while time.monotonic() < until:
        check(compute() == expected, f"{name}: outputs differ under load")
        rounds += 1
    over.set()
    thread.join()
    compute()
    print(f"{name}: under load: {rounds} rounds with equal outputs, {moved} evictions, refused: {refused}")
    check(moved > 0, f"{name}: no eviction under load")


def network(name):
    model, shape = {"resnet": torch_loop.resnet, "bert": torch_loop.bert}[name]()
    model = model.cuda().eval()
    batches = [torch.randn(shape).cuda() for _ in range(3)]
    torch.cuda.synchronize()

    def compute():
        with torch.no_grad():
            return digest([model(batch) for batch in batches])

    compute()
    cycles(name, compute)


def decode():
    """Greedy decoding, a step of which is a CUDA graph: its launches carry addresses from before the eviction."""
    width, words, steps = 1024, 4096, 32
    layer = nn.TransformerEncoderLayer(width, 16, 4 * width, activation="gelu", batch_first=True)
    model = nn.TransformerEncoder(layer, 8, enable_nested_tensor=False).cuda().eval().half()
    embed = nn.Embedding(words, width).cuda().half()
    head = nn.Linear(width, words, bias=False).cuda().half()
    context = torch.zeros(1, 64, dtype=torch.long, device="cuda")

    def step():
        hidden = model(embed(context))
        context.copy_(torch.cat([context[:, 1:], head(hidden[:, -1]).argmax(-1, keepdim=True)], 1))

    with torch.no_grad():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()

    def compute():
        context.copy_(torch.arange(64, device="cuda").view(1, 64))
        seen = []
        for _ in range(steps):
            graph.replay()
            seen.append(context.clone())
        return digest(seen)

    compute()
    cycles("decode", compute)


def copy_rates():
    """Returns GB/s of pinned copies to the device and from it."""
    bytes_ = 1 << 30
    there, here = torch.empty(bytes_, dtype=torch.uint8, device="cuda"), torch.empty(bytes_, dtype=torch.uint8, pin_memory=True)
    rates = []
    for to, source in ((there, here), (here, there)):
        best = 0.0
        for _ in range(4):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            to.copy_(source, non_blocking=True)
            torch.cuda.synchronize()
            best = max(best, bytes_ / (time.perf_counter() - begin) / 1e9)
        rates.append(best)
    return rates


def weights():
    mib = int(os.environ.get("WEIGHTS_MIB", "16384"))
    blocks, left, number = [], mib, 0
    while left > 0:
        size = min(left, 2 if number % 10 == 0 else 20)
        blocks.append(torch.randint(0, 256, (size * MIB,), dtype=torch.uint8, device="cuda"))
        left -= size
        number += 1

    def compute():
        return [int(block.view(torch.int64).sum()) for block in blocks]

    expected = compute()
    torch.cuda.empty_cache()
    to_device, to_host = copy_rates()
    torch.cuda.empty_cache()
    print(f"weights: {mib} MiB in {len(blocks)} blocks; pinned copies: {to_device:.1f} GB/s to the device, {to_host:.1f} GB/s from it")
    wanted, until = mib * MIB, time.monotonic() + 120
    while time.monotonic() < until:
        if sum(own["pinned_bytes"] for own in instance()["processes"]) >= wanted:
            break
        time.sleep(0.2)
    # Registration follows the arrival of the memory.
    time.sleep(float(os.environ.get("REGISTER_SECONDS", "6")))
    for number in range(4):
        if number == 2:
            for block in blocks:
                block.add_(1)
            expected = compute()
        away = evict_when_ready()
        print(line(f"weights, evict {number}", away))
        free = torch.cuda.mem_get_info()
        back = order("restore")
        print(line(f"weights, restore {number}", back))
        check(back.get("state") == "resident", f"weights: restore: {back}")
        check(compute() == expected, f"weights: cycle {number}")
        if "ms" not in away or "ms" not in back:
            continue
        gigabytes = away["bytes"] / 1e9
        hash_s, copy_s, total_s = away["ms"]["hash"] / 1e3, back["ms"]["copy"] / 1e3, back["ms"]["total"] / 1e3
        print(f"weights, cycle {number}: hash {gigabytes / max(hash_s, 1e-9) / 1e3:.2f} TB/s; copy back {gigabytes / max(copy_s, 1e-9):.1f} GB/s, "
              f"with mapping {gigabytes / max(total_s, 1e-9):.1f} GB/s = {100 * gigabytes / max(total_s, 1e-9) / to_device:.0f} % of a pinned copy; "
              f"evict {away['ms']['total']:.0f} ms, restore {back['ms']['total']:.0f} ms; free as told {free[0] / MIB:.0f} MiB")
    begin = time.perf_counter()
    moved = [block.cpu() for block in blocks]
    torch.cuda.synchronize()
    there = time.perf_counter()
    moved = [block.cuda() for block in moved]
    torch.cuda.synchronize()
    print(f"weights, by .cpu() and .cuda(): {(there - begin) * 1e3:.0f} ms and {(time.perf_counter() - there) * 1e3:.0f} ms")


for program in sys.argv[3:] or ["resnet", "bert", "decode", "weights"]:
    begin = time.monotonic()
    if program in ("resnet", "bert"):
        network(program)
    elif program == "decode":
        decode()
    elif program == "weights":
        weights()
    else:
        sys.exit(f"{program}: allowed: resnet, bert, decode, weights")
    torch.cuda.empty_cache()
    print(f"{program}: {time.monotonic() - begin:.1f} s")
    sys.stdout.flush()
sys.exit(1 if failed else 0)
