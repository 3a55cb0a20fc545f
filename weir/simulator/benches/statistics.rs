//! Cost of statistics for a request in virtual time. Target: with all of them enabled, the simulator processes 250,000
//! requests a second, so one record must be far below 4 µs.

use divan::{Bencher, black_box};
use policy::{Span, Time};
use simulator::statistics::{Histogram, Percentile, Timeline};

fn main() {
    divan::main();
}

/// Records a latency in the histogram of its function; with many functions they exceed the cache.
#[divan::bench(args = [1, 480])]
fn record(bencher: Bencher<'_, '_>, functions: u32) {
    let mut histograms = vec![Histogram::new(); functions as usize];
    let mut n = 0_u64;
    let mut at = 0;
    bencher.bench_local(|| {
        n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        // A stride that visits all of them in an order that a cache cannot predict.
        at = (at + 211) % histograms.len();
        histograms[at].record(Span(black_box(20_000_000 + (n >> 38))));
    });
}

/// Computes a percentile of recorded latencies.
#[divan::bench]
fn percentile(bencher: Bencher<'_, '_>) {
    let mut histogram = Histogram::new();
    for n in 0..100_000_u64 {
        histogram.record(Span(20_000_000 + n * 700));
    }
    bencher.bench_local(|| black_box(&histogram).percentile(black_box(Percentile::P98)));
}

/// Records the execution of one request on its slot, merges of bins included.
#[divan::bench]
fn busy(bencher: Bencher<'_, '_>) {
    #[expect(clippy::expect_used, reason = "settings are fixed")]
    let mut line = Timeline::new(Time(0), 4, 1_000, Span(1_000_000)).expect("even and wide");
    let mut at = 0;
    let mut slot = 0;
    bencher.bench_local(|| {
        at += 5_000_000;
        slot = (slot + 1) % 4;
        line.busy(slot, Time(at), Time(at + 20_000_000));
    });
}
