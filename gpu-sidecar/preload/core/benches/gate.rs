//! Cost of an open gate per launch, and of the gate of memory per touch. Targets (docs/spec/targets.md): 30 ns for the check of a launch by
//! itself, 50 ns for a touch.
//!
//! `cargo bench -p weir-preload-core --features bench --bench gate`

use divan::{Bencher, black_box};

fn main() {
    divan::main();
}

/// The check itself: four words that a launch reads, and the word by which its thread marks a launch in progress.
#[divan::bench(sample_size = 10_000)]
fn check(bencher: Bencher<'_, '_>) {
    bencher.bench_local(|| black_box(weir_preload_core::check_gate()));
}

/// As above for a touch: one word that it reads, and its mark.
#[divan::bench(sample_size = 10_000)]
fn touch(bencher: Bencher<'_, '_>) {
    bencher.bench_local(|| black_box(weir_preload_core::check_memory_gate()));
}
