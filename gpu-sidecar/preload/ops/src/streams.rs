//! Measurement of the program's streams by events: see [`preload_state::streams`].

use std::sync::atomic::Ordering;

use preload_state::functions::FunctionInfo;
use preload_state::gate::Work;
use preload_state::streams::{
    DefaultStream, LEGACY, LaunchGroup, MARKS, Mark, MarkKind, Measurement, PER_THREAD, Stream,
};

use crate::cuda::{Handle, NOT_READY};
use crate::platform::{Driver, Platform, System};
use crate::{capture_mode, events};

/// Returns the expected run time of the work in flight, in nanoseconds.
pub fn in_flight<P: System>(host: P) -> u64 {
    host.process().gate.word().in_flight()
}

/// Returns an identifier of a stream: its handle, or for a default stream a value derived from the context and, if it is
/// per-thread, from the thread.
fn key<P: Platform>(host: P, stream: Handle) -> usize {
    match stream {
        LEGACY => context(host).rotate_left(8) | 1,
        PER_THREAD => {
            let own = host.thread_identity();
            context(host).rotate_left(8) ^ own.rotate_left(24) | 3
        }
        stream => stream,
    }
}

fn context<P: Driver>(host: P) -> Handle {
    host.current_context().unwrap_or(0)
}

/// Returns the entry of a stream, creating it if `create` is set; `None` if there is none or the table is full.
fn find<P: Platform>(host: P, stream: Handle, create: bool) -> Option<&'static Stream> {
    let key = key(host, stream);
    if let Some(recent) = host.recent()
        && recent.key() == key
    {
        return Some(recent);
    }
    let streams = &host.process().streams;
    let found = if create {
        streams.get_or_insert(key, || {
            let context = if matches!(stream, LEGACY | PER_THREAD) {
                context(host)
            } else {
                host.stream_context(stream).unwrap_or(0)
            };
            Measurement::new(context, stream)
        })
    } else {
        streams.get(key)
    };
    if found.is_some() {
        host.set_recent(found);
    }
    found
}

/// State passed from [`before`] to [`after`] of one launch.
#[derive(Debug)]
pub(crate) struct Launch {
    stream: Option<&'static Stream>,
    info: FunctionInfo,
}

/// Removes launches that have finished, or were never made, from the work in flight.
pub(crate) fn finish<P: System>(host: P, launches: &LaunchGroup) {
    let process = host.process();
    let word = process.gate.word();
    process.streams.finish(launches, word, host.facts());
}

/// Prepares the measurement of a launch, which is announced and has passed the gate.
pub(crate) fn before<P: Platform>(
    host: P,
    stream: Handle,
    default: DefaultStream,
    info: FunctionInfo,
) -> Launch {
    let stream = find(host, default.resolve(stream), true);
    if let Some(stream) = stream {
        let mut state = stream.lock();
        if !state.has_unmarked() && (state.marks().is_empty() || state.should_be_over(host.now())) {
            reap(host, &mut state);
            if state.marks().is_empty() {
                begin(host, &mut state);
            }
        }
    }
    Launch { stream, info }
}

/// Completes the measurement of a launch. `made` is false if the driver refused it.
pub(crate) fn after<P: Platform>(host: P, launch: &Launch, made: bool) {
    let Launch { stream, info } = launch;
    let Some(stream) = stream.filter(|_| made) else {
        finish(host, &LaunchGroup::of(*info));
        return;
    };
    let mut state = stream.lock();
    if state.add(*info) {
        record_mark(host, &mut state, false);
        // A long series of launches has to collect its completed marks itself.
        if state.marks().len() > MARKS {
            reap(host, &mut state);
        }
    }
}

/// Begins a burst: records an event before its first launch.
fn begin<P: Platform>(host: P, state: &mut Measurement) {
    state.restart();
    retire(host, state.context(), [state.end_burst()]);
    let (context, handle) = (state.context(), state.handle());
    if state.other_work {
        state.other_work = capture_mode::relaxed(host, || host.query_stream(handle)).is_err();
    }
    let Some(event) = events::take(host, context) else {
        return;
    };
    let recorded = host.now();
    if !events::record(host, event, handle) {
        events::recycle(host, context, event);
        return;
    }
    state.push(Mark {
        event,
        kind: MarkKind::Begin {
            idle_since: (!state.other_work).then_some(recorded),
            not_before: host.now(),
        },
    });
    host.process().gate.begin_burst(recorded);
    let since = &host.facts().busy_since;
    let _oldest = since.compare_exchange(0, recorded, Ordering::AcqRel, Ordering::Relaxed);
}

fn retire<P: Platform>(host: P, context: Handle, all: impl IntoIterator<Item = Option<Handle>>) {
    for event in all.into_iter().flatten() {
        events::recycle(host, context, event);
    }
}

/// Records an event after all launches so far. `late` states that the stream was already idle.
fn record_mark<P: Platform>(host: P, state: &mut Measurement, late: bool) {
    if !state.has_unmarked() {
        return;
    }
    let launches = state.take_unmarked(host.now());
    let (context, handle) = (state.context(), state.handle());
    let event = events::take(host, context).filter(|&event| {
        let recorded = events::record(host, event, handle);
        if !recorded {
            events::recycle(host, context, event);
        }
        recorded
    });
    match event {
        Some(event) => state.push(Mark {
            event,
            kind: MarkKind::End { launches, late },
        }),
        // Without an event these launches cannot be measured.
        None => finish(host, &launches),
    }
}

/// Marks the end of the launches so far, before the host waits for them or another operation follows them.
fn mark_end<P: Platform>(host: P, state: &mut Measurement) {
    if !state.has_unmarked() {
        return;
    }
    let handle = state.handle();
    let late = state.should_be_idle(host.now())
        && capture_mode::relaxed(host, || host.query_stream(handle)).is_ok();
    record_mark(host, state, late);
}

/// Collects the completed marks.
fn reap<P: Platform>(host: P, state: &mut Measurement) {
    while let Some(mark) = state.marks().front() {
        let completed = host.query_event(mark.event);
        if completed == Err(NOT_READY) {
            return;
        }
        let Some(mark) = state.pop() else {
            return;
        };
        if let Err(code) = completed {
            // After a sticky error no work completes; what was in flight has ended or cannot be determined.
            if let MarkKind::End { launches, .. } = &mark.kind {
                finish(host, launches);
            }
            events::recycle(host, state.context(), mark.event);
            host.report_fatal(code);
            continue;
        }
        complete(host, state, mark);
    }
}

/// Accounts for a completed mark.
fn complete<P: Platform>(host: P, state: &mut Measurement, mark: Mark) {
    let completion = state.complete(mark, |from, to| events::elapsed_ns(host, from, to));
    let process = host.process();
    if let Some((begin, end)) = completion.ran {
        process.streams.add_busy(begin, end, host.facts());
        if completion.is_measured
            && let Some(launches) = &completion.finished
        {
            let ran = end.saturating_sub(begin);
            process.functions.record(launches.parts(), ran);
        }
    }
    if let Some(launches) = &completion.finished {
        finish(host, launches);
    }
    if let Some((_, end)) = completion.ran {
        let since = if in_flight(host) == 0 { 0 } else { end };
        host.facts().busy_since.store(since, Ordering::Release);
    }
    retire(host, state.context(), completion.retired);
}

/// Work in flight, for a thread that waits at the gate to launch in a stream.
pub(crate) struct ParkedWork<P> {
    pub(crate) host: P,
    pub(crate) stream: Handle,
    pub(crate) default: DefaultStream,
}

impl<P: Platform> Work for ParkedWork<P> {
    fn reap(&mut self) {
        reap_all(self.host);
    }

    /// Only the first launches of each stream are known to run, so if launches take longer than expected, at most one group per
    /// stream is considered done too early.
    fn remaining_ns(&mut self) -> u64 {
        let now = self.host.now();
        let streams = self.host.process().streams.snapshot();
        let done = streams
            .iter()
            .map(|stream| stream.lock().done_of_first(now));
        in_flight(self.host).saturating_sub(done.sum())
    }

    fn is_stream_empty(&mut self) -> bool {
        let stream = find(self.host, self.default.resolve(self.stream), false);
        stream.is_none_or(|stream| stream.lock().is_empty())
    }
}

/// Marks the work in the stream, before another operation enters it or the host waits for it.
pub fn mark<P: Platform>(host: P, stream: Handle, default: DefaultStream) {
    if in_flight(host) == 0 {
        return;
    }
    if let Some(stream) = find(host, default.resolve(stream), false) {
        mark_end(host, &mut stream.lock());
    }
}

/// Notes that an operation other than a kernel enters the stream.
pub fn other_work<P: Platform>(host: P, stream: Handle, default: DefaultStream) {
    if let Some(stream) = find(host, default.resolve(stream), false) {
        let mut state = stream.lock();
        mark_end(host, &mut state);
        // Later launches begin a burst of their own, after this operation.
        reap(host, &mut state);
        let before = state.end_burst();
        retire(host, state.context(), [before]);
        state.other_work = true;
    }
}

/// Marks the work in all streams in which this thread may record.
pub fn mark_all<P: Platform>(host: P) {
    if in_flight(host) == 0 {
        return;
    }
    for stream in host.process().streams.snapshot() {
        let mut state = stream.lock();
        let is_recent = host.recent().is_some_and(|own| std::ptr::eq(own, stream));
        if state.handle() == PER_THREAD && !is_recent {
            // Only the owning thread can record in it.
            continue;
        }
        if state.has_unmarked()
            && !(capture_mode::any(host) && capture_mode::is_capturing(host, state.handle()))
        {
            mark_end(host, &mut state);
        }
    }
}

/// Collects the completed marks of all streams.
pub fn reap_all<P: Platform>(host: P) {
    if in_flight(host) == 0 {
        return;
    }
    capture_mode::relaxed(host, || {
        for stream in host.process().streams.snapshot() {
            reap(host, &mut stream.lock());
        }
    });
}

fn synchronized<P: Platform>(host: P, state: &mut Measurement) {
    capture_mode::relaxed(host, || reap(host, state));
    if state.is_empty() {
        state.other_work = false;
    }
}

/// Notes that the host has waited for the stream.
pub fn stream_synchronized<P: Platform>(host: P, stream: Handle, default: DefaultStream) {
    if let Some(stream) = find(host, default.resolve(stream), false) {
        synchronized(host, &mut stream.lock());
    }
}

/// Notes that the host has waited for the whole context.
pub fn context_synchronized<P: Platform>(host: P, context: Handle) {
    for stream in host.process().streams.snapshot() {
        let mut state = stream.lock();
        if state.context() == context {
            synchronized(host, &mut state);
        }
    }
}

/// Notes that the stream is about to be destroyed: its work continues, but no event can be recorded in it any more.
pub fn stream_destroyed<P: Platform>(host: P, stream: Handle) {
    let Some(known) = find(host, stream, false) else {
        return;
    };
    {
        let mut state = known.lock();
        if !(capture_mode::any(host) && capture_mode::is_capturing(host, state.handle())) {
            mark_end(host, &mut state);
        }
        state.destroyed = true;
    }
    known.destroy();
    host.set_recent(None);
}

/// Discards all streams and events of a destroyed context.
pub fn context_destroyed<P: Platform>(host: P, context: Handle) {
    let process = host.process();
    for stream in process.streams.snapshot() {
        let mut state = stream.lock();
        if state.context() == context {
            state.discard(|launches| finish(host, launches));
            drop(state);
            stream.free();
        }
    }
    process.events.forget(context);
}

/// A stream with work in flight, and the event to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UnfinishedStream {
    /// Context to make current before waiting.
    pub(crate) context: Handle,
    /// Last event in the stream; `None` if only the owning thread can record one, in which case the caller has to poll.
    pub(crate) event: Option<Handle>,
}

/// Marks the ends of all streams, from a thread of this library, and returns a stream with work in flight; `None` if there is
/// none.
pub(crate) fn first_unfinished<P: Platform>(host: P) -> Option<UnfinishedStream> {
    let mut unfinished = None;
    let process = host.process();
    for stream in process.streams.snapshot() {
        let mut state = stream.lock();
        if state.has_unmarked() && !state.destroyed && state.handle() != PER_THREAD {
            // This thread's current context has no other use.
            let _any = host.set_current_context(state.context());
            // No stream may begin to capture between the query and the record.
            let _guard = process.captures.transition();
            if !(capture_mode::any(host) && capture_mode::is_capturing(host, state.handle())) {
                mark_end(host, &mut state);
            }
        }
        reap(host, &mut state);
        if state.destroyed && state.is_empty() {
            let events = state.take_events();
            retire(host, state.context(), events);
            drop(state);
            stream.free();
            continue;
        }
        if unfinished.is_none() && !state.is_empty() {
            unfinished = Some(UnfinishedStream {
                context: state.context(),
                event: state.marks().back().map(|mark| mark.event),
            });
        }
    }
    unfinished
}
