//! Run time of launches and the amount of work in flight, measured by events recorded in the program's streams.
//!
//! A *burst* begins with a launch in a stream in which nothing is known to run. One event is recorded before its first launch.
//! Further events are recorded after its first, second, fourth and eighth launch and then after every sixteenth, after every
//! millisecond of expected run time, before the host waits for the stream, and before any operation other than a kernel enters
//! the stream. The time between two successive events is kernel time (M4.6). If the stream is already idle when an event
//! is recorded, the launches count with their expected run time.
//!
//! Capturing streams are not measured.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use protocol::page::Facts;

use crate::Handle;
use crate::busy::Busy;
use crate::counters::publish_in_flight;
use crate::functions::FunctionInfo;
use crate::gate::{Gate, Word};

mod group;
mod measurement;

pub use group::{LAUNCHES, LaunchGroup, WORK_NS};
pub use measurement::{Completion, Mark, MarkKind, Measurement, Reference};

/// Number of marks from which on a launch collects the completed ones.
pub const MARKS: usize = 12;
/// Largest number of streams measured per process; a per-thread default stream counts once per thread. Launches in further
/// streams count as work in flight only until they have returned.
pub const STREAMS_MAX: usize = 4096;

/// `CU_STREAM_LEGACY`: handle of the legacy default stream.
pub const LEGACY: Handle = 1;
/// `CU_STREAM_PER_THREAD`: handle of the calling thread's default stream.
pub const PER_THREAD: Handle = 2;

/// Meaning of the null stream handle, which depends on the called entry point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefaultStream {
    /// The legacy default stream.
    Legacy,
    /// The calling thread's own default stream.
    PerThread,
}

impl DefaultStream {
    /// Returns the stream's handle with the default stream made explicit, for driver functions that have one entry point only.
    #[inline]
    #[must_use]
    pub const fn resolve(self, stream: Handle) -> Handle {
        match (stream, self) {
            (0, Self::Legacy) => LEGACY,
            (0, Self::PerThread) => PER_THREAD,
            (stream, _) => stream,
        }
    }
}

/// A measured stream. Never freed, so that threads may keep references; the entry of a destroyed stream is reused.
#[derive(Debug)]
pub struct Stream {
    /// Identifier of the stream; 0 if the entry is free, `usize::MAX` if the stream was destroyed with work in it.
    key: AtomicUsize,
    state: Mutex<Measurement>,
}

impl Stream {
    /// Takes the lock of the stream's measurement.
    pub fn lock(&self) -> MutexGuard<'_, Measurement> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the identifier of the stream.
    #[inline]
    #[must_use]
    pub fn key(&self) -> usize {
        self.key.load(Ordering::Acquire)
    }

    /// Frees the entry, to be reused for another stream.
    pub fn free(&self) {
        self.key.store(0, Ordering::Release);
    }

    /// Marks the entry as that of a destroyed stream, whose work is still to be collected.
    pub fn destroy(&self) {
        self.key.store(usize::MAX, Ordering::Release);
    }
}

/// Streams of the process, and their work as a whole.
#[derive(Debug, Default)]
pub struct Streams {
    all: Mutex<Vec<&'static Stream>>,
    /// Number of launches in flight of functions without a measurement.
    unmeasured: AtomicU32,
    busy: Mutex<Busy>,
}

impl Streams {
    /// Creates the record of a process without streams.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            all: Mutex::new(Vec::new()),
            unmeasured: AtomicU32::new(0),
            busy: Mutex::new(Busy::new()),
        }
    }

    fn all(&self) -> MutexGuard<'_, Vec<&'static Stream>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the entry of a stream; `None` if there is none.
    pub fn get(&self, key: usize) -> Option<&'static Stream> {
        self.all().iter().find(|known| known.key() == key).copied()
    }

    /// Returns the entry of a stream, with a measurement by `make` if there is none yet; `None` if the table is full.
    pub fn get_or_insert(
        &self,
        key: usize,
        make: impl FnOnce() -> Measurement,
    ) -> Option<&'static Stream> {
        let mut all = self.all();
        if let Some(found) = all.iter().find(|known| known.key() == key) {
            return Some(found);
        }
        let state = make();
        if let Some(free) = all.iter().find(|known| known.key() == 0).copied() {
            *free.lock() = state;
            free.key.store(key, Ordering::Release);
            return Some(free);
        }
        if all.len() >= STREAMS_MAX {
            return None;
        }
        let made: &'static Stream = Box::leak(Box::new(Stream {
            key: AtomicUsize::new(key),
            state: Mutex::new(state),
        }));
        all.push(made);
        Some(made)
    }

    /// Returns all streams whose entries are in use.
    pub fn snapshot(&self) -> Vec<&'static Stream> {
        let all = self.all();
        all.iter()
            .filter(|stream| stream.key() != 0)
            .copied()
            .collect()
    }

    /// Adds a launch to the work in flight before it passes the gate, publishes it, and returns what was in flight without it, in
    /// nanoseconds. The caller asks [`Gate::passes`]; a launch that does not pass is finished with [`Self::finish`].
    ///
    /// Before, because its thread may be preempted at any point, and blocked in the launch itself: the agent would see a process with
    /// nothing in flight, and give its token to another.
    #[inline]
    pub fn announce(&self, info: &FunctionInfo, gate: &Gate, facts: &Facts) -> u64 {
        if info.is_new {
            self.update_unmeasured(facts, |count| count.saturating_add(1));
        }
        let before = gate.announce(info.estimate_ns);
        publish_in_flight(facts, before.saturating_add(info.estimate_ns));
        before
    }

    /// Removes launches that have finished, or were never made, from the work in flight.
    pub fn finish(&self, launches: &LaunchGroup, word: &Word, facts: &Facts) {
        if launches.unmeasured() > 0 {
            self.update_unmeasured(facts, |count| count.saturating_sub(launches.unmeasured()));
        }
        publish_in_flight(facts, word.subtract(launches.estimate_ns()));
    }

    fn update_unmeasured(&self, facts: &Facts, change: impl Fn(u32) -> u32) {
        let changed = self
            .unmeasured
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| {
                Some(change(count))
            });
        if let Ok(before) = changed {
            facts.unmeasured.store(change(before), Ordering::Release);
        }
    }

    /// Adds a period in which kernels ran, in nanoseconds.
    pub fn add_busy(&self, begin: u64, end: u64, facts: &Facts) {
        if let Ok(mut busy) = self.busy.lock() {
            busy.add(begin, end, facts);
        }
    }

    /// Publishes all measured kernel time.
    pub fn publish(&self, facts: &Facts) {
        if let Ok(mut busy) = self.busy.lock() {
            busy.flush(facts);
        }
    }

    /// Returns the kernel time until now, in nanoseconds.
    #[must_use]
    pub fn busy_ns(&self) -> u64 {
        self.busy.lock().map_or(0, |busy| busy.total_ns())
    }

    /// Runs `change` with the kernel time in nanoseconds, while no period is added. Used to switch to another page of facts.
    pub fn with_busy<T>(&self, change: impl FnOnce(u64) -> T) -> T {
        let busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        change(busy.total_ns())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(estimate_ns: u64, is_new: bool) -> FunctionInfo {
        FunctionInfo {
            slot: 3,
            estimate_ns,
            is_new,
            is_collective: false,
        }
    }

    #[test]
    fn the_default_stream_depends_on_the_entry_point() {
        assert_eq!(DefaultStream::Legacy.resolve(0), LEGACY);
        assert_eq!(DefaultStream::PerThread.resolve(0), PER_THREAD);
        assert_eq!(DefaultStream::PerThread.resolve(99), 99);
    }

    #[test]
    fn a_stream_has_one_entry_that_is_reused_when_it_is_free() {
        let streams = Streams::new();
        assert!(streams.get(10).is_none());
        let first = streams.get_or_insert(10, || Measurement::new(1, 10));
        let again = streams.get_or_insert(10, || panic!("it is known"));
        assert!(std::ptr::eq(first.unwrap(), again.unwrap()));
        first.unwrap().free();
        assert!(streams.get(10).is_none() && streams.snapshot().is_empty());
        let other = streams.get_or_insert(20, || Measurement::new(1, 20));
        assert!(std::ptr::eq(first.unwrap(), other.unwrap()));
    }

    #[test]
    fn a_destroyed_stream_keeps_its_entry_until_its_work_is_collected() {
        let streams = Streams::new();
        let stream = streams.get_or_insert(10, || Measurement::new(1, 10));
        stream.unwrap().destroy();
        assert!(streams.get(10).is_none());
        assert_eq!(streams.snapshot().len(), 1);
        // A new stream with the same handle gets an entry of its own.
        let other = streams.get_or_insert(10, || Measurement::new(1, 10));
        assert!(!std::ptr::eq(stream.unwrap(), other.unwrap()));
    }

    #[test]
    fn the_number_of_streams_is_bounded() {
        let streams = Streams::new();
        for key in 1..=STREAMS_MAX {
            assert!(
                streams
                    .get_or_insert(key, || Measurement::new(1, key))
                    .is_some()
            );
        }
        let more = streams.get_or_insert(STREAMS_MAX + 1, || Measurement::new(1, 1));
        assert!(more.is_none());
    }

    #[test]
    fn a_launch_is_in_flight_from_its_begin_to_its_finish() {
        let (streams, gate, facts) = (Streams::new(), Gate::new(), Facts::new());
        let word = gate.word();
        let launch = info(2_500, true);
        assert_eq!(streams.announce(&launch, &gate, &facts), 0);
        assert_eq!(streams.announce(&info(1_000, false), &gate, &facts), 2_500);
        assert_eq!(word.in_flight(), 3_500);
        assert_eq!(facts.inflight_us.load(Ordering::Relaxed), 4);
        assert_eq!(facts.unmeasured.load(Ordering::Relaxed), 1);
        streams.finish(&LaunchGroup::of(launch), word, &facts);
        assert_eq!(word.in_flight(), 1_000);
        assert_eq!(facts.unmeasured.load(Ordering::Relaxed), 0);
        streams.finish(&LaunchGroup::of(launch), word, &facts);
        assert_eq!(facts.inflight_us.load(Ordering::Relaxed), 0);
        assert_eq!(facts.unmeasured.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_group_has_room_for_sixteen_launches() {
        let mut group = LaunchGroup::EMPTY;
        assert!(group.is_empty());
        for _ in 0..20 {
            group.add(info(u64::MAX / 8, true));
        }
        assert_eq!((group.len(), group.parts().len()), (20, 16));
        assert_eq!(group.estimate_ns(), u64::MAX);
    }

    #[test]
    fn kernel_time_is_published_and_read() {
        let (streams, facts) = (Streams::new(), Facts::new());
        streams.add_busy(10, 30, &facts);
        assert_eq!(streams.busy_ns(), 20);
        assert_eq!(streams.with_busy(|ns| ns + 1), 21);
        streams.publish(&facts);
        let mut read = Vec::new();
        let _seen = facts.stretches(0, &mut read);
        assert_eq!(read, [(10, 30)]);
    }
}
