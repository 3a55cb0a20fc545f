//! How long what was launched runs, and how much of it is still in flight: events recorded in the streams themselves.
//!
//! A *burst* begins when something is launched in a stream in which nothing is known to run. Before its first launch an event
//! is recorded, and further ones behind its first, second, fourth and eighth launch and then behind every sixteenth, behind
//! every millisecond that the launches are expected to take, before the host waits for the stream, and before anything goes
//! into the stream that is no kernel. The time between two of them is kernel time (papers: M4.6). A stream that is marked
//! while nothing runs in it any more counts what its launches are expected to take.
//!
//! Nothing here is done for a stream that captures.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::busy::Busy;
use crate::driver::{self, Handle, LEGACY, NOT_READY, PER_THREAD, SUCCESS};
use crate::functions::{self, Known, Part};
use crate::{capture, events, link, time};

/// So many launches at most lie between two marks.
const LAUNCHES: u32 = 16;
/// So much work at most, in nanoseconds as expected, lies between two marks.
const WORK_NS: u64 = 1_000_000;
/// From so many marks on it is looked which of them are done.
const MARKS: usize = 12;
/// So many streams of a process are followed, a thread's default stream counted for each thread. What is launched in others
/// counts only while it holds the gate open.
const STREAMS_MAX: usize = 4096;

/// Which stream the handle 0 means, by the entry point that was called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Default {
    /// The legacy one.
    Legacy,
    /// The calling thread's own.
    PerThread,
}

impl Default {
    fn resolve(self, stream: Handle) -> Handle {
        match (stream, self) {
            (0, Self::Legacy) => LEGACY,
            (0, Self::PerThread) => PER_THREAD,
            (stream, _) => stream,
        }
    }
}

/// Nanoseconds of work in flight in all streams, as expected; the highest bit says that the gate was shut from inside.
pub(crate) static IN_FLIGHT: AtomicU64 = AtomicU64::new(0);
/// The bit of [`IN_FLIGHT`] that shuts the gate from inside: no launch passes a bound that it exceeds.
pub(crate) const SHUT: u64 = 1 << 63;

/// Work in flight, in nanoseconds as expected.
pub(crate) fn in_flight() -> u64 {
    IN_FLIGHT.load(Ordering::Acquire) & !SHUT
}

/// Launches in flight of functions that were not measured yet.
static UNMEASURED: AtomicU32 = AtomicU32::new(0);

/// Counts launches of functions that were not measured yet.
fn unmeasured(change: impl Fn(u32) -> u32) {
    let changed = UNMEASURED.fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| {
        Some(change(count))
    });
    if let Ok(before) = changed {
        link::facts()
            .unmeasured
            .store(change(before), Ordering::Release);
    }
}

/// Launches are over, or were not made.
fn over(launches: &Loose) {
    if launches.unmeasured > 0 {
        unmeasured(|count| count.saturating_sub(launches.unmeasured));
    }
    takes_off(launches.estimate_ns);
}

fn takes_off(estimate_ns: u64) {
    let _before = IN_FLIGHT.fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| {
        Some(word & SHUT | (word & !SHUT).saturating_sub(estimate_ns))
    });
    publish_in_flight(in_flight());
}

fn publish_in_flight(ns: u64) {
    let us = u32::try_from(ns.div_ceil(1_000)).unwrap_or(u32::MAX);
    link::facts().inflight_us.store(us, Ordering::Release);
}

static BUSY: Mutex<Busy> = Mutex::new(Busy::new());
static STREAMS: Mutex<Vec<&'static Stream>> = Mutex::new(Vec::new());

fn all() -> MutexGuard<'static, Vec<&'static Stream>> {
    STREAMS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A stream that is followed. Never freed, so that a thread may keep a reference; one that is gone is used again.
#[derive(Debug)]
struct Stream {
    /// What [`key`] gives; 0: free.
    key: AtomicUsize,
    state: Mutex<State>,
}

impl Stream {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct State {
    context: Handle,
    /// Never 0.
    handle: Handle,
    /// Launches since the last mark.
    loose: Loose,
    /// Marks that were recorded and not yet found done, in the order of the stream.
    marks: VecDeque<Mark>,
    /// The last mark that was found done and its time, when the burst goes on behind it.
    last: Option<(Handle, u64)>,
    /// Launches since the burst began.
    launches: u32,
    /// Something else than kernels went into the stream since it was last known to be idle.
    other_work: bool,
    /// An event in this stream whose time on the host's clock is known.
    reference: Option<(Handle, u64)>,
    /// The program has destroyed it.
    gone: bool,
    /// When all that was marked should be over, on the host's clock: before that nobody asks whether it is.
    expected_end: u64,
    /// When the first kernel of the burst can have begun at the earliest.
    begins: u64,
}

#[derive(Debug, Clone, Copy)]
struct Loose {
    launches: u32,
    estimate_ns: u64,
    /// Of functions that were not measured yet.
    unmeasured: u32,
    parts: [Part; LAUNCHES as usize],
}

impl Loose {
    const NONE: Self = Self {
        launches: 0,
        estimate_ns: 0,
        unmeasured: 0,
        parts: [(0, 0); LAUNCHES as usize],
    };
}

impl Loose {
    fn add(&mut self, known: Known) {
        if let Some(part) = self.parts.get_mut(self.launches as usize) {
            *part = (known.place, known.estimate_ns);
        }
        self.launches += 1;
        self.unmeasured += u32::from(known.is_new);
        self.estimate_ns = self.estimate_ns.saturating_add(known.estimate_ns);
    }
}

#[derive(Debug)]
struct Mark {
    event: Handle,
    kind: MarkKind,
}

#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "few of them are there at a time, and nearly all are of the large kind"
)]
enum MarkKind {
    /// A burst begins behind it.
    Begin {
        /// When it was recorded, if the stream was idle then: so it is done at that time.
        idle_since: Option<u64>,
        /// Its first kernel cannot have begun before.
        not_before: u64,
    },
    /// It stands behind these launches.
    End {
        launches: Loose,
        /// Nothing ran any more when it was recorded.
        late: bool,
    },
}

thread_local! {
    /// The stream in which this thread launched last. No destructor: threads end at any time.
    static RECENT: Cell<Option<&'static Stream>> = const { Cell::new(None) };
}

/// Makes one number of stream and context, and of the thread where the stream is its own.
fn key(stream: Handle) -> usize {
    match stream {
        LEGACY => context().rotate_left(8) | 1,
        PER_THREAD => {
            let own = RECENT.with(std::ptr::from_ref) as usize;
            context().rotate_left(8) ^ own.rotate_left(24) | 3
        }
        stream => stream,
    }
}

fn context() -> Handle {
    let mut context = 0;
    // SAFETY: a place to write to.
    let _any = unsafe { driver::cuCtxGetCurrent(&raw mut context) };
    context
}

fn find(stream: Handle, make: bool) -> Option<&'static Stream> {
    let key = key(stream);
    if let Some(recent) = RECENT.get()
        && recent.key.load(Ordering::Acquire) == key
    {
        return Some(recent);
    }
    let mut all = all();
    let found = all
        .iter()
        .find(|known| known.key.load(Ordering::Acquire) == key)
        .copied();
    let found = match found {
        Some(found) => found,
        None if !make => return None,
        None => {
            let context = if matches!(stream, LEGACY | PER_THREAD) {
                context()
            } else {
                let mut context = 0;
                // SAFETY: a place to write to, and a stream that the program launches in.
                let _any = unsafe { driver::cuStreamGetCtx(stream, &raw mut context) };
                context
            };
            let state = State::new(context, stream);
            let free = all
                .iter()
                .find(|known| known.key.load(Ordering::Acquire) == 0)
                .copied();
            match free {
                Some(free) => {
                    *free.lock() = state;
                    free.key.store(key, Ordering::Release);
                    free
                }
                None if all.len() >= STREAMS_MAX => return None,
                None => {
                    let made: &'static Stream = Box::leak(Box::new(Stream {
                        key: AtomicUsize::new(key),
                        state: Mutex::new(state),
                    }));
                    all.push(made);
                    made
                }
            }
        }
    };
    RECENT.set(Some(found));
    Some(found)
}

/// What [`before`] found, for [`after`].
#[derive(Debug)]
pub(crate) struct Launch {
    stream: Option<&'static Stream>,
    known: Known,
}

/// A launch is about to be made in the stream.
pub(crate) fn before(stream: Handle, default: Default, known: Known) -> Launch {
    if known.is_new {
        unmeasured(|count| count.saturating_add(1));
    }
    // Before anything else, so that the agent sees a launch under way also where this thread is held up in it.
    let in_flight = IN_FLIGHT.fetch_add(known.estimate_ns, Ordering::AcqRel) & !SHUT;
    publish_in_flight(in_flight.saturating_add(known.estimate_ns));
    let stream = find(default.resolve(stream), true);
    if let Some(stream) = stream {
        let mut state = stream.lock();
        if state.loose.launches == 0 && state.should_be_over() {
            state.reap();
            if state.marks.is_empty() {
                state.begin();
            }
        }
    }
    Launch { stream, known }
}

/// The launch was made, or refused by the driver.
pub(crate) fn after(launch: &Launch, made: bool) {
    let Launch { stream, known } = launch;
    let Some(stream) = stream.filter(|_| made) else {
        let mut launches = Loose::NONE;
        launches.add(*known);
        over(&launches);
        return;
    };
    let mut state = stream.lock();
    state.loose.add(*known);
    state.launches = state.launches.saturating_add(1);
    let due = state.loose.launches >= LAUNCHES
        || state.loose.estimate_ns >= WORK_NS
        || known.is_new
        || (state.launches < LAUNCHES && state.launches.is_power_of_two());
    if due {
        state.mark(false);
        // A long row of launches finds itself how far it has come.
        if state.marks.len() > MARKS {
            state.reap();
        }
    }
}

impl State {
    const fn new(context: Handle, handle: Handle) -> Self {
        Self {
            context,
            handle,
            loose: Loose::NONE,
            marks: VecDeque::new(),
            last: None,
            launches: 0,
            other_work: true,
            reference: None,
            begins: 0,
            expected_end: 0,
            gone: false,
        }
    }

    /// Records an event before the first launch of a burst.
    fn begin(&mut self) {
        self.launches = 0;
        self.broken_off();
        if self.other_work {
            let handle = self.handle;
            // SAFETY: a stream in which the program launches at this moment.
            let code = capture::relaxed(|| unsafe { driver::cuStreamQuery(handle) });
            self.other_work = code != SUCCESS;
        }
        let Some(event) = events::take(self.context) else {
            return;
        };
        let recorded = time::now();
        if !events::record(event, self.handle) {
            events::give(self.context, event);
            return;
        }
        self.marks.push_back(Mark {
            event,
            kind: MarkKind::Begin {
                idle_since: (!self.other_work).then_some(recorded),
                not_before: time::now(),
            },
        });
        crate::gate::burst_begins(recorded);
        let facts = link::facts();
        let _oldest =
            facts
                .busy_since
                .compare_exchange(0, recorded, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// The burst is over: the next one is not measured from its end.
    fn broken_off(&mut self) {
        if self.marks.is_empty() {
            let before = self.last.take();
            self.retire(before);
        }
    }

    /// Gives all events back.
    fn forget_events(&mut self) {
        self.broken_off();
        if let Some((reference, _)) = self.reference.take() {
            events::give(self.context, reference);
        }
    }

    /// What was marked should be over by now, as far as it is known how long it takes.
    fn should_be_over(&self) -> bool {
        self.marks.is_empty() || time::now() >= self.expected_end
    }

    /// Records an event behind all launches until now.
    fn mark(&mut self, late: bool) {
        if self.loose.launches == 0 {
            return;
        }
        let launches = std::mem::replace(&mut self.loose, Loose::NONE);
        let begin = self.expected_end.max(time::now());
        self.expected_end = begin.saturating_add(launches.estimate_ns);
        let event = events::take(self.context).filter(|&event| {
            let recorded = events::record(event, self.handle);
            if !recorded {
                events::give(self.context, event);
            }
            recorded
        });
        match event {
            Some(event) => self.marks.push_back(Mark {
                event,
                kind: MarkKind::End { launches, late },
            }),
            // The driver makes no event, so there is nothing to measure by.
            None => over(&launches),
        }
    }

    /// How much is done of what lies before the first mark, in nanoseconds as expected.
    fn done_of_first(&self, now: u64) -> u64 {
        let (Some((_, at)), Some(mark)) = (self.last, self.marks.front()) else {
            return 0;
        };
        match &mark.kind {
            MarkKind::End { launches, .. } => {
                let runs_for = now.saturating_sub(at.max(self.begins));
                runs_for.min(launches.estimate_ns)
            }
            MarkKind::Begin { .. } => 0,
        }
    }

    /// Takes the marks that are done.
    fn reap(&mut self) {
        while let Some(mark) = self.marks.front() {
            // SAFETY: an event of this library's own.
            let code = unsafe { driver::cuEventQuery(mark.event) };
            if code == NOT_READY {
                return;
            }
            let Some(mark) = self.marks.pop_front() else {
                return;
            };
            if code != SUCCESS {
                // Of an error that stays nothing comes back; what was in flight is over or will never be known.
                if let MarkKind::End { launches, .. } = mark.kind {
                    over(&launches);
                }
                events::give(self.context, mark.event);
                link::fatal(code);
                continue;
            }
            self.done(mark);
        }
    }

    fn done(&mut self, mark: Mark) {
        match mark.kind {
            MarkKind::Begin {
                idle_since,
                not_before,
            } => {
                let at = match (idle_since, self.reference) {
                    (Some(at), _) => at,
                    (None, Some((reference, at))) => {
                        at.saturating_add(events::elapsed_ns(reference, mark.event).unwrap_or(0))
                    }
                    (None, None) => not_before,
                };
                if idle_since.is_some() {
                    let before = self.reference.replace((mark.event, at));
                    self.retire(before);
                }
                let before = self.last.replace((mark.event, at));
                self.retire(before);
                // The kernel was launched later than the event was recorded, and begins then at the earliest.
                self.begins = at.max(not_before);
            }
            MarkKind::End { launches, late } => {
                let Some((from, at)) = self.last else {
                    over(&launches);
                    events::give(self.context, mark.event);
                    return;
                };
                let took = events::elapsed_ns(from, mark.event).unwrap_or(launches.estimate_ns);
                let mut end = at.saturating_add(took);
                let begin = at.max(self.begins);
                if late {
                    end = end.min(begin.saturating_add(launches.estimate_ns));
                }
                let ran = end.saturating_sub(begin);
                if let Ok(mut busy) = BUSY.lock() {
                    busy.add(begin, end, link::facts());
                }
                if !late {
                    let count = launches.launches.min(LAUNCHES) as usize;
                    functions::measured(launches.parts.get(..count).unwrap_or(&[]), ran);
                }
                over(&launches);
                let since = if in_flight() == 0 { 0 } else { end };
                link::facts().busy_since.store(since, Ordering::Release);
                let before = self.last.replace((mark.event, at.saturating_add(took)));
                self.retire(before);
            }
        }
    }

    /// Gives an event back that neither is the reference nor the last one.
    fn retire(&self, event: Option<(Handle, u64)>) {
        let Some((event, _)) = event else { return };
        let is = |kept: &Option<(Handle, u64)>| kept.is_some_and(|(kept, _)| kept == event);
        if !is(&self.reference) && !is(&self.last) {
            events::give(self.context, event);
        }
    }

    /// Forgets everything: the context is gone, and its events with it.
    fn forget(&mut self) {
        let loose = std::mem::replace(&mut self.loose, Loose::NONE);
        over(&loose);
        for mark in self.marks.drain(..) {
            if let MarkKind::End { launches, .. } = mark.kind {
                over(&launches);
            }
        }
        self.last = None;
        self.reference = None;
    }

    /// Marks the end of what was launched, for somebody who is about to wait for it or to put something else behind it.
    fn mark_end(&mut self) {
        if self.loose.launches == 0 {
            return;
        }
        let handle = self.handle;
        let loose = self.loose.estimate_ns;
        let late = time::now() >= self.expected_end.saturating_add(loose)
            // SAFETY: a stream in which the program has launched and that it has not destroyed.
            && capture::relaxed(|| unsafe { driver::cuStreamQuery(handle) }) == SUCCESS;
        self.mark(late);
    }
}

/// Work in flight without what is done of that which runs now, in nanoseconds as expected. Only the first of each stream can be
/// known to run, so where launches take longer than expected no more than one of them is thought done too early.
pub(crate) fn left_in_flight() -> u64 {
    let now = time::now();
    let streams = snapshot();
    let done = streams
        .iter()
        .map(|stream| stream.lock().done_of_first(now));
    in_flight().saturating_sub(done.sum())
}

/// Marks what runs in the stream, before something else goes into it or the host waits for it.
pub(crate) fn mark(stream: Handle, default: Default) {
    if in_flight() == 0 {
        return;
    }
    if let Some(stream) = find(default.resolve(stream), false) {
        stream.lock().mark_end();
    }
}

/// Nothing that was launched in the stream is known to run.
pub(crate) fn has_nothing(stream: Handle, default: Default) -> bool {
    let stream = find(default.resolve(stream), false);
    stream.is_none_or(|stream| {
        let state = stream.lock();
        state.marks.is_empty() && state.loose.launches == 0
    })
}

/// Something that is no kernel goes into the stream.
pub(crate) fn other_work(stream: Handle, default: Default) {
    if let Some(stream) = find(default.resolve(stream), false) {
        let mut state = stream.lock();
        state.mark_end();
        // What is launched behind it begins a burst of its own, after it.
        state.reap();
        state.broken_off();
        state.other_work = true;
    }
}

/// Marks what runs in all streams that this thread may record in.
pub(crate) fn mark_all() {
    if in_flight() == 0 {
        return;
    }
    for stream in snapshot() {
        let mut state = stream.lock();
        if state.handle == PER_THREAD && RECENT.get().is_none_or(|own| !std::ptr::eq(own, stream)) {
            // Only its own thread can record in it.
            continue;
        }
        if state.loose.launches > 0 && !(capture::any() && capture::is_capturing(state.handle)) {
            state.mark_end();
        }
    }
}

fn snapshot() -> Vec<&'static Stream> {
    let all = all();
    all.iter()
        .filter(|stream| stream.key.load(Ordering::Acquire) != 0)
        .copied()
        .collect()
}

/// Takes what is done in all streams.
pub(crate) fn reap_all() {
    if in_flight() == 0 {
        return;
    }
    capture::relaxed(|| {
        for stream in snapshot() {
            stream.lock().reap();
        }
    });
}

/// The host has waited for the stream.
pub(crate) fn is_idle(stream: Handle, default: Default) {
    if let Some(stream) = find(default.resolve(stream), false) {
        let mut state = stream.lock();
        capture::relaxed(|| state.reap());
        if state.loose.launches == 0 && state.marks.is_empty() {
            state.other_work = false;
        }
    }
}

/// The host has waited for the whole context.
pub(crate) fn all_done(context: Handle) {
    for stream in snapshot() {
        let mut state = stream.lock();
        if state.context == context {
            capture::relaxed(|| state.reap());
            if state.loose.launches == 0 && state.marks.is_empty() {
                state.other_work = false;
            }
        }
    }
}

/// The stream is about to be destroyed: what runs in it goes on, but nobody can record in it any more.
pub(crate) fn destroyed(stream: Handle) {
    let Some(known) = find(stream, false) else {
        return;
    };
    {
        let mut state = known.lock();
        if !(capture::any() && capture::is_capturing(state.handle)) {
            state.mark_end();
        }
        state.gone = true;
    }
    known.key.store(usize::MAX, Ordering::Release);
    RECENT.set(None);
}

/// The context is gone, with all its streams and events.
pub(crate) fn context_gone(context: Handle) {
    for stream in snapshot() {
        let mut state = stream.lock();
        if state.context == context {
            state.forget();
            drop(state);
            stream.key.store(0, Ordering::Release);
        }
    }
    events::forget(context);
}

/// A stream in which something runs: where to wait for its end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unfinished {
    /// Its context.
    pub(crate) context: Handle,
    /// The last event in it; `None`: nobody but its own thread can record one, so it must be looked again.
    pub(crate) event: Option<Handle>,
}

/// Marks the ends of all streams from a thread of this library, and tells one in which something runs.
pub(crate) fn first_unfinished() -> Option<Unfinished> {
    let mut unfinished = None;
    for stream in snapshot() {
        let mut state = stream.lock();
        if state.loose.launches > 0 && !state.gone && state.handle != PER_THREAD {
            let context = state.context;
            // SAFETY: a context in which the program has launched; this thread has no other use for its own.
            let _any = unsafe { driver::cuCtxSetCurrent(context) };
            // Nobody begins to capture between the question and the record.
            let _alone = capture::transition();
            if !(capture::any() && capture::is_capturing(state.handle)) {
                state.mark_end();
            }
        }
        state.reap();
        if state.gone && state.marks.is_empty() && state.loose.launches == 0 {
            state.forget_events();
            drop(state);
            stream.key.store(0, Ordering::Release);
            continue;
        }
        if unfinished.is_none() && (!state.marks.is_empty() || state.loose.launches > 0) {
            unfinished = Some(Unfinished {
                context: state.context,
                event: state.marks.back().map(|mark| mark.event),
            });
        }
    }
    unfinished
}

/// Publishes all busy time that is known.
pub(crate) fn publish() {
    if let Ok(mut busy) = BUSY.lock() {
        busy.flush(link::facts());
    }
}

/// Kernel time until now, in nanoseconds.
pub(crate) fn busy_ns() -> u64 {
    BUSY.lock().map_or(0, |busy| busy.total_ns())
}

/// Copies the kernel time into other facts, and makes them those that are written from now on, between two stretches.
pub(crate) fn with_busy<T>(change: impl FnOnce(u64) -> T) -> T {
    let busy = BUSY.lock().unwrap_or_else(PoisonError::into_inner);
    change(busy.total_ns())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(estimate_ns: u64) -> Mark {
        let launches = Loose {
            launches: 1,
            estimate_ns,
            ..Loose::NONE
        };
        let kind = MarkKind::End {
            launches,
            late: false,
        };
        Mark { event: 1, kind }
    }

    #[test]
    fn of_what_runs_as_much_is_done_as_time_has_passed_since_it_began() {
        let mut state = State::new(0, 1);
        assert_eq!(state.done_of_first(9_000), 0, "nothing was launched");
        state.marks.push_back(end(5_000));
        assert_eq!(state.done_of_first(9_000), 0, "nobody knows since when");
        state.last = Some((1, 2_000));
        assert_eq!(state.done_of_first(1_000), 0);
        assert_eq!(state.done_of_first(6_000), 4_000);
        state.marks.push_back(end(5_000));
        assert_eq!(state.done_of_first(90_000), 5_000, "the second may not run");
        // The first launch of a burst comes later than the mark before it.
        state.begins = 3_500;
        assert_eq!(state.done_of_first(6_000), 2_500);
        let begin = MarkKind::Begin {
            idle_since: Some(2_000),
            not_before: 3_500,
        };
        state.marks.push_front(Mark {
            event: 2,
            kind: begin,
        });
        assert_eq!(
            state.done_of_first(6_000),
            0,
            "it is not known to have begun"
        );
    }
}
