//! Upper bound on the value that can be reached from a state.
//!
//! **Requests.** Let slots share their work: the requests with deadlines up to d then need at most the time that slots have
//! between being free and d. The largest number of requests that satisfy this for each d is found by adding them by deadline and
//! removing the largest whenever the time is exceeded (Moore and Hodgson). A request costs its execution. A function without a
//! resident model also costs a load; each of its m requests that may be in time carries one m-th of it, which
//! never overestimates the cost, because those that run pay for one load together.
//!
//! The same holds for the requests that arrive from some time on, on slots that begin then, with all earlier ones counted as
//! in time; the least of these bounds is used.
//!
//! **Functions.** Each costs the requests that it still needs, by the latest of their deadlines.

use super::case::{FUNCTIONS_MAX, REQUESTS_MAX, members};
use super::state::{Problem, RETIRED, State};

/// Sizes of the selected items, and their sum.
struct Selection {
    sizes: [u64; REQUESTS_MAX],
    count: usize,
    sum: u64,
}

impl Selection {
    const fn new() -> Self {
        Self {
            sizes: [0; REQUESTS_MAX],
            count: 0,
            sum: 0,
        }
    }

    /// Adds an item, and removes the largest while the sum exceeds `room`.
    fn add(&mut self, size: u64, room: u64) {
        self.sizes[self.count] = size;
        self.count += 1;
        self.sum += size;
        while self.sum > room {
            let sizes = &self.sizes[..self.count];
            let Some(largest) = (0..self.count).max_by_key(|&at| sizes[at]) else {
                return;
            };
            self.sum -= self.sizes[largest];
            self.count -= 1;
            self.sizes[largest] = self.sizes[self.count];
        }
    }
}

impl Problem<'_> {
    /// Returns an upper bound on the value. O(n³) in the remaining requests, O(n²) where few must be removed.
    pub(super) fn bound(&self, state: &State) -> u32 {
        let more = if self.by_function {
            self.functions(state)
        } else {
            self.requests(state)
        };
        state.value + more
    }

    fn requests(&self, state: &State) -> u32 {
        let resident = resident(state);
        let mut least = state.hopeful.count_ones();
        let (mut before, mut begins) = (0, None);
        for first in members(state.hopeful) {
            let arrival = self.case.requests()[first].arrival.0;
            // Requests that arrive together all belong to the remainder.
            if begins != Some(arrival) {
                begins = Some(arrival);
                let left = state.hopeful & (u64::MAX << first);
                least = least.min(before + self.fitting(state, left, resident, arrival));
            }
            before += 1;
        }
        least
    }

    /// Returns how many of the requests in the set `left`, which arrive from `begins` on, may be in time. `resident`: the
    /// functions that need no load.
    fn fitting(&self, state: &State, left: u64, resident: u32, begins: u64) -> u32 {
        let mut sizes = [0; FUNCTIONS_MAX];
        for (function, size) in sizes[..self.case.functions().len()].iter_mut().enumerate() {
            let own = &self.case.functions()[function];
            let carried = (left & self.of[function]).count_ones();
            // A request that arrived before may have loaded the model by then.
            let all_left = state.open & self.of[function] & !self.from(begins) == 0;
            let share = if carried > 0 && resident >> function & 1 == 0 && all_left {
                own.swapped.less(own.execution).0 / u64::from(carried)
            } else {
                0
            };
            *size = own.execution.0 + share;
        }
        let mut selection = Selection::new();
        for &at in &self.by_deadline {
            if left >> at & 1 == 1 {
                let request = self.case.requests()[at];
                let room = room(state, begins, request.deadline.0);
                selection.add(sizes[request.function], room);
            }
        }
        u32::try_from(selection.count).unwrap_or(u32::MAX)
    }

    /// Returns the set of requests that arrive from `begins` on.
    fn from(&self, begins: u64) -> u64 {
        let first = self
            .case
            .requests()
            .partition_point(|request| request.arrival.0 < begins);
        u64::MAX
            .checked_shl(u32::try_from(first).unwrap_or(u32::MAX))
            .unwrap_or(0)
    }

    fn functions(&self, state: &State) -> u32 {
        let resident = resident(state);
        let mut wanting = [(0, 0); FUNCTIONS_MAX];
        let mut count = 0;
        for (function, &wanted) in state.wanted.iter().enumerate() {
            let hopeful = state.hopeful & self.of[function];
            let latest = members(hopeful)
                .map(|at| self.case.requests()[at].deadline.0)
                .max();
            let Some(latest) = latest.filter(|_| wanted > 0) else {
                continue;
            };
            let own = &self.case.functions()[function];
            let load = match resident >> function & 1 {
                0 => own.swapped.less(own.execution).0,
                _ => 0,
            };
            let work = own.execution.0.saturating_mul(u64::from(wanted));
            wanting[count] = (latest, work.saturating_add(load));
            count += 1;
        }
        wanting[..count].sort_unstable();
        let mut selection = Selection::new();
        for &(latest, work) in &wanting[..count] {
            selection.add(work, room(state, 0, latest));
        }
        u32::try_from(selection.count).unwrap_or(u32::MAX)
    }
}

/// Returns the set of functions with a model that is resident on some slot.
fn resident(state: &State) -> u32 {
    state.slots.iter().fold(0, |set, slot| set | slot.resident)
}

/// Returns the sum of the times that all slots have from `begins` until `end`.
fn room(state: &State, begins: u64, end: u64) -> u64 {
    let slots = state.slots.iter().filter(|slot| slot.free != RETIRED);
    slots
        .map(|slot| end.saturating_sub(slot.free.max(begins)))
        .fold(0, u64::saturating_add)
}
