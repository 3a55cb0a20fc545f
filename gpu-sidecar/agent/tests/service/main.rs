//! The token service, attacked: processes that behave, that lie, that flood, that stop and that die. A test says in which
//! order things happen, who has tokens at the same time and what adds up; it never says how long something takes.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod death;
mod figures;
mod held;
mod lies;
mod life;
mod memory;
mod node;
mod puppet;
mod random;
mod restart;
mod slots;

/// A process of its own: the same program once more.
#[test]
fn child() {
    puppet::child();
}
