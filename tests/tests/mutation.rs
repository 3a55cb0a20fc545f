//! Parsers of foreign input on randomly mutated seeds: none panics, and invariants hold.
//!
//! Longer: `WEIR_MUTATION_SECONDS=3600 cargo test --release -p tests --test mutation -- --nocapture`.
#![expect(clippy::print_stderr, reason = "reports the number of inputs")]

use queue_proxy::fuzz::TARGETS;
use tests::mutation;

#[test]
fn no_parser_panics_on_mutated_seeds() {
    for (name, target) in TARGETS {
        let tried = mutation::run(&mutation::seeds(name), target);
        eprintln!("{name}: {tried} inputs");
    }
}
