//! The gate at each launch (contracts §6: open while the process has a token), and the return of an unused token.
//!
//! # States
//!
//! Three things decide whether a launch passes: the parity of the agent's *epoch* (even: open), the bit *shut* of the process's own
//! word, and the work *in flight* in the same word, compared with its bound.
//!
//! ```text
//!                        add
//!     ┌─────────────┐ ─────────► ┌─────────────┐
//! ┌──►│ open        │            │ open        │──┐ add, subtract
//! │   │ even, –, 0  │ ◄───────── │ even, –, >0 │◄─┘
//! │   └─┬────▲────┬─┘  subtract  └──────┬──────┘
//! │     │    │    │ agent closes        │ agent closes
//! │     │    │    ▼                     ▼
//! │     │    │  ┌─────────────┐  ┌─────────────┐
//! │     │    └──│ closed      │◄─│ draining    │──┐ subtract
//! │     │ agent │ odd, –, 0   │  │ odd, –, >0  │◄─┘
//! │     │ opens └─────────────┘  └─────────────┘
//! │     │ begin_give_back
//! │     ▼
//! │   ┌─────────────┐ finish_give_back: ┌─────────────┐ agent    ┌─────────────┐
//! ├◄──│ shutting    │ ────────────────► │ returned    │ ───────► │ returned    │
//! │   │ even, shut  │  no launch found  │ even, shut  │  closes  │ odd, shut   │
//! │   └─────────────┘                   └──────┬──────┘          └──────┬──────┘
//! │    finish_give_back: a launch was found    │ agent opens            │ agent opens
//! │                                            ▼                        ▼
//! │               a parked thread: open ┌─────────────────────────────────────┐
//! └─────────────────────────────────────│ granted: a later even epoch, shut   │
//!                                       └─────────────────────────────────────┘
//! ```
//!
//! A launch that has passed before the word was shut adds to it in *shutting*, where it is found. *Draining* ends with `Closed` once a
//! barrier over all threads shows no launch in progress and nothing is in flight; *returned* begins with `Closed`.
//!
//! A launch marks itself in a word of its own thread ([`Threads`]) before it reads gate and word. To close the gate, a thread runs a
//! barrier over all threads and then looks for marks, so that launches need no fence.
//!
//! # Orderings
//!
//! The word is shut and opened under the lock of the token to which the bit belongs. So a thread that has seen a new token cannot open a
//! word that was shut again meanwhile, and nothing is asked or answered on the strength of a return which may yet be undone. Launches
//! take no lock: they change and read the word alone. The epoch that was asked for, the time since when the host is idle, and the usual gap guard
//! nothing; each is correct by itself.
//!
//! A thread waits only where the agent's next order changes the word on which it waits: at a closed epoch, or after the return of a token
//! is finished. While it may be undone, the thread polls. A change of page wakes all waiters: see [`crate::waiters`].

#[cfg(test)]
mod model;
mod parking;
mod state;
mod threads;
mod word;

pub use parking::{ParkStep, Parking, Work};
pub use state::{
    Gate, GiveBack, HUNG_AFTER, IN_FLIGHT_POLL, IN_FLIGHT_WAIT_MAX, RECHECK_INTERVAL, SHORT_GAP,
};
pub use threads::{LaunchGuard, THREADS, Thread, Threads};
pub use word::Word;
