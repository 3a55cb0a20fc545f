//! The queue of a pool: which function's request runs next (M2.13, mechanisms §2.2).
//!
//! Each function has a line of its own. Its requests have one objective and one estimate, so their order of arrival is
//! that of their latest start times (LST = deadline − estimate). Where deadlines differ, as after a budget was cut, the
//! line is ordered by deadline. [`Order`] determines the order across functions.
//!
//! A function is *judged* when one of its requests arrives or completes, and every 5 s together with all others, right
//! after the threshold has moved. Judging derives its RRC and its group from its outcomes. A function enters the high
//! group at RRC ≤ θ and leaves it at RRC > θ + 1. By default both groups are ordered together by latest start time, and
//! requests *give way* by a bounded time: a low function's by two fifths of its objective, and by one fifth those of a
//! high function that has misses to spare. So the groups only matter where not all requests can be in time.
//!
//! A request is *late* when its LST is past. Late requests form a prefix of their line. When an estimate shrinks, as
//! when the model has become resident, some of them become timely again.
//!
//! Costs: every call is O(log functions), and in addition
//! - [`Queue::arrive`] is O(requests of the function with a later deadline), of which there are none with a single
//!   objective;
//! - the first call after each 5 s is O(functions · log functions), under every [`Order::RequiredRequests`];
//! - a request turns late once; [`Queue::set_estimate`] is O(requests whose lateness changes).
//!
//! The queue requests no wake-up: changes caused by time alone are made up for at the next call. A clock that is set
//! back counts as one that stands still. Nothing is allocated once as many requests have waited before, and requests of
//! as many functions in each group.
//!
//! # Examples
//!
//! ```
//! use policy::pool::queue::{Queue, Settings, Turn};
//! use policy::pool::{FunctionId, Percentile};
//! use policy::{RequestId, Span, Time};
//!
//! let mut queue = Queue::new(Settings::default());
//! for function in [FunctionId(0), FunctionId(1)] {
//!     queue.add(Time(0), function, Percentile::default(), Span(1_000)).unwrap();
//! }
//! queue.arrive(Time(0), FunctionId(0), RequestId(1), Time(900)).unwrap();
//! queue.arrive(Time(0), FunctionId(1), RequestId(2), Time(500)).unwrap();
//! let (head, turn) = queue.next(Time(1)).unwrap();
//! assert_eq!((head.request, turn), (RequestId(2), Turn::High));
//! queue.take(Time(1), head.ticket);
//! assert_eq!(queue.len(), 1);
//! ```

mod filing;
mod line;
mod settings;
mod step;
mod threshold;
mod window;

pub use window::Window;

pub use settings::{
    Adaptation, Admission, CountedMisses, LateRule, LowRule, Order, Settings, SpareRule,
};

use self::filing::Files;
use self::line::{Line, NONE, Places};
use self::threshold::Controller;
use super::{FunctionId, IDS_MAX, Percentile, Refusal};
use crate::{RequestId, Span, Time};

/// Handle by which a request leaves the queue. It becomes void once the request has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    place: u32,
    generation: u32,
}

/// Reason why a request is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Turn {
    /// The request's function is in the high group, or there is only one group.
    High,
    /// The request's function is in the low group.
    Low,
    /// The request is late, and no timely request waits.
    Late,
    /// The request has waited ten times its objective, and this dispatch is reserved for such requests.
    Aged,
}

/// Waiting request, as returned by the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Function of the request.
    pub function: FunctionId,
    /// Id of the request.
    pub request: RequestId,
    /// Handle for [`Queue::take`] and [`Queue::cancel`].
    pub ticket: Ticket,
    /// Time at which the request arrived.
    pub arrival: Time,
    /// Time by which the request must be answered.
    pub deadline: Time,
    /// Deadline − estimate, or [`Time::NEVER`] without a deadline.
    pub latest_start: Time,
    /// Whether the latest start is past.
    pub late: bool,
}

#[derive(Clone, Debug)]
struct Function {
    percentile: Percentile,
    objective: Span,
    /// Estimated execution and load time of a request.
    estimate: Span,
    line: Line,
    /// First request of the line that is not late.
    on_time: u32,
    waiting: u32,
    /// Whether the function is held because no slot can serve it at present.
    held: bool,
    high: bool,
    /// Decision of the last step of [`Admission::LeastWork`].
    admitted: bool,
    /// Shortfall p·n − m, in millionths of a request.
    behind: i64,
    /// Required request count (RRC), in millionths.
    required: i64,
    window: Window,
    /// Bit set of the files that contain the function.
    filed: u8,
    /// Number of arrivals since the last step, and their mean per step in thousandths.
    arrivals: u64,
    arrivals_mean: u64,
    /// Number of dispatched requests that had waited until they were late, less the misses counted for them.
    waited: u32,
}

/// Queue of a pool; see the [module](self).
#[derive(Debug, Clone)]
pub struct Queue {
    settings: Settings,
    /// Latest `now` passed in.
    now: Time,
    functions: Vec<Option<Function>>,
    places: Places,
    files: Files,
    controller: Controller,
    next_step: Option<Time>,
    dispatched: u32,
    /// Buffer of [`Admission::LeastWork`]: pairs of needed work and function.
    needed: Vec<(u128, u32)>,
}

impl Queue {
    /// Creates a queue without functions.
    #[must_use]
    pub const fn new(settings: Settings) -> Self {
        Self {
            settings,
            now: Time::ZERO,
            functions: Vec::new(),
            places: Places::new(),
            files: Files::new(),
            controller: Controller::new(match settings.order {
                Order::RequiredRequests(Admission::AdaptiveThreshold(adaptation)) => adaptation,
                _ => Adaptation::FromOneMiss,
            }),
            next_step: None,
            dispatched: 0,
            needed: Vec::new(),
        }
    }

    /// Returns the settings of this queue.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Adds a function. `objective` is the promised latency; aging counts in multiples of it, and with zero the
    /// function's requests never age. The function begins in the high group, with an estimate of zero.
    ///
    /// # Errors
    /// Returns [`Refusal::IdTooLarge`] or [`Refusal::FunctionTaken`].
    pub fn add(
        &mut self,
        now: Time,
        function: FunctionId,
        percentile: Percentile,
        objective: Span,
    ) -> Result<(), Refusal> {
        self.advance(now);
        if function.0 >= IDS_MAX {
            return Err(Refusal::IdTooLarge { id: function.0 });
        }
        let at = function.0 as usize;
        if self.functions.len() <= at {
            self.functions.resize_with(at + 1, || None);
        }
        if self.functions[at].is_some() {
            return Err(Refusal::FunctionTaken { function });
        }
        self.functions[at] = Some(Function {
            percentile,
            objective,
            estimate: Span::ZERO,
            line: Line::default(),
            on_time: NONE,
            waiting: 0,
            held: false,
            high: true,
            admitted: true,
            behind: 0,
            required: 0,
            window: Window::default(),
            filed: 0,
            arrivals: 0,
            arrivals_mean: 0,
            waited: 0,
        });
        Ok(())
    }

    /// Removes a function. Its waiting requests are appended to `left` in the order of their line.
    pub fn remove(&mut self, now: Time, function: FunctionId, left: &mut Vec<Head>) {
        self.advance(now);
        while let Some(at) = self.function(function).map(|function| function.line.first) {
            if at == NONE {
                break;
            }
            left.push(self.head(at));
            self.leave(at);
        }
        if let Some(entry) = self.functions.get_mut(function.0 as usize) {
            *entry = None;
        }
    }

    /// Adds a request that must be answered by `deadline`; with [`Time::NEVER`] it never turns late.
    ///
    /// # Errors
    /// Returns [`Refusal::NoSuchFunction`].
    pub fn arrive(
        &mut self,
        now: Time,
        function: FunctionId,
        request: RequestId,
        deadline: Time,
    ) -> Result<Ticket, Refusal> {
        self.advance(now);
        let now = self.now;
        let at = self.enter(function, request, now, deadline)?;
        let entry = get_mut(&mut self.functions, function).expect("it has just been entered");
        entry.arrivals += 1;
        let (first, on_time) = (entry.line.first, entry.on_time);
        let changed = self.judge(function, false);
        self.settle(function);
        let entry = self.entry(function);
        // A request behind the heads changes nothing for other functions.
        if changed || first == at || entry.on_time != on_time {
            self.file(function);
        }
        Ok(self.places.ticket(at))
    }

    /// Adds a request which has left by [`Queue::take`] or [`Queue::cancel`] again, as if it had never left: it has waited since its arrival.
    ///
    /// # Errors
    /// Returns [`Refusal::NoSuchFunction`].
    pub fn put_back(&mut self, now: Time, head: &Head) -> Result<Ticket, Refusal> {
        self.advance(now);
        let arrival = head.arrival.min(self.now);
        let at = self.enter(head.function, head.request, arrival, head.deadline)?;
        self.file(head.function);
        Ok(self.places.ticket(at))
    }

    /// Enters a request into its function's line.
    fn enter(
        &mut self,
        function: FunctionId,
        request: RequestId,
        arrival: Time,
        deadline: Time,
    ) -> Result<u32, Refusal> {
        let Some(entry) = get_mut(&mut self.functions, function) else {
            return Err(Refusal::NoSuchFunction { function });
        };
        let rank = match self.settings.order {
            Order::Arrival => arrival,
            Order::RequiredRequests(_) | Order::LatestStart => deadline,
        };
        let at = self
            .places
            .enter(&mut entry.line, function, request, arrival, deadline, rank);
        entry.waiting += 1;
        Ok(at)
    }

    /// Sets the estimated execution and load time of a function's requests.
    pub fn set_estimate(&mut self, now: Time, function: FunctionId, estimate: Span) {
        self.advance(now);
        let Some(entry) = get_mut(&mut self.functions, function) else {
            return;
        };
        if entry.estimate != estimate {
            entry.estimate = estimate;
            if entry.waiting > 0 {
                self.file(function);
            }
        }
    }

    /// Returns the next request in order and the reason, without removing it.
    pub fn next(&mut self, now: Time) -> Option<(Head, Turn)> {
        self.advance(now);
        let (function, turn) = self.first()?;
        let entry = self.entry(function);
        let at = match turn {
            Turn::High | Turn::Low => self.timely(entry),
            Turn::Late | Turn::Aged => entry.line.first,
        };
        Some((self.head(at), turn))
    }

    /// Removes a request that is to run, and counts a dispatch. Returns `None` if the request has already left.
    pub fn take(&mut self, now: Time, ticket: Ticket) -> Option<Head> {
        let head = self.cancel(now, ticket)?;
        self.dispatched = self.dispatched.wrapping_add(1);
        if self.dispatched == self.settings.aging_every {
            self.dispatched = 0;
        }
        if head.late
            && head.latest_start >= head.arrival
            && let Some(entry) = get_mut(&mut self.functions, head.function)
        {
            entry.waited = entry.waited.saturating_add(1);
        }
        Some(head)
    }

    /// Removes a request that does not run because its client is gone. It counts neither as in time nor as missed;
    /// where it should count, the caller reports it by [`Queue::completed`]. Returns `None` if the request has already
    /// left.
    pub fn cancel(&mut self, now: Time, ticket: Ticket) -> Option<Head> {
        self.advance(now);
        let at = self.places.find(ticket)?;
        let head = self.head(at);
        self.leave(at);
        Some(head)
    }

    /// Records an outcome: a request of the function was answered, within its objective or not from arrival to answer.
    /// A request that was refused or lost is reported as a miss.
    pub fn completed(&mut self, now: Time, function: FunctionId, in_time: bool) {
        self.advance(now);
        let now = self.now;
        let Some(entry) = get_mut(&mut self.functions, function) else {
            return;
        };
        let is_missed =
            !in_time && (entry.has_waited() || self.settings.misses == CountedMisses::All);
        if entry.high {
            self.controller.completed(entry.percentile, !is_missed);
        }
        entry.window.record(now, in_time);
        if self.judge(function, true) && self.entry(function).waiting > 0 {
            self.file(function);
        }
    }

    /// Takes a function's counts over its window from elsewhere, in place of outcomes recorded by [`Queue::completed`]: `in_time` of `requests`,
    /// of which `new` and `new_in_time` have been completed since the last call.
    pub fn observe(
        &mut self,
        now: Time,
        function: FunctionId,
        (requests, in_time): (u64, u64),
        (new, new_in_time): (u32, u32),
    ) {
        self.advance(now);
        let Some(entry) = get_mut(&mut self.functions, function) else {
            return;
        };
        if entry.high {
            for completed in 0..new {
                let is_in_time = completed < new_in_time;
                self.controller.completed(entry.percentile, is_in_time);
            }
        }
        entry.window.set(requests, in_time.min(requests));
        if self.judge(function, true) && self.entry(function).waiting > 0 {
            self.file(function);
        }
    }

    /// Holds a function that no slot can serve at present: its requests wait, and others are next, until
    /// [`Queue::release`].
    pub fn hold(&mut self, now: Time, function: FunctionId) {
        self.set_held(now, function, true);
    }

    /// Releases a function that a slot can serve again.
    pub fn release(&mut self, now: Time, function: FunctionId) {
        self.set_held(now, function, false);
    }

    fn set_held(&mut self, now: Time, function: FunctionId, held: bool) {
        self.advance(now);
        if let Some(entry) = get_mut(&mut self.functions, function)
            && entry.held != held
        {
            entry.held = held;
            self.file(function);
        }
    }

    /// Returns the number of waiting requests, including those of held functions.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.places.used()
    }

    /// Returns whether no request waits.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of waiting requests of a function.
    #[must_use]
    pub fn waiting(&self, function: FunctionId) -> u32 {
        self.function(function).map_or(0, |entry| entry.waiting)
    }

    /// Returns a function's RRC when it was last judged, in millionths of a request.
    #[must_use]
    pub fn required(&self, function: FunctionId) -> Option<i64> {
        self.function(function).map(|entry| entry.required)
    }

    /// Returns whether a function is in the high group.
    #[must_use]
    pub fn is_high(&self, function: FunctionId) -> bool {
        self.function(function).is_some_and(|entry| entry.high)
    }

    /// Returns the number of a function's requests within its window, and the number of those that were in time.
    #[must_use]
    pub fn counts(&self, function: FunctionId) -> Option<(u64, u64)> {
        let window = &self.function(function)?.window;
        Some((window.requests(), window.in_time()))
    }

    /// Returns θ·(1 − p), the adaptive threshold, in millionths of a request: the same for all percentiles.
    #[must_use]
    pub const fn threshold(&self) -> i64 {
        self.controller.theta()
    }

    fn function(&self, function: FunctionId) -> Option<&Function> {
        self.functions.get(function.0 as usize)?.as_ref()
    }

    fn entry(&self, function: FunctionId) -> &Function {
        self.function(function).expect("the function must exist")
    }

    fn head(&self, at: u32) -> Head {
        let place = self.places.at(at);
        let latest_start = self.entry(place.function).latest_start(place.deadline);
        Head {
            function: place.function,
            request: place.request,
            ticket: self.places.ticket(at),
            arrival: place.arrival,
            deadline: place.deadline,
            latest_start,
            late: latest_start < self.now,
        }
    }

    fn leave(&mut self, at: u32) {
        let place = *self.places.at(at);
        let function = place.function;
        let entry = get_mut(&mut self.functions, function)
            .expect("a place belongs to an existing function");
        let headed = entry.line.first == at || entry.on_time == at;
        if entry.on_time == at {
            entry.on_time = place.behind;
        }
        self.places.leave(&mut entry.line, at);
        entry.waiting -= 1;
        if headed {
            self.file(function);
        }
    }
}

impl Function {
    /// Returns whether a miss is due to waiting, and counts it.
    const fn has_waited(&mut self) -> bool {
        let has = self.waited > 0;
        self.waited = self.waited.saturating_sub(1);
        has
    }

    /// Returns whether the function keeps its percentile even if one more request misses.
    fn has_spare(&self) -> bool {
        self.behind <= -i64::from(self.percentile.parts_per_million())
    }

    fn latest_start(&self, deadline: Time) -> Time {
        if deadline == Time::NEVER {
            Time::NEVER
        } else {
            deadline.before(self.estimate)
        }
    }
}

fn get_mut(functions: &mut [Option<Function>], function: FunctionId) -> Option<&mut Function> {
    functions.get_mut(function.0 as usize)?.as_mut()
}
