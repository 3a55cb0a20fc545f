//! What an open gate costs a launch. Target (design 6): 30 ns for the check by itself.
//!
//! `cargo bench -p weir-preload-core --features bench --bench gate`

use divan::{Bencher, black_box};

fn main() {
    divan::main();
}

/// The three words that a launch reads, and the word by which it says that it is under way.
#[divan::bench(sample_size = 10_000)]
fn check(bencher: Bencher<'_, '_>) {
    bencher.bench_local(|| black_box(weir_preload_core::check_gate()));
}
