//! The position of a function with waiting requests among the others.

use super::line::NONE;
use super::{Function, LateRule, LowRule, Order, Queue, SpareRule, Turn, get_mut};
use crate::heap::IndexedHeap;
use crate::pool::FunctionId;
use crate::{RequestId, Span, Time};

/// Number of objectives after which a waiting low or late head is aged.
const AGED_OBJECTIVES: u64 = 10;
/// Parts of the objective by which requests give way: of a function with misses to spare, and of one in the low group.
const FIFTHS_SPARE: u64 = 1;
const FIFTHS_LOW: u64 = 2;

const HIGH: u8 = 1;
const LOW: u8 = 2;
const TURNING: u8 = 4;
const LATE: u8 = 8;
const RIPENING: u8 = 16;
const RIPE: u8 = 32;
const HARMLESS: u8 = 64;

/// Latest start time, plus the time by which the request gives way (or arrival, under [`Order::Arrival`]), then arrival and
/// id.
type Key = (Time, Time, RequestId);

/// Keys of one function, one for each file that contains it.
#[derive(Clone, Copy, Debug, Default)]
struct FileKeys {
    high: Option<Key>,
    low: Option<(i64, Key)>,
    harmless: Option<Key>,
    turning: Option<Time>,
    late: Option<(Time, RequestId)>,
    ripening: Option<Time>,
    ripe: Option<(Time, RequestId)>,
}

/// Functions, ordered by their heads.
#[derive(Clone, Debug)]
pub(super) struct Files {
    /// Functions of the high group, and of the low group under [`LowRule::AmongHighGroup`].
    high: IndexedHeap<Key>,
    low: IndexedHeap<(i64, Key)>,
    /// Functions of `low` by latest start time, under [`LowRule::FirstWhereHarmless`].
    harmless: IndexedHeap<Key>,
    /// Functions with a key later than their latest start, or in `low`, by the time at which their head turns late, where
    /// it loses its place by that.
    turning: IndexedHeap<Time>,
    late: IndexedHeap<(Time, RequestId)>,
    /// Functions with a low or late head by the time at which it is aged.
    ripening: IndexedHeap<Time>,
    ripe: IndexedHeap<(Time, RequestId)>,
}

impl Files {
    pub(super) const fn new() -> Self {
        Self {
            high: IndexedHeap::new(),
            low: IndexedHeap::new(),
            harmless: IndexedHeap::new(),
            turning: IndexedHeap::new(),
            late: IndexedHeap::new(),
            ripening: IndexedHeap::new(),
            ripe: IndexedHeap::new(),
        }
    }

    /// Returns the next function in order and the reason.
    pub(super) fn first(&self, aged: bool) -> Option<(u32, Turn)> {
        if aged && let Some((_, function)) = self.ripe.peek() {
            return Some((function, Turn::Aged));
        }
        if let Some((_, function)) = self.high.peek() {
            return Some((function, Turn::High));
        }
        if let Some((_, function)) = self.low.peek() {
            return Some((function, Turn::Low));
        }
        let (_, function) = self.late.peek()?;
        Some((function, Turn::Late))
    }

    /// Inserts a function into the files for which it has a key, and returns their bit set.
    fn put(&mut self, function: u32, keys: &FileKeys) -> u8 {
        let mut filed = 0;
        if let Some(key) = keys.high {
            self.high.push(function, key);
            filed |= HIGH;
        }
        if let Some(key) = keys.low {
            self.low.push(function, key);
            filed |= LOW;
        }
        if let Some(key) = keys.harmless {
            self.harmless.push(function, key);
            filed |= HARMLESS;
        }
        if let Some(key) = keys.turning {
            self.turning.push(function, key);
            filed |= TURNING;
        }
        if let Some(key) = keys.late {
            self.late.push(function, key);
            filed |= LATE;
        }
        if let Some(key) = keys.ripening {
            self.ripening.push(function, key);
            filed |= RIPENING;
        }
        if let Some(key) = keys.ripe {
            self.ripe.push(function, key);
            filed |= RIPE;
        }
        filed
    }

    fn remove(&mut self, function: u32, filed: u8) {
        if filed & HIGH != 0 {
            self.high.remove(function);
        }
        if filed & LOW != 0 {
            self.low.remove(function);
        }
        if filed & HARMLESS != 0 {
            self.harmless.remove(function);
        }
        if filed & TURNING != 0 {
            self.turning.remove(function);
        }
        if filed & LATE != 0 {
            self.late.remove(function);
        }
        if filed & RIPENING != 0 {
            self.ripening.remove(function);
        }
        if filed & RIPE != 0 {
            self.ripe.remove(function);
        }
    }
}

impl Queue {
    /// Returns whether the next dispatch is reserved for a request that has waited too long.
    pub(super) const fn ages_now(&self) -> bool {
        self.settings.aging_every > 0 && self.dispatched + 1 >= self.settings.aging_every
    }

    /// Returns whether late requests of this function lose their place.
    pub(super) const fn moves_late(&self, entry: &Function) -> bool {
        match (self.settings.order, self.settings.late) {
            (Order::Arrival, _) | (_, LateRule::InPlace) => false,
            (_, LateRule::BehindAll) => true,
            (_, LateRule::BehindLowGroup) => {
                entry.high || matches!(self.settings.low, LowRule::AmongHighGroup)
            }
        }
    }

    /// Returns the function whose request is next, and the reason.
    pub(super) fn first(&self) -> Option<(FunctionId, Turn)> {
        let (function, turn) = self.files.first(self.ages_now())?;
        let function = FunctionId(function);
        if turn != Turn::High {
            return Some((function, turn));
        }
        if let Some(low) = self.first_harmless(function) {
            return Some((low, Turn::Low));
        }
        let is_low = self.settings.low == LowRule::AmongHighGroup && !self.entry(function).high;
        Some((function, if is_low { Turn::Low } else { Turn::High }))
    }

    /// Returns the function of the low group that may go before `high`, the first of the high group.
    fn first_harmless(&self, high: FunctionId) -> Option<FunctionId> {
        let ((latest, ..), low) = self.files.harmless.peek()?;
        let after = self.now.after(self.entry(FunctionId(low)).estimate);
        let limit = self.head(self.timely(self.entry(high))).latest_start;
        (latest < limit && after <= limit).then_some(FunctionId(low))
    }

    /// Returns the first request of the line that has not lost its place for being late, or [`NONE`].
    pub(super) const fn timely(&self, entry: &Function) -> u32 {
        if self.moves_late(entry) {
            entry.on_time
        } else {
            entry.line.first
        }
    }

    /// Returns the time by which a function's requests give way to those of others.
    fn gives_way(&self, entry: &Function) -> Span {
        let fifth = entry.objective.0 / 5;
        let fifths = match self.settings.order {
            Order::Arrival | Order::LatestStart => 0,
            Order::RequiredRequests(_) if !entry.high => match self.settings.low {
                LowRule::AmongHighGroup => FIFTHS_LOW,
                LowRule::BehindHighGroup | LowRule::FirstWhereHarmless => 0,
            },
            Order::RequiredRequests(_) => match self.settings.spare {
                SpareRule::GivesWay if entry.has_spare() => FIFTHS_SPARE,
                SpareRule::GivesWay | SpareRule::Equal => 0,
            },
        };
        Span(fifth * fifths)
    }

    /// Advances the time: runs a due step, and refiles functions with heads that have turned late or have waited too
    /// long.
    pub(super) fn advance(&mut self, now: Time) {
        self.now = self.now.max(now);
        self.step_if_due();
        if self.settings.order == Order::Arrival {
            return;
        }
        while self.settings.late != LateRule::InPlace
            && let Some(((latest, ..), function)) = self.files.high.peek()
            && latest < self.now
        {
            self.file(FunctionId(function));
        }
        while let Some((latest, function)) = self.files.turning.peek()
            && latest < self.now
        {
            self.file(FunctionId(function));
        }
        while let Some((ripe, function)) = self.files.ripening.peek()
            && ripe <= self.now
        {
            self.file(FunctionId(function));
        }
    }

    /// Finds the first request of the line that is not late, starting from the previous one.
    pub(super) fn settle(&mut self, function: FunctionId) {
        let now = self.now;
        if self.settings.order == Order::Arrival {
            // Lines are not ordered by deadline, and lateness has no meaning.
            return;
        }
        let Some(entry) = get_mut(&mut self.functions, function) else {
            return;
        };
        let mut at = entry.on_time;
        loop {
            let before = match at {
                NONE => entry.line.last,
                at => self.places.at(at).before,
            };
            if before == NONE || entry.latest_start(self.places.at(before).deadline) < now {
                break;
            }
            at = before;
        }
        while at != NONE && entry.latest_start(self.places.at(at).deadline) < now {
            at = self.places.at(at).behind;
        }
        entry.on_time = at;
    }

    /// Moves a function to the files where its heads belong.
    pub(super) fn file(&mut self, function: FunctionId) {
        let filed = self.entry(function).filed;
        self.files.remove(function.0, filed);
        self.settle(function);
        let keys = self.file_keys(self.entry(function));
        let filed = self.files.put(function.0, &keys);
        if let Some(entry) = get_mut(&mut self.functions, function) {
            entry.filed = filed;
        }
    }

    fn file_keys(&self, entry: &Function) -> FileKeys {
        let mut keys = FileKeys::default();
        if entry.held || entry.line.first == NONE {
            return keys;
        }
        let moves_late = self.moves_late(entry);
        let first = self.places.at(entry.line.first);
        let keeps_place = self.timely(entry);
        if keeps_place != NONE {
            let place = self.places.at(keeps_place);
            let latest = match self.settings.order {
                Order::Arrival => place.arrival,
                Order::RequiredRequests(_) | Order::LatestStart => {
                    entry.latest_start(place.deadline)
                }
            };
            let way = self.gives_way(entry);
            let key = (latest.after(way), place.arrival, place.request);
            if entry.high || self.settings.low == LowRule::AmongHighGroup {
                keys.high = Some(key);
            } else {
                keys.low = Some((entry.required, key));
                if self.settings.low == LowRule::FirstWhereHarmless {
                    keys.harmless = Some(key);
                }
            }
            if moves_late && (way > Span::ZERO || keys.low.is_some()) {
                keys.turning = Some(latest);
            }
        }
        let oldest = (first.arrival, first.request);
        if moves_late && entry.on_time != entry.line.first {
            keys.late = Some(oldest);
        }
        let may_age = !entry.high || keys.late.is_some();
        if may_age && entry.objective.0 > 0 && self.settings.aging_every > 0 {
            let waits = entry.objective.0.saturating_mul(AGED_OBJECTIVES);
            let ripe = first.arrival.after(Span(waits));
            if ripe <= self.now {
                keys.ripe = Some(oldest);
            } else {
                keys.ripening = Some(ripe);
            }
        }
        keys
    }
}
