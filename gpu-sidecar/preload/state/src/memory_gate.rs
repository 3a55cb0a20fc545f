//! The gate at each touch of device memory (contracts §6, residency): open while the process's memory is on the device. In between it may be ajar:
//! all memory is mapped, and its contents are on the way ([`crate::restoring`]).
//!
//! A touch is a copy, a memset, or another call that uses memory without a kernel. It marks itself in a word of its own thread
//! ([`crate::gate::Threads::begin_touch`]) before it reads this gate, and launches read it as well. To move memory, a thread shuts the gate, runs a
//! barrier over all threads, and waits until neither a touch nor a launch is in progress: from then on nothing uses the memory but what
//! the device has yet to finish.

use std::sync::atomic::{AtomicU32, Ordering};

/// Gate at each touch of device memory. A futex word, another number after each change, whose two lowest bits are its state.
#[derive(Debug, Default)]
pub struct MemoryGate(AtomicU32);

/// Bits of the word with the state.
const STATE: u32 = 3;
const OPEN: u32 = 0;
const SHUT: u32 = 1;
const AJAR: u32 = 2;

impl MemoryGate {
    /// Creates an open gate.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Returns whether the gate is open.
    ///
    /// Acquire: pairs with [`Self::open`], so that a thread which finds the gate open sees the memory as it was restored. Against the thread that
    /// shuts it, the load is ordered by that thread's barrier, see [`crate::gate::Threads::begin`].
    #[inline]
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.0.load(Ordering::Acquire) & STATE == OPEN
    }

    /// Returns the futex word and its value while the gate is shut; `None` if it is open. A thread waits while the word has this value.
    ///
    /// Acquire, as [`Self::is_open`].
    #[must_use]
    pub fn shut_at(&self) -> Option<(&AtomicU32, u32)> {
        let value = self.0.load(Ordering::Acquire);
        (value & STATE == SHUT).then_some((&self.0, value))
    }

    /// Returns whether all memory is mapped, and its contents are on the way. Acquire, as [`Self::is_open`].
    #[must_use]
    pub fn is_ajar(&self) -> bool {
        self.0.load(Ordering::Acquire) & STATE == AJAR
    }

    /// Shuts the gate. Returns whether it was open. One thread at a time may call this and [`Self::open`].
    ///
    /// Touches in progress go on until a barrier over all threads shows none.
    pub fn shut(&self) -> bool {
        let is_open = self.is_open();
        if is_open {
            self.0.fetch_add(SHUT - OPEN, Ordering::SeqCst);
        }
        is_open
    }

    /// Sets a shut gate ajar, whose waiters are then to be woken. Returns whether it was shut.
    ///
    /// Release: what is known of the restore is visible to whoever finds the gate ajar.
    pub fn set_ajar(&self) -> bool {
        let is_shut = self.shut_at().is_some();
        if is_shut {
            self.0.fetch_add(AJAR - SHUT, Ordering::SeqCst);
        }
        is_shut
    }

    /// Opens the gate, whose waiters are then to be woken. Returns whether it was not open.
    ///
    /// Release: what was restored before is visible to every touch after it.
    pub fn open(&self) -> bool {
        let state = self.0.load(Ordering::Acquire) & STATE;
        if state != OPEN {
            // The next multiple: another number than that of any earlier open gate.
            self.0.fetch_add(STATE + 1 - state, Ordering::SeqCst);
        }
        state != OPEN
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    #[test]
    fn the_word_changes_with_each_change_of_the_gate() {
        let gate = MemoryGate::new();
        assert!(gate.is_open() && gate.shut_at().is_none());
        assert!(gate.shut() && !gate.shut());
        let (_, first) = gate.shut_at().unwrap();
        assert!(gate.open() && !gate.open());
        assert!(gate.is_open() && gate.shut_at().is_none());
        assert!(gate.shut());
        let (_, second) = gate.shut_at().unwrap();
        assert_ne!(
            first, second,
            "a waiter of the first time is not one of the second"
        );
    }

    #[test]
    fn a_gate_is_ajar_between_shut_and_open() {
        let gate = MemoryGate::new();
        assert!(!gate.set_ajar() && gate.is_open());
        let mut seen = Vec::new();
        for _ in 0..3 {
            assert!(gate.shut() && gate.shut_at().is_some());
            seen.push(gate.0.load(Ordering::Relaxed));
            assert!(gate.set_ajar() && gate.is_ajar());
            assert!(!gate.is_open() && gate.shut_at().is_none() && !gate.shut());
            seen.push(gate.0.load(Ordering::Relaxed));
            assert!(gate.open() && gate.is_open() && !gate.is_ajar());
            seen.push(gate.0.load(Ordering::Relaxed));
        }
        assert!(seen.is_sorted_by(|before, after| before < after));
    }

    /// Place of a thread that touches memory.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    enum At {
        Mark,
        Read,
        Touch,
        Unmark,
        Withdraw,
        ReadWord,
        Wait(u32),
        Waiting,
        Done,
    }

    /// Place of the thread that moves memory.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    enum Mover {
        Shut,
        Barrier,
        Look,
        Away,
        Open,
        Wake,
        Done,
    }

    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    struct Toucher {
        at: At,
        touches: u8,
        /// The mark as the mover sees it, and stores that it does not see yet.
        mark: bool,
        stores: VecDeque<bool>,
    }

    /// Two threads that touch memory and one that moves it away and back, in steps of one operation. A plain store becomes visible to others at any
    /// time after it is made, in the order of its thread, or at a barrier.
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    struct State {
        word: u32,
        touchers: [Toucher; 2],
        mover: Mover,
        moves: u8,
        is_away: bool,
    }

    #[derive(Clone, Copy, Default)]
    struct Fault {
        no_barrier: bool,
        marks_late: bool,
        waits_at_old_word: bool,
    }

    impl State {
        fn new() -> Self {
            let toucher = || Toucher {
                at: At::Mark,
                touches: 2,
                mark: false,
                stores: VecDeque::new(),
            };
            Self {
                word: 0,
                touchers: [toucher(), toucher()],
                mover: Mover::Shut,
                moves: 2,
                is_away: false,
            }
        }

        /// Runs a method of the gate on its present word.
        fn on_gate<T>(&mut self, f: impl FnOnce(&MemoryGate) -> T) -> T {
            let gate = MemoryGate(AtomicU32::new(self.word));
            let result = f(&gate);
            self.word = gate.0.into_inner();
            result
        }

        fn touch(&self, which: usize, fault: Fault) -> Result<Option<Self>, &'static str> {
            let mut after = self.clone();
            let is_open = after.on_gate(|gate| gate.is_open());
            let shut_at = after.on_gate(|gate| gate.shut_at().map(|(_, value)| value));
            let own = &mut after.touchers[which];
            own.at = match own.at {
                // The buffer of stores is finite.
                At::Mark if own.stores.len() > 1 => return Ok(None),
                At::Mark => {
                    if !fault.marks_late {
                        own.stores.push_back(true);
                    }
                    At::Read
                }
                At::Read if is_open => At::Touch,
                At::Read => At::Withdraw,
                At::Touch if self.is_away => return Err("a touch of memory that is not there"),
                At::Touch => {
                    if fault.marks_late {
                        own.stores.push_back(true);
                    }
                    At::Unmark
                }
                At::Unmark => {
                    own.stores.push_back(false);
                    own.touches -= 1;
                    if own.touches > 0 { At::Mark } else { At::Done }
                }
                At::Withdraw => {
                    own.stores.push_back(false);
                    At::ReadWord
                }
                At::ReadWord => match shut_at {
                    Some(word) => At::Wait(word),
                    None => At::Mark,
                },
                // The kernel compares and sleeps in one step.
                At::Wait(word) if word == self.word || fault.waits_at_old_word => At::Waiting,
                At::Wait(_) => At::Mark,
                At::Waiting | At::Done => return Ok(None),
            };
            Ok(Some(after))
        }

        fn step_mover(&self, fault: Fault) -> Option<Self> {
            let mut after = self.clone();
            after.mover = match self.mover {
                Mover::Shut => {
                    assert!(after.on_gate(MemoryGate::shut));
                    Mover::Barrier
                }
                Mover::Barrier => {
                    if !fault.no_barrier {
                        for own in &mut after.touchers {
                            while let Some(store) = own.stores.pop_front() {
                                own.mark = store;
                            }
                        }
                    }
                    Mover::Look
                }
                Mover::Look if self.touchers.iter().any(|own| own.mark) => return None,
                Mover::Look => {
                    after.is_away = true;
                    Mover::Away
                }
                Mover::Away => {
                    after.is_away = false;
                    Mover::Open
                }
                Mover::Open => {
                    assert!(after.on_gate(MemoryGate::open));
                    Mover::Wake
                }
                Mover::Wake => {
                    for own in &mut after.touchers {
                        if own.at == At::Waiting {
                            own.at = At::Mark;
                        }
                    }
                    after.moves -= 1;
                    if after.moves > 0 {
                        Mover::Shut
                    } else {
                        Mover::Done
                    }
                }
                Mover::Done => return None,
            };
            Some(after)
        }

        fn next(&self, fault: Fault) -> Result<Vec<Self>, &'static str> {
            let mut next: Vec<Self> = self.step_mover(fault).into_iter().collect();
            for which in 0..self.touchers.len() {
                next.extend(self.touch(which, fault)?);
                let mut after = self.clone();
                let own = &mut after.touchers[which];
                if let Some(store) = own.stores.pop_front() {
                    own.mark = store;
                    next.push(after);
                }
            }
            let is_done = self.touchers.iter().all(|own| own.at == At::Done);
            if next.is_empty() && !is_done {
                return Err("a touch waits for ever");
            }
            Ok(next)
        }
    }

    fn explore(fault: Fault) -> Result<usize, &'static str> {
        crate::explore::explore(State::new(), |state| state.next(fault))
    }

    #[test]
    fn no_touch_runs_while_memory_is_away_and_none_waits_for_ever() {
        let states = explore(Fault::default()).expect("the gate is correct");
        assert!(states > 10_000, "{states}");
    }

    #[test]
    fn a_missing_barrier_a_late_mark_and_a_wait_at_an_old_word_are_noticed() {
        let no_barrier = Fault {
            no_barrier: true,
            ..Fault::default()
        };
        assert!(explore(no_barrier).unwrap_err().contains("not there"));
        let marks_late = Fault {
            marks_late: true,
            ..Fault::default()
        };
        assert!(explore(marks_late).unwrap_err().contains("not there"));
        let waits_at_old_word = Fault {
            waits_at_old_word: true,
            ..Fault::default()
        };
        assert!(explore(waits_at_old_word).unwrap_err().contains("for ever"));
    }
}
