//! The queue of a pool: which function's request runs next (M2.13, papers 2.2).
//!
//! Each function has a line of its own. Its requests have one objective and one estimate, so the order in which
//! they came is the order of their latest start times (LST = deadline − estimate); where deadlines differ, as
//! after a budget was cut, the line is by deadline. Across functions the order is an [`Order`].
//!
//! A function is *judged*, that is its RRC and its group are taken from its outcomes, when a request of it comes
//! or completes, and every 5 s together with all others, right after the threshold has moved. It enters the
//! high group at RRC ≤ θ and leaves it at RRC > θ + 1.
//!
//! A request is *late* when its LST is past. Late ones are a prefix of their line. An estimate that shrinks, as
//! when the model has become resident, makes some on time again.
//!
//! Costs: every call is O(log functions), and besides
//! - [`Queue::arrive`] O(requests of the function with a later deadline), none with one objective;
//! - the first call after each 5 s O(functions · log functions), under every [`Order::RequiredRequests`];
//! - a request turns late once; [`Queue::set_estimate`] is O(requests that it turns).
//!
//! No wake-up is asked for: what time alone changes is made up for at the next call. A clock that steps back
//! stands still. Nothing is allocated once as many requests, and of as many functions in each group, have waited
//! before.

mod filing;
mod line;
mod settings;
mod step;
mod threshold;
mod window;

pub use settings::{Admission, LateRule, Order, Settings};

use self::filing::Files;
use self::line::{Line, NONE, Places};
use self::threshold::Controller;
use self::window::Window;
use super::{FunctionId, IDS_MAX, Percentile, Refusal};
use crate::{RequestId, Span, Time};

/// The right to leave the queue. Tickets of requests that have left are void.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    place: u32,
    generation: u32,
}

/// Why a request is next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Turn {
    /// First of the high group, or of all where there is one group.
    High,
    /// First of the low group: nobody of the high group waits.
    Low,
    /// Late, and nobody waits who is not.
    Late,
    /// It has waited ten times its objective, and it is the turn of those.
    Aged,
}

/// A waiting request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Whose it is.
    pub function: FunctionId,
    /// Which it is.
    pub request: RequestId,
    /// What [`Queue::take`] and [`Queue::cancel`] want.
    pub ticket: Ticket,
    /// When it came.
    pub arrival: Time,
    /// When its answer is due.
    pub deadline: Time,
    /// Deadline − estimate; [`Time::NEVER`] without a deadline.
    pub latest_start: Time,
    /// Its latest start is past.
    pub late: bool,
}

#[derive(Clone, Debug)]
struct Function {
    percentile: Percentile,
    objective: Span,
    /// Execution and load.
    estimate: Span,
    line: Line,
    /// The first of the line that is not late.
    on_time: u32,
    waiting: u32,
    /// Nobody can serve it now.
    held: bool,
    high: bool,
    /// What the last step of [`Admission::LeastWork`] said.
    admitted: bool,
    /// p·n − m, in millionths.
    behind: i64,
    /// RRC, in millionths.
    required: i64,
    window: Window,
    /// In which files it stands.
    filed: u8,
    /// Arrivals since the last step, and their mean per step in thousandths.
    arrivals: u64,
    arrivals_mean: u64,
}

/// See the [module](self).
#[derive(Debug, Clone)]
pub struct Queue {
    settings: Settings,
    /// The latest `now` seen.
    now: Time,
    functions: Vec<Option<Function>>,
    places: Places,
    files: Files,
    controller: Controller,
    next_step: Option<Time>,
    dispatched: u32,
    /// Of [`Admission::LeastWork`]: needed work and function, kept for its memory.
    needed: Vec<(u128, u32)>,
}

impl Queue {
    /// A queue without functions.
    #[must_use]
    pub const fn new(settings: Settings) -> Self {
        Self {
            settings,
            now: Time::ZERO,
            functions: Vec::new(),
            places: Places::new(),
            files: Files::new(),
            controller: Controller::new(),
            next_step: None,
            dispatched: 0,
            needed: Vec::new(),
        }
    }

    /// Its settings.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    /// A function has come. `objective`: the latency it was promised; ageing counts in multiples of it, and
    /// with zero its requests are never aged. It begins in the high group, with an estimate of nothing.
    ///
    /// # Errors
    /// [`Refusal::IdTooLarge`], [`Refusal::FunctionTaken`].
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
        });
        Ok(())
    }

    /// A function goes. Its waiting requests leave with it, in the order of their line, to `left`.
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

    /// A request has come, whose answer is due by `deadline`; [`Time::NEVER`]: it never turns late.
    ///
    /// # Errors
    /// [`Refusal::NoSuchFunction`].
    pub fn arrive(
        &mut self,
        now: Time,
        function: FunctionId,
        request: RequestId,
        deadline: Time,
    ) -> Result<Ticket, Refusal> {
        self.advance(now);
        let now = self.now;
        let Some(entry) = get_mut(&mut self.functions, function) else {
            return Err(Refusal::NoSuchFunction { function });
        };
        let rank = match self.settings.order {
            Order::Arrival => now,
            Order::RequiredRequests(_) | Order::LatestStart => deadline,
        };
        let at = self
            .places
            .enter(&mut entry.line, function, request, now, deadline, rank);
        entry.waiting += 1;
        entry.arrivals += 1;
        let (first, on_time) = (entry.line.first, entry.on_time);
        let changed = self.judge(function, false);
        self.settle(function);
        let entry = self.entry(function);
        // Somebody behind the heads changes nothing for other functions.
        if changed || first == at || entry.on_time != on_time {
            self.file(function);
        }
        Ok(self.places.ticket(at))
    }

    /// The estimated execution and load of a request of this function, from now on.
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

    /// Whose turn it is, and why. It stays in the queue.
    pub fn next(&mut self, now: Time) -> Option<(Head, Turn)> {
        self.advance(now);
        let (function, turn) = self.files.first(self.ages_now())?;
        let function = FunctionId(function);
        let entry = self.entry(function);
        let at = match turn {
            Turn::High | Turn::Low if self.moves_late(entry) => entry.on_time,
            _ => entry.line.first,
        };
        Some((self.head(at), turn))
    }

    /// A request leaves to run: counts as a dispatch. `None` if it has left already.
    pub fn take(&mut self, now: Time, ticket: Ticket) -> Option<Head> {
        let head = self.cancel(now, ticket)?;
        self.dispatched = self.dispatched.wrapping_add(1);
        if self.dispatched == self.settings.aging_every {
            self.dispatched = 0;
        }
        Some(head)
    }

    /// A request leaves without running: the client is gone. It counts neither as in time nor as missed; the
    /// caller says [`Queue::completed`] where it should. `None` if it has left already.
    pub fn cancel(&mut self, now: Time, ticket: Ticket) -> Option<Head> {
        self.advance(now);
        let at = self.places.find(ticket)?;
        let head = self.head(at);
        self.leave(at);
        Some(head)
    }

    /// A request of this function was answered, from its arrival to its answer within the objective or not. Also
    /// for one that was refused or lost: it missed.
    pub fn completed(&mut self, now: Time, function: FunctionId, in_time: bool) {
        self.advance(now);
        let now = self.now;
        let Some(entry) = get_mut(&mut self.functions, function) else {
            return;
        };
        if entry.high {
            self.controller.completed(entry.percentile, in_time);
        }
        entry.window.record(now, in_time);
        if self.judge(function, true) && self.entry(function).waiting > 0 {
            self.file(function);
        }
    }

    /// Nobody can serve this function now: its requests wait, and others are next, until [`Queue::release`].
    pub fn hold(&mut self, now: Time, function: FunctionId) {
        self.set_held(now, function, true);
    }

    /// Somebody can serve this function again.
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

    /// How many requests wait, those of held functions with them.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.places.used()
    }

    /// Nobody waits.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many requests of a function wait.
    #[must_use]
    pub fn waiting(&self, function: FunctionId) -> u32 {
        self.function(function).map_or(0, |entry| entry.waiting)
    }

    /// RRC of a function when it was last judged, in millionths of a request.
    #[must_use]
    pub fn required(&self, function: FunctionId) -> Option<i64> {
        self.function(function).map(|entry| entry.required)
    }

    /// Whether a function is in the high group.
    #[must_use]
    pub fn is_high(&self, function: FunctionId) -> bool {
        self.function(function).is_some_and(|entry| entry.high)
    }

    /// Requests and those in time of a function within its window.
    #[must_use]
    pub fn counts(&self, function: FunctionId) -> Option<(u64, u64)> {
        let window = &self.function(function)?.window;
        Some((window.requests(), window.in_time()))
    }

    /// θ·(1 − p), the adaptive threshold, in millionths of a request: the same for all percentiles.
    #[must_use]
    pub const fn threshold(&self) -> i64 {
        self.controller.theta()
    }

    fn function(&self, function: FunctionId) -> Option<&Function> {
        self.functions.get(function.0 as usize)?.as_ref()
    }

    fn entry(&self, function: FunctionId) -> &Function {
        self.function(function)
            .expect("asked for of one that is there")
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
        let entry = get_mut(&mut self.functions, function).expect("places go with their function");
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
