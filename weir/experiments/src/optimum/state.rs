//! State of the search: the decisions that remain, normalized so that irrelevant differences vanish.
//!
//! A plan is a sequence for each slot. It is built by giving the slot that is free first its next request, or retiring the
//! slot; so no slot receives a request before the slots that are free earlier have received theirs, and each plan is built in
//! exactly one way. Equivalent states are normalized to be equal, so that [`super::visited`] detects them.

use policy::Time;

use super::case::{Case, FUNCTIONS_MAX, SLOTS_MAX, members};
use super::plan::Step;

/// State of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Slot {
    /// Time from which the slot is free, in nanoseconds; [`RETIRED`] if it receives no more requests.
    pub(super) free: u64,
    /// Set of resident models which a remaining request may use.
    pub(super) resident: u32,
    /// Index of the slot in the case.
    pub(super) number: u8,
}

/// Value of [`Slot::free`] for a slot that receives no more requests.
pub(super) const RETIRED: u64 = u64::MAX;

/// A partial plan, reduced to what matters for its continuation; see the [module](self).
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    /// Set of requests that may still be usefully executed.
    pub(super) open: u64,
    /// Subset of `open` that may still be in time.
    pub(super) hopeful: u64,
    /// Slots ordered by the time at which they are free, then by their models.
    pub(super) slots: [Slot; SLOTS_MAX],
    /// Value reached so far.
    pub(super) value: u32,
    /// For each function, the number of requests in time that it still needs; zero where requests are counted.
    pub(super) wanted: [u8; FUNCTIONS_MAX],
}

/// A branch: its bound (not set by [`Problem::expand`]), the step, and the state after it.
pub(super) type Branch = (u32, Step, State);

/// A case with the indexes that the search uses.
pub(super) struct Problem<'a> {
    pub(super) case: &'a Case,
    /// Set of the requests of each function.
    pub(super) of: [u64; FUNCTIONS_MAX],
    /// Requests ordered by deadline, then index.
    pub(super) by_deadline: Vec<usize>,
    /// Whether functions are counted instead of requests.
    pub(super) by_function: bool,
}

impl<'a> Problem<'a> {
    pub(super) fn new(case: &'a Case, by_function: bool) -> Self {
        let mut of = [0; FUNCTIONS_MAX];
        for (at, request) in case.requests().iter().enumerate() {
            of[request.function] |= 1 << at;
        }
        let mut by_deadline: Vec<usize> = (0..case.requests().len()).collect();
        by_deadline.sort_by_key(|&at| (case.requests()[at].deadline, at));
        Self {
            case,
            of,
            by_deadline,
            by_function,
        }
    }

    /// Returns the state without any decision; `wanted` is by function.
    pub(super) fn root(&self, wanted: [u8; FUNCTIONS_MAX]) -> State {
        let mut slots = [Slot {
            free: RETIRED,
            ..Slot::default()
        }; SLOTS_MAX];
        for (number, slot) in (0..).zip(&mut slots[..self.case.slots()]) {
            (slot.free, slot.number) = (0, number);
        }
        let fits = |&at: &usize| {
            let function = self.case.requests()[at].function;
            self.case.functions()[function].bytes <= self.case.memory()
        };
        let open = (0..self.case.requests().len())
            .filter(fits)
            .fold(0, |set, at| set | 1 << at);
        let mut state = State {
            open,
            hopeful: 0,
            slots,
            value: 0,
            wanted,
        };
        self.tidy(&mut state);
        state
    }

    pub(super) fn execution(&self, request: usize) -> u64 {
        let function = self.case.requests()[request].function;
        self.case.functions()[function].execution.0
    }

    /// Returns when a request would end on a slot that has its model and is free from `free` on.
    fn soonest(&self, request: usize, free: u64) -> u64 {
        let arrival = self.case.requests()[request].arrival.0;
        free.max(arrival).saturating_add(self.execution(request))
    }

    fn deadline(&self, request: usize) -> u64 {
        self.case.requests()[request].deadline.0
    }

    /// Normalizes a state: removes what cannot matter any more, and orders the slots.
    fn tidy(&self, state: &mut State) {
        state.slots.sort_unstable();
        let first = state.slots[0].free;
        if first == RETIRED {
            state.open = 0;
        }
        state.hopeful = members(state.open)
            .filter(|&at| self.soonest(at, first) <= self.deadline(at))
            .fold(0, |set, at| set | 1 << at);
        let mut useful = 0_u32;
        for (function, &of) in self.of.iter().enumerate() {
            let hopeful = state.hopeful & of;
            let enough = !self.by_function
                || state.wanted[function] > 0
                    && hopeful.count_ones() >= u32::from(state.wanted[function]);
            if hopeful == 0 || !enough {
                state.open &= !of;
                state.hopeful &= !of;
                state.wanted[function] = 0;
                continue;
            }
            useful |= 1 << function;
            // A request that cannot be in time is only useful to load the model for one that can and follows it on its slot. So
            // no more of them are needed than those, and the ones that arrive first can replace the others.
            let mut late = state.open & of & !hopeful;
            while late.count_ones() > hopeful.count_ones() {
                let last = 1 << (63 - late.leading_zeros());
                late &= !last;
                state.open &= !last;
            }
        }
        let begins = members(state.open)
            .map(|at| self.case.requests()[at].arrival.0)
            .next()
            .unwrap_or(RETIRED);
        for slot in &mut state.slots {
            // No request begins earlier, so the exact time since when the slot has been free does not matter.
            slot.free = slot.free.max(begins);
            slot.resident &= useful;
            if slot.free == RETIRED {
                slot.resident = 0;
            }
        }
        state.slots.sort_unstable();
    }

    /// Appends all branches of a state.
    pub(super) fn expand(&self, state: &State, into: &mut Vec<Branch>) {
        for at in 0..SLOTS_MAX {
            let slot = state.slots[at];
            // Using this slot retires those that are free earlier. A slot that is free earlier and has at least the same models
            // could run whatever follows here, so this branch is redundant.
            let better = |other: &Slot| slot.resident & !other.resident == 0;
            if slot.free == RETIRED || state.slots[..at].iter().any(better) {
                continue;
            }
            for request in members(state.open) {
                self.give(state, at, request, into);
            }
        }
    }

    fn give(&self, state: &State, at: usize, request: usize, into: &mut Vec<Branch>) {
        let slot = state.slots[at];
        let next = self.case.requests()[request];
        let function = self.case.functions()[next.function];
        let own = 1_u32 << next.function;
        let loads = slot.resident & own == 0;
        let takes = if loads {
            function.swapped
        } else {
            function.execution
        };
        let from = slot.free.max(next.arrival.0);
        let to = from.saturating_add(takes.0);
        let in_time = to <= next.deadline.0;
        let others = state.open & self.of[next.function] & !(1 << request);
        if !in_time {
            let used = members(others & state.hopeful)
                .any(|other| self.soonest(other, to) <= self.deadline(other));
            if !loads || !used {
                return;
            }
        }
        // Waiting requests of one function are interchangeable. If several can be in time, the one with the earliest deadline is
        // best, as the others can wait no worse; if none can, the first one to be lost.
        let waits = next.arrival.0 <= slot.free;
        let is_better = |other: usize| {
            let its = self.case.requests()[other];
            let rank = |late: bool, deadline: Time, at: usize| (late, deadline, at);
            its.arrival.0 <= slot.free
                && rank(to > its.deadline.0, its.deadline, other)
                    < rank(!in_time, next.deadline, request)
        };
        if waits && members(others).any(is_better) {
            return;
        }
        let mut after = *state;
        after.open &= !(1 << request);
        if in_time {
            if self.by_function {
                let wanted = &mut after.wanted[next.function];
                *wanted -= 1;
                after.value += u32::from(*wanted == 0);
            } else {
                after.value += 1;
            }
        }
        for earlier in &mut after.slots[..at] {
            earlier.free = RETIRED;
        }
        after.slots[at].free = to;
        let placed = Step {
            request,
            slot: usize::from(slot.number),
            from: Time(from),
            to: Time(to),
            loads,
            keeps: 0,
        };
        if !loads {
            self.tidy(&mut after);
            into.push((0, placed, after));
            return;
        }
        let room = self.case.memory() - function.bytes;
        // Every maximal set of models that may stay; models without remaining requests are not among them.
        let mut keeps = slot.resident;
        loop {
            let taken = self.case.bytes(keeps);
            let can_join =
                |other: usize| taken.saturating_add(self.case.functions()[other].bytes) <= room;
            let left = u64::from(slot.resident & !keeps);
            if taken <= room && !members(left).any(can_join) {
                let mut after = after;
                after.slots[at].resident = keeps | own;
                self.tidy(&mut after);
                into.push((0, Step { keeps, ..placed }, after));
            }
            if keeps == 0 {
                return;
            }
            keeps = (keeps - 1) & slot.resident;
        }
    }
}
