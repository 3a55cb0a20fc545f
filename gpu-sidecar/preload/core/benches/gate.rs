//! Cost of an open gate per launch. Target (docs/spec/targets.md): 30 ns for the check by itself.
//!
//! `cargo bench -p weir-preload-core --features bench --bench gate`

use divan::{Bencher, black_box};

fn main() {
    divan::main();
}

/// The check itself: three words that a launch reads, and the word by which its thread marks a launch in progress.
#[divan::bench(sample_size = 10_000)]
fn check(bencher: Bencher<'_, '_>) {
    bencher.bench_local(|| black_box(weir_preload_core::check_gate()));
}
