//! The token service against well-behaved, malicious, flooding, stopped and dying processes. Tests assert the order of events,
//! simultaneous holders and totals, never how long something takes.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod figures;
mod idle_holders;
mod invalid_input;
mod lifecycle;
mod memory;
mod node;
mod process_exit;
mod puppet;
mod random;
mod restart;
mod slots;

/// Entry point of a child process: the test executable runs itself with this test alone.
#[test]
fn child() {
    puppet::child();
}
