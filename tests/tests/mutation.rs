//! Parsers of what others write, on seeds changed at random: nothing panics, and what always holds does.
//!
//! Longer: `WEIR_MUTATION_SECONDS=3600 cargo test --release -p tests --test mutation -- --nocapture`.
#![expect(clippy::print_stderr, reason = "says how much was tried")]

use queue_proxy::fuzz::TARGETS;
use tests::mutation;

#[test]
fn no_parser_is_broken_by_changed_seeds() {
    for (name, target) in TARGETS {
        let tried = mutation::run(&mutation::seeds(name), target);
        eprintln!("{name}: {tried} inputs");
    }
}
