//! A state of the search: what is left to decide, without what cannot matter any more.
//!
//! A plan is a sequence for each slot. It is built by giving the slot that is free first its next request, or none any
//! more; so no slot is ever given a request before one that is free earlier has what it gets, and each plan is built in
//! one way. Two states from which the same can be reached are made to look alike, so that [`super::seen`] finds them.

use policy::Time;

use super::case::{Case, FUNCTIONS_MAX, SLOTS_MAX, members};
use super::plan::Placed;

/// A slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Slot {
    /// When it is free, in ns; [`RETIRED`] if it gets no request any more.
    pub(super) free: u64,
    /// The models there that somebody may ask for, as a set.
    pub(super) resident: u32,
    /// Which it is.
    pub(super) number: u8,
}

/// It gets no request any more.
pub(super) const RETIRED: u64 = u64::MAX;

/// See the [module](self).
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    /// Requests that may still be run with a use.
    pub(super) open: u64,
    /// Of them, those that may still be in time.
    pub(super) hopeful: u64,
    /// By when they are free, then by what is there.
    pub(super) slots: [Slot; SLOTS_MAX],
    /// What was reached.
    pub(super) value: u32,
    /// Of each function, the requests in time that it wants yet; zero where requests alone count.
    pub(super) wanted: [u8; FUNCTIONS_MAX],
}

/// A way to go on: what can be reached by it at most (left open here), the step, and the state after it.
pub(super) type Way = (u32, Placed, State);

/// A case as the search asks for it.
pub(super) struct Problem<'a> {
    pub(super) case: &'a Case,
    /// Requests of each function, as a set.
    pub(super) of: [u64; FUNCTIONS_MAX],
    /// Requests by deadline, then index.
    pub(super) by_deadline: Vec<usize>,
    /// Functions count, and not requests.
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

    /// Nothing is decided; `wanted` by function.
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

    /// When a request would end if its model were on a slot that is free from `free` on.
    fn soonest(&self, request: usize, free: u64) -> u64 {
        let arrival = self.case.requests()[request].arrival.0;
        free.max(arrival).saturating_add(self.execution(request))
    }

    fn deadline(&self, request: usize) -> u64 {
        self.case.requests()[request].deadline.0
    }

    /// Leaves out what cannot matter any more, and puts slots in order.
    fn tidy(&self, state: &mut State) {
        state.slots.sort_unstable();
        let first = state.slots[0].free;
        if first == RETIRED {
            state.open = 0;
        }
        state.hopeful = members(state.open)
            .filter(|&at| self.soonest(at, first) <= self.deadline(at))
            .fold(0, |set, at| set | 1 << at);
        let mut asked = 0_u32;
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
            asked |= 1 << function;
            // A request that cannot be in time is of use before one that can and follows it on its slot. So no more of
            // them are needed, and those that came first can do what others can.
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
            // Nothing begins before: since when it has been free does not matter.
            slot.free = slot.free.max(begins);
            slot.resident &= asked;
            if slot.free == RETIRED {
                slot.resident = 0;
            }
        }
        state.slots.sort_unstable();
    }

    /// All ways to go on.
    pub(super) fn expand(&self, state: &State, into: &mut Vec<Way>) {
        for at in 0..SLOTS_MAX {
            let slot = state.slots[at];
            // Giving this one a request retires those that are free earlier. What follows here could follow on one of
            // them if it has the same models.
            let better = |other: &Slot| slot.resident & !other.resident == 0;
            if slot.free == RETIRED || state.slots[..at].iter().any(better) {
                continue;
            }
            for request in members(state.open) {
                self.give(state, at, request, into);
            }
        }
    }

    fn give(&self, state: &State, at: usize, request: usize, into: &mut Vec<Way>) {
        let slot = state.slots[at];
        let asked = self.case.requests()[request];
        let function = self.case.functions()[asked.function];
        let own = 1_u32 << asked.function;
        let loads = slot.resident & own == 0;
        let takes = if loads {
            function.swapped
        } else {
            function.execution
        };
        let from = slot.free.max(asked.arrival.0);
        let to = from.saturating_add(takes.0);
        let in_time = to <= asked.deadline.0;
        let others = state.open & self.of[asked.function] & !(1 << request);
        if !in_time {
            let used = members(others & state.hopeful)
                .any(|other| self.soonest(other, to) <= self.deadline(other));
            if !loads || !used {
                return;
            }
        }
        // Of requests of one function that are there, the same comes of each. The one that is in time with the least
        // to spare is best: the others can wait no worse. If none is in time, the one that is lost anyway.
        let waits = asked.arrival.0 <= slot.free;
        let is_better = |other: usize| {
            let its = self.case.requests()[other];
            let rank = |late: bool, deadline: Time, at: usize| (late, deadline, at);
            its.arrival.0 <= slot.free
                && rank(to > its.deadline.0, its.deadline, other)
                    < rank(!in_time, asked.deadline, request)
        };
        if waits && members(others).any(is_better) {
            return;
        }
        let mut after = *state;
        after.open &= !(1 << request);
        if in_time {
            if self.by_function {
                let wanted = &mut after.wanted[asked.function];
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
        let placed = Placed {
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
        // Every set of models that may stay and that no other could join; what nobody asks for is not among them.
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
                into.push((0, Placed { keeps, ..placed }, after));
            }
            if keeps == 0 {
                return;
            }
            keeps = (keeps - 1) & slot.resident;
        }
    }
}
