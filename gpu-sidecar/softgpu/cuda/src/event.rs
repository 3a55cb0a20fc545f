//! Events: recording, waiting, and elapsed times.

use softgpu_wire::clock;
use softgpu_wire::page::Awaited;
use softgpu_wire::record::{Command, StreamSlot};

use crate::context::Context;
use crate::driver::{Driver, driver};
use crate::error::{Error, Result};
use crate::graph;
use crate::ipc::SharedEvent;
use crate::pointer::Out;
use crate::state::{State, event_slot};
use crate::stream::{self, DefaultStream, Stream};
use crate::table::{Handle, Kind};

/// `CU_EVENT_BLOCKING_SYNC`: waits may sleep, which all waits here do.
const FLAG_BLOCKING_SYNC: u32 = 1;
/// `CU_EVENT_DISABLE_TIMING`: the event has no time.
pub(crate) const FLAG_DISABLE_TIMING: u32 = 2;
/// `CU_EVENT_INTERPROCESS`: other processes may use the event.
pub(crate) const FLAG_INTERPROCESS: u32 = 4;

/// Makes a record or wait in a captured stream a node of its own (`CU_EVENT_RECORD_EXTERNAL`,
/// `CU_EVENT_WAIT_EXTERNAL`).
pub(crate) const FLAG_EXTERNAL: u32 = 1;

/// An event of this process.
pub(crate) struct Event {
    pub(crate) context: Handle<Context>,
    pub(crate) flags: u32,
    /// Number of the event's last record, among all records of this process; 0 for none.
    pub(crate) latest: u64,
    /// Capture in which the event was recorded last, and the nodes before the record.
    pub(crate) captured: Option<(Handle<graph::Capture>, Vec<usize>)>,
    /// State shared with other processes, for an interprocess event.
    pub(crate) shared: Option<SharedEvent>,
}

impl Kind for Event {
    const NUMBER: u64 = 3;
}

/// Creates an event in a context.
pub(crate) fn create(
    state: &mut State,
    context: Handle<Context>,
    flags: u32,
) -> Result<Handle<Event>> {
    let event = Event {
        context,
        flags,
        latest: 0,
        captured: None,
        shared: None,
    };
    state.events.insert(event).ok_or(Error::OUT_OF_MEMORY)
}

/// Returns the number of a new record of an event.
pub(crate) fn next_record(state: &mut State, event: Handle<Event>) -> u64 {
    state.records += 1;
    let number = state.records;
    if let Some(event) = state.events.get_mut(event) {
        event.latest = number;
        event.captured = None;
    }
    number
}

/// Destroys an event. The ring must have room for a command.
pub(crate) fn forget(driver: &Driver, state: &mut State, event: Handle<Event>) {
    if state.events.remove(event).is_some() {
        let command = Command::EventDestroy {
            event: event_slot(event),
        };
        driver.put(clock::now(), StreamSlot(0), None, command);
    }
}

/// Makes a stream wait for an event.
pub(crate) fn wait_in_stream(
    driver: &Driver,
    state: &mut State,
    stream: Handle<Stream>,
    event: Handle<Event>,
) -> Result {
    let there = state.events.get(event).ok_or(Error::INVALID_HANDLE)?;
    if let Some((capture, nodes)) = there.captured.clone() {
        return graph::join(state, stream, capture, &nodes);
    }
    if graph::capture_of(state, stream).is_some() {
        // A record made outside the capture cannot be awaited inside.
        graph::invalidate(state, stream);
        return Err(Error::STREAM_CAPTURE_ISOLATION);
    }
    if there.latest == 0 && there.shared.is_none() {
        return Ok(());
    }
    let effect = there.shared.as_ref().map(SharedEvent::wait_effect);
    stream::order(driver, state, stream)?;
    let event = event_slot(event);
    stream::submit(driver, state, stream, Command::Wait { event }, effect);
    Ok(())
}

/// Records an event in a stream.
pub(crate) fn record_in_stream(
    driver: &Driver,
    state: &mut State,
    stream: Handle<Stream>,
    event: Handle<Event>,
) -> Result {
    let there = state.events.get(event).ok_or(Error::INVALID_HANDLE)?;
    let of = state
        .streams
        .get(stream)
        .ok_or(Error::INVALID_HANDLE)?
        .context;
    if there.context != of {
        return Err(Error::INVALID_HANDLE);
    }
    if graph::capture_of(state, stream).is_some() {
        return graph::record(state, stream, event);
    }
    let effect = there.shared.as_ref().map(SharedEvent::record_effect);
    stream::order(driver, state, stream)?;
    let number = next_record(state, event);
    let event = event_slot(event);
    stream::submit(
        driver,
        state,
        stream,
        Command::Record { event, number },
        effect,
    );
    Ok(())
}

/// Implements `cuEventCreate`: an interprocess event must also disable timing.
pub(crate) fn create_handle(out: Out<Handle<Event>>, flags: u32) -> Result {
    let driver = driver()?;
    let known = FLAG_BLOCKING_SYNC | FLAG_DISABLE_TIMING | FLAG_INTERPROCESS;
    let is_shared = flags & FLAG_INTERPROCESS != 0;
    if flags & !known != 0 || out.is_null() || is_shared && flags & FLAG_DISABLE_TIMING == 0 {
        return Err(Error::INVALID_VALUE);
    }
    let mut state = driver.room(1)?;
    let context = driver.current(&state)?;
    let event = create(&mut state, context, flags)?;
    if is_shared {
        let shared = SharedEvent::create()?;
        if let Some(event) = state.events.get_mut(event) {
            event.shared = Some(shared);
        }
    }
    out.put(event)
}

/// Implements `cuEventDestroy_v2`: destroys an event; waits already submitted keep their condition.
pub(crate) fn destroy(event: Handle<Event>) -> Result {
    let driver = driver()?;
    let mut state = driver.room(1)?;
    if state.events.get(event).is_none() {
        return Err(Error::INVALID_HANDLE);
    }
    forget(driver, &mut state, event);
    Ok(())
}

/// Implements `cuEventRecord` and `cuEventRecordWithFlags`: records an event in a stream.
pub(crate) fn record(
    event: Handle<Event>,
    stream: Handle<Stream>,
    flags: u32,
    default: DefaultStream,
) -> Result {
    let driver = driver()?;
    if flags > 1 {
        return Err(Error::INVALID_VALUE);
    }
    let mut state = stream::room(driver)?;
    let stream = stream::resolve(driver, &mut state, stream, default)?;
    if flags == FLAG_EXTERNAL && graph::capture_of(&state, stream).is_some() {
        return graph::capture_record(&mut state, stream, event);
    }
    let is_shared = state
        .events
        .get(event)
        .is_some_and(|event| event.shared.is_some());
    record_in_stream(driver, &mut state, stream, event)?;
    if is_shared {
        // Another process may learn of the record at once, by means outside the driver.
        driver.nudge();
    }
    Ok(())
}

/// Returns the condition under which the event has occurred; `None` if it was never recorded.
fn awaited(driver: &Driver, event: Handle<Event>) -> Result<Option<Awaited>> {
    let (is_shared, latest) = {
        let mut state = driver.state();
        let there = state.events.get(event).ok_or(Error::INVALID_HANDLE)?;
        driver.check(&state, there.context)?;
        if let Some((capture, _)) = &there.captured {
            let capture = *capture;
            graph::invalidate_capture(&mut state, capture);
            return Err(Error::CAPTURED_EVENT);
        }
        (there.shared.is_some(), there.latest)
    };
    let latest = if is_shared {
        crate::ipc::latest_record(driver, event)?
    } else {
        latest
    };
    Ok((latest > 0).then_some(Awaited::Event(event_slot(event), latest)))
}

fn check_context(driver: &Driver, event: Handle<Event>) -> Result {
    let state = driver.state();
    match state.events.get(event) {
        Some(event) => driver.check(&state, event.context),
        None => Ok(()),
    }
}

/// Implements `cuEventQuery`: fails with `CUDA_ERROR_NOT_READY` until the last record has occurred.
pub(crate) fn query(event: Handle<Event>) -> Result {
    let driver = driver()?;
    if let Some(awaited) = awaited(driver, event)?
        && !driver.has_happened(awaited)
    {
        check_context(driver, event)?;
        return Err(Error::NOT_READY);
    }
    check_context(driver, event)
}

/// Implements `cuEventSynchronize`: blocks until the last record has occurred.
pub(crate) fn synchronise(event: Handle<Event>) -> Result {
    let driver = driver()?;
    if let Some(awaited) = awaited(driver, event)? {
        driver.wait(awaited)?;
    }
    check_context(driver, event)
}

/// Implements `cuEventElapsedTime` and `cuEventElapsedTime_v2`: returns the difference in ms on the timeline.
pub(crate) fn elapsed(out: Out<f32>, start: Handle<Event>, end: Handle<Event>) -> Result {
    let driver = driver()?;
    let time = |event: Handle<Event>| {
        let state = driver.state();
        let there = state.events.get(event).ok_or(Error::INVALID_HANDLE)?;
        driver.check(&state, there.context)?;
        if there.flags & FLAG_DISABLE_TIMING != 0 || there.latest == 0 {
            return Err(Error::INVALID_HANDLE);
        }
        let latest = there.latest;
        drop(state);
        let awaited = Awaited::Event(event_slot(event), latest);
        if !driver.has_happened(awaited) {
            return Err(Error::NOT_READY);
        }
        Ok(driver.page.event(event_slot(event)).1.0)
    };
    let (start, end) = (time(start)?, time(end)?);
    out.put(milliseconds(start, end))
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "the interface gives a float of milliseconds"
)]
fn milliseconds(start: u64, end: u64) -> f32 {
    let nanoseconds = i128::from(end) - i128::from(start);
    (nanoseconds as f64 / 1e6) as f32
}
