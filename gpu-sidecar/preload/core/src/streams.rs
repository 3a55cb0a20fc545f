//! Run time of launches and the amount of work in flight, measured by events recorded in the program's streams.
//!
//! A *burst* begins with a launch in a stream in which nothing is known to run. One event is recorded before its first launch.
//! Further events are recorded after its first, second, fourth and eighth launch and then after every sixteenth, after every
//! millisecond of expected run time, before the host waits for the stream, and before any operation other than a kernel enters
//! the stream. The time between two successive events is kernel time (M4.6). If the stream is already idle when an event
//! is recorded, the launches count with their expected run time.
//!
//! Capturing streams are not measured.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::busy::Busy;
use crate::driver::{self, Handle, LEGACY, NOT_READY, PER_THREAD, SUCCESS};
use crate::functions::{self, FunctionInfo, Part};
use crate::{capture, events, link, time};

/// Largest number of launches between two marks.
const LAUNCHES: u32 = 16;
/// Largest expected run time between two marks, in nanoseconds.
const WORK_NS: u64 = 1_000_000;
/// Number of marks from which on a launch collects the completed ones.
const MARKS: usize = 12;
/// Largest number of streams measured per process; a per-thread default stream counts once per thread. Launches in further
/// streams count as work in flight only until they have returned.
const STREAMS_MAX: usize = 4096;

/// Meaning of the null stream handle, which depends on the called entry point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DefaultStream {
    /// The legacy default stream.
    Legacy,
    /// The calling thread's own default stream.
    PerThread,
}

impl DefaultStream {
    fn resolve(self, stream: Handle) -> Handle {
        match (stream, self) {
            (0, Self::Legacy) => LEGACY,
            (0, Self::PerThread) => PER_THREAD,
            (stream, _) => stream,
        }
    }
}

/// Expected run time of all work in flight, in nanoseconds; the highest bit is [`SHUT`].
pub(crate) static IN_FLIGHT: AtomicU64 = AtomicU64::new(0);
/// Bit of [`IN_FLIGHT`] that closes the gate within the process: it exceeds every bound, so no launch passes.
pub(crate) const SHUT: u64 = 1 << 63;

/// Returns the expected run time of the work in flight, in nanoseconds.
pub(crate) fn in_flight() -> u64 {
    IN_FLIGHT.load(Ordering::Acquire) & !SHUT
}

/// Number of launches in flight of functions without a measurement.
static UNMEASURED: AtomicU32 = AtomicU32::new(0);

/// Applies `change` to [`UNMEASURED`] and publishes the result.
fn update_unmeasured(change: impl Fn(u32) -> u32) {
    let changed = UNMEASURED.fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| {
        Some(change(count))
    });
    if let Ok(before) = changed {
        link::facts()
            .unmeasured
            .store(change(before), Ordering::Release);
    }
}

/// Removes launches that have finished, or were never made, from the work in flight.
fn finish(launches: &LaunchGroup) {
    if launches.unmeasured > 0 {
        update_unmeasured(|count| count.saturating_sub(launches.unmeasured));
    }
    subtract_in_flight(launches.estimate_ns);
}

fn subtract_in_flight(estimate_ns: u64) {
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

/// A measured stream. Never freed, so that threads may keep references; the entry of a destroyed stream is reused.
#[derive(Debug)]
struct Stream {
    /// Value of [`key`]; 0 if the entry is free, `usize::MAX` if the stream was destroyed with work in it.
    key: AtomicUsize,
    state: Mutex<State>,
}

impl Stream {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Measurement of one stream.
#[derive(Debug)]
struct State {
    context: Handle,
    /// Handle of the stream, with the default stream made explicit; never 0.
    handle: Handle,
    /// Launches since the last mark.
    unmarked: LaunchGroup,
    /// Marks not yet known to be complete, in the order of the stream.
    marks: VecDeque<Mark>,
    /// Event and time of the last complete mark, in nanoseconds, while the burst continues after it.
    last: Option<(Handle, u64)>,
    /// Number of launches since the burst began.
    launches: u32,
    /// Whether operations other than kernels entered the stream since it was last known to be idle.
    other_work: bool,
    /// Event in this stream with a known time on the host's clock, in nanoseconds.
    reference: Option<(Handle, u64)>,
    /// Whether the program has destroyed the stream.
    destroyed: bool,
    /// Time at which all marked work is expected to be complete, in nanoseconds on the host's clock; the driver is not queried
    /// before it.
    expected_end: u64,
    /// Earliest possible start of the burst's first kernel, in nanoseconds.
    begins: u64,
}

/// Up to [`LAUNCHES`] launches that are measured together.
#[derive(Debug, Clone, Copy)]
struct LaunchGroup {
    launches: u32,
    estimate_ns: u64,
    /// Number of these launches whose functions have no measurement.
    unmeasured: u32,
    parts: [Part; LAUNCHES as usize],
}

impl LaunchGroup {
    const EMPTY: Self = Self {
        launches: 0,
        estimate_ns: 0,
        unmeasured: 0,
        parts: [(0, 0); LAUNCHES as usize],
    };
}

impl LaunchGroup {
    fn add(&mut self, info: FunctionInfo) {
        if let Some(part) = self.parts.get_mut(self.launches as usize) {
            *part = (info.slot, info.estimate_ns);
        }
        self.launches += 1;
        self.unmeasured += u32::from(info.is_new);
        self.estimate_ns = self.estimate_ns.saturating_add(info.estimate_ns);
    }
}

/// Event recorded in a stream, and its position among the launches.
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
    /// A burst begins after the mark.
    Begin {
        /// Time at which the mark was recorded if the stream was idle then, which is also its completion time.
        idle_since: Option<u64>,
        /// Earliest possible start of the burst's first kernel, in nanoseconds.
        not_before: u64,
    },
    /// The mark follows these launches.
    End {
        launches: LaunchGroup,
        /// Whether nothing was running any more when it was recorded.
        late: bool,
    },
}

thread_local! {
    /// Stream of this thread's last launch. It has no destructor, since threads end at any time.
    static RECENT: Cell<Option<&'static Stream>> = const { Cell::new(None) };
}

/// Returns an identifier of a stream: its handle, or for a default stream a value derived from the context and, if it is
/// per-thread, from the thread.
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
    // SAFETY: `context` is valid for writes.
    let _any = unsafe { driver::cuCtxGetCurrent(&raw mut context) };
    context
}

/// Returns the entry of a stream, creating it if `create` is set; `None` if there is none or the table is full.
fn find(stream: Handle, create: bool) -> Option<&'static Stream> {
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
        None if !create => return None,
        None => {
            let context = if matches!(stream, LEGACY | PER_THREAD) {
                context()
            } else {
                let mut context = 0;
                // SAFETY: `context` is valid for writes, and the program launches in this stream.
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

/// State passed from [`before`] to [`after`] of one launch.
#[derive(Debug)]
pub(crate) struct Launch {
    stream: Option<&'static Stream>,
    info: FunctionInfo,
}

/// Prepares the measurement of a launch, and adds it to the work in flight.
pub(crate) fn before(stream: Handle, default: DefaultStream, info: FunctionInfo) -> Launch {
    if info.is_new {
        update_unmeasured(|count| count.saturating_add(1));
    }
    // First, so that the agent sees the launch in progress even if this thread is blocked in it.
    let in_flight = IN_FLIGHT.fetch_add(info.estimate_ns, Ordering::AcqRel) & !SHUT;
    publish_in_flight(in_flight.saturating_add(info.estimate_ns));
    let stream = find(default.resolve(stream), true);
    if let Some(stream) = stream {
        let mut state = stream.lock();
        if state.unmarked.launches == 0 && state.should_be_over() {
            state.reap();
            if state.marks.is_empty() {
                state.begin();
            }
        }
    }
    Launch { stream, info }
}

/// Completes the measurement of a launch. `made` is false if the driver refused it.
pub(crate) fn after(launch: &Launch, made: bool) {
    let Launch { stream, info } = launch;
    let Some(stream) = stream.filter(|_| made) else {
        let mut launches = LaunchGroup::EMPTY;
        launches.add(*info);
        finish(&launches);
        return;
    };
    let mut state = stream.lock();
    state.unmarked.add(*info);
    state.launches = state.launches.saturating_add(1);
    let due = state.unmarked.launches >= LAUNCHES
        || state.unmarked.estimate_ns >= WORK_NS
        || info.is_new
        || (state.launches < LAUNCHES && state.launches.is_power_of_two());
    if due {
        state.mark(false);
        // A long series of launches has to collect its completed marks itself.
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
            unmarked: LaunchGroup::EMPTY,
            marks: VecDeque::new(),
            last: None,
            launches: 0,
            other_work: true,
            reference: None,
            begins: 0,
            expected_end: 0,
            destroyed: false,
        }
    }

    /// Begins a burst: records an event before its first launch.
    fn begin(&mut self) {
        self.launches = 0;
        self.end_burst();
        if self.other_work {
            let handle = self.handle;
            // SAFETY: a stream in which the program is launching.
            let code = capture::relaxed(|| unsafe { driver::cuStreamQuery(handle) });
            self.other_work = code != SUCCESS;
        }
        let Some(event) = events::take(self.context) else {
            return;
        };
        let recorded = time::now();
        if !events::record(event, self.handle) {
            events::recycle(self.context, event);
            return;
        }
        self.marks.push_back(Mark {
            event,
            kind: MarkKind::Begin {
                idle_since: (!self.other_work).then_some(recorded),
                not_before: time::now(),
            },
        });
        crate::gate::begin_burst(recorded);
        let facts = link::facts();
        let _oldest =
            facts
                .busy_since
                .compare_exchange(0, recorded, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Ends the burst if nothing is in flight, so that the next one is not measured from its end.
    fn end_burst(&mut self) {
        if self.marks.is_empty() {
            let before = self.last.take();
            self.retire(before);
        }
    }

    /// Returns all events to the pool.
    fn forget_events(&mut self) {
        self.end_burst();
        if let Some((reference, _)) = self.reference.take() {
            events::recycle(self.context, reference);
        }
    }

    /// Returns whether all marked work is expected to be complete.
    fn should_be_over(&self) -> bool {
        self.marks.is_empty() || time::now() >= self.expected_end
    }

    /// Records an event after all launches so far. `late` states that the stream was already idle.
    fn mark(&mut self, late: bool) {
        if self.unmarked.launches == 0 {
            return;
        }
        let launches = std::mem::replace(&mut self.unmarked, LaunchGroup::EMPTY);
        let begin = self.expected_end.max(time::now());
        self.expected_end = begin.saturating_add(launches.estimate_ns);
        let event = events::take(self.context).filter(|&event| {
            let recorded = events::record(event, self.handle);
            if !recorded {
                events::recycle(self.context, event);
            }
            recorded
        });
        match event {
            Some(event) => self.marks.push_back(Mark {
                event,
                kind: MarkKind::End { launches, late },
            }),
            // Without an event these launches cannot be measured.
            None => finish(&launches),
        }
    }

    /// Returns how much of the work before the first mark is expected to be done at `now`, in nanoseconds.
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

    /// Collects the completed marks.
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
                // After a sticky error no work completes; what was in flight has ended or cannot be determined.
                if let MarkKind::End { launches, .. } = mark.kind {
                    finish(&launches);
                }
                events::recycle(self.context, mark.event);
                link::report_fatal(code);
                continue;
            }
            self.complete(mark);
        }
    }

    /// Accounts for a completed mark.
    fn complete(&mut self, mark: Mark) {
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
                // The kernel was launched after the event was recorded, and cannot have begun before that.
                self.begins = at.max(not_before);
            }
            MarkKind::End { launches, late } => {
                let Some((from, at)) = self.last else {
                    finish(&launches);
                    events::recycle(self.context, mark.event);
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
                    functions::record(launches.parts.get(..count).unwrap_or(&[]), ran);
                }
                finish(&launches);
                let since = if in_flight() == 0 { 0 } else { end };
                link::facts().busy_since.store(since, Ordering::Release);
                let before = self.last.replace((mark.event, at.saturating_add(took)));
                self.retire(before);
            }
        }
    }

    /// Returns an event to the pool unless it is the reference or the last one.
    fn retire(&self, event: Option<(Handle, u64)>) {
        let Some((event, _)) = event else { return };
        let is = |kept: &Option<(Handle, u64)>| kept.is_some_and(|(kept, _)| kept == event);
        if !is(&self.reference) && !is(&self.last) {
            events::recycle(self.context, event);
        }
    }

    /// Discards all work and events of a destroyed context.
    fn forget(&mut self) {
        let unmarked = std::mem::replace(&mut self.unmarked, LaunchGroup::EMPTY);
        finish(&unmarked);
        for mark in self.marks.drain(..) {
            if let MarkKind::End { launches, .. } = mark.kind {
                finish(&launches);
            }
        }
        self.last = None;
        self.reference = None;
    }

    /// Marks the end of the launches so far, before the host waits for them or another operation follows them.
    fn mark_end(&mut self) {
        if self.unmarked.launches == 0 {
            return;
        }
        let handle = self.handle;
        let unmarked = self.unmarked.estimate_ns;
        let late = time::now() >= self.expected_end.saturating_add(unmarked)
            // SAFETY: a stream in which the program has launched, and which it has not destroyed.
            && capture::relaxed(|| unsafe { driver::cuStreamQuery(handle) }) == SUCCESS;
        self.mark(late);
    }
}

/// Returns the expected rest of the work in flight, in nanoseconds. Only the first launches of each stream are known to run, so
/// if launches take longer than expected, at most one group per stream is considered done too early.
pub(crate) fn remaining_in_flight() -> u64 {
    let now = time::now();
    let streams = snapshot();
    let done = streams
        .iter()
        .map(|stream| stream.lock().done_of_first(now));
    in_flight().saturating_sub(done.sum())
}

/// Marks the work in the stream, before another operation enters it or the host waits for it.
pub(crate) fn mark(stream: Handle, default: DefaultStream) {
    if in_flight() == 0 {
        return;
    }
    if let Some(stream) = find(default.resolve(stream), false) {
        stream.lock().mark_end();
    }
}

/// Returns whether the stream has no work that is known to be in flight.
pub(crate) fn is_empty(stream: Handle, default: DefaultStream) -> bool {
    let stream = find(default.resolve(stream), false);
    stream.is_none_or(|stream| {
        let state = stream.lock();
        state.marks.is_empty() && state.unmarked.launches == 0
    })
}

/// Notes that an operation other than a kernel enters the stream.
pub(crate) fn other_work(stream: Handle, default: DefaultStream) {
    if let Some(stream) = find(default.resolve(stream), false) {
        let mut state = stream.lock();
        state.mark_end();
        // Later launches begin a burst of their own, after this operation.
        state.reap();
        state.end_burst();
        state.other_work = true;
    }
}

/// Marks the work in all streams in which this thread may record.
pub(crate) fn mark_all() {
    if in_flight() == 0 {
        return;
    }
    for stream in snapshot() {
        let mut state = stream.lock();
        if state.handle == PER_THREAD && RECENT.get().is_none_or(|own| !std::ptr::eq(own, stream)) {
            // Only the owning thread can record in it.
            continue;
        }
        if state.unmarked.launches > 0 && !(capture::any() && capture::is_capturing(state.handle)) {
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

/// Collects the completed marks of all streams.
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

/// Notes that the host has waited for the stream.
pub(crate) fn stream_synchronized(stream: Handle, default: DefaultStream) {
    if let Some(stream) = find(default.resolve(stream), false) {
        let mut state = stream.lock();
        capture::relaxed(|| state.reap());
        if state.unmarked.launches == 0 && state.marks.is_empty() {
            state.other_work = false;
        }
    }
}

/// Notes that the host has waited for the whole context.
pub(crate) fn context_synchronized(context: Handle) {
    for stream in snapshot() {
        let mut state = stream.lock();
        if state.context == context {
            capture::relaxed(|| state.reap());
            if state.unmarked.launches == 0 && state.marks.is_empty() {
                state.other_work = false;
            }
        }
    }
}

/// Notes that the stream is about to be destroyed: its work continues, but no event can be recorded in it any more.
pub(crate) fn stream_destroyed(stream: Handle) {
    let Some(known) = find(stream, false) else {
        return;
    };
    {
        let mut state = known.lock();
        if !(capture::any() && capture::is_capturing(state.handle)) {
            state.mark_end();
        }
        state.destroyed = true;
    }
    known.key.store(usize::MAX, Ordering::Release);
    RECENT.set(None);
}

/// Discards all streams and events of a destroyed context.
pub(crate) fn context_destroyed(context: Handle) {
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

/// A stream with work in flight, and the event to wait for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UnfinishedStream {
    /// Context to make current before waiting.
    pub(crate) context: Handle,
    /// Last event in the stream; `None` if only the owning thread can record one, in which case the caller has to poll.
    pub(crate) event: Option<Handle>,
}

/// Marks the ends of all streams, from a thread of this library, and returns a stream with work in flight; `None` if there is
/// none.
pub(crate) fn first_unfinished() -> Option<UnfinishedStream> {
    let mut unfinished = None;
    for stream in snapshot() {
        let mut state = stream.lock();
        if state.unmarked.launches > 0 && !state.destroyed && state.handle != PER_THREAD {
            let context = state.context;
            // SAFETY: a context in which the program has launched; this thread's current context has no other use.
            let _any = unsafe { driver::cuCtxSetCurrent(context) };
            // No stream may begin to capture between the query and the record.
            let _guard = capture::transition();
            if !(capture::any() && capture::is_capturing(state.handle)) {
                state.mark_end();
            }
        }
        state.reap();
        if state.destroyed && state.marks.is_empty() && state.unmarked.launches == 0 {
            state.forget_events();
            drop(state);
            stream.key.store(0, Ordering::Release);
            continue;
        }
        if unfinished.is_none() && (!state.marks.is_empty() || state.unmarked.launches > 0) {
            unfinished = Some(UnfinishedStream {
                context: state.context,
                event: state.marks.back().map(|mark| mark.event),
            });
        }
    }
    unfinished
}

/// Publishes all measured kernel time.
pub(crate) fn publish() {
    if let Ok(mut busy) = BUSY.lock() {
        busy.flush(link::facts());
    }
}

/// Returns the kernel time until now, in nanoseconds.
pub(crate) fn busy_ns() -> u64 {
    BUSY.lock().map_or(0, |busy| busy.total_ns())
}

/// Runs `change` with the kernel time in nanoseconds, while no period is added. Used to switch to another page of facts.
pub(crate) fn with_busy<T>(change: impl FnOnce(u64) -> T) -> T {
    let busy = BUSY.lock().unwrap_or_else(PoisonError::into_inner);
    change(busy.total_ns())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(estimate_ns: u64) -> Mark {
        let launches = LaunchGroup {
            launches: 1,
            estimate_ns,
            ..LaunchGroup::EMPTY
        };
        let kind = MarkKind::End {
            launches,
            late: false,
        };
        Mark { event: 1, kind }
    }

    #[test]
    fn work_in_flight_is_done_in_proportion_to_the_time_since_its_start() {
        let mut state = State::new(0, 1);
        assert_eq!(state.done_of_first(9_000), 0, "nothing was launched");
        state.marks.push_back(end(5_000));
        assert_eq!(state.done_of_first(9_000), 0, "its start is unknown");
        state.last = Some((1, 2_000));
        assert_eq!(state.done_of_first(1_000), 0);
        assert_eq!(state.done_of_first(6_000), 4_000);
        state.marks.push_back(end(5_000));
        assert_eq!(
            state.done_of_first(90_000),
            5_000,
            "the second may not have started"
        );
        // The burst's first launch comes after the mark before it.
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
        assert_eq!(state.done_of_first(6_000), 0, "it may not have started");
    }
}
