//! Cost of admission for a request at an empty queue. Target (docs/spec/targets.md): at most 1 µs.

use divan::Bencher;
use http::{HeaderMap, HeaderName, HeaderValue};
use queue_proxy::bench::IdleGate;

fn main() {
    divan::main();
}

fn request() -> HeaderMap {
    [
        ("content-length", "120"),
        ("weir-budget-ms", "250"),
        ("user-agent", "x"),
        ("accept", "*/*"),
    ]
    .map(|(n, v)| (HeaderName::from_static(n), HeaderValue::from_static(v)))
    .into_iter()
    .collect()
}

/// A pod which holds the lease of its slot: a request waits for no message. The agent's part is once as often as requests, and beside them.
#[divan::bench]
fn admission_under_a_lease(bencher: Bencher<'_, '_>) {
    let gate = IdleGate::leased();
    let request = request();
    bencher.bench_local(|| gate.pass(&request));
}

/// As [`admission_under_a_lease`], with the messages which state that the queue has work and then none.
#[divan::bench]
fn admission_and_messages_under_a_lease(bencher: Bencher<'_, '_>) {
    let gate = IdleGate::leased();
    let request = request();
    bencher.bench_local(|| {
        gate.pass(&request);
        gate.take_messages()
    });
}

#[divan::bench(args = [false, true])]
fn admission_at_an_empty_queue(bencher: Bencher<'_, '_>, deadlines: bool) {
    let gate = IdleGate::new(deadlines);
    let request = request();
    bencher.bench_local(|| gate.pass(&request));
}
