//! Memory that one client shares with the server: commands one way, completions the other. No other process maps it,
//! and neither side takes a lock in it.
//!
//! Either side may die or write invalid values at any moment: each side validates what it reads, and the file is sealed
//! at its size, so that neither side can make the other fault.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use device::Time;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::clock;
use crate::record::{EventSlot, StreamSlot, WORDS};

/// Capacity of the command ring.
pub const COMMANDS: u64 = COMMAND_PLACES as u64;
/// Largest number of a client's commands in flight; the next one blocks.
pub const IN_FLIGHT: u64 = COMPLETION_PLACES as u64;
/// Largest number of a client's streams.
pub const STREAMS: usize = 2048;
/// Largest number of a client's events.
pub const EVENTS: usize = 131_072;
/// Largest number of a client's contexts.
pub const CONTEXTS: usize = 64;
/// Largest number of a client's threads that block in a wait slot at once; further threads poll.
pub const WAITS: usize = 64;

const COMMAND_PLACES: usize = 2048;
const COMPLETION_PLACES: usize = 8192;
const MAGIC: u64 = u64::from_le_bytes(*b"weirgpu\0");
const VERSION: u64 = 2;

/// Condition for which a thread waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// This many commands of a stream have ended.
    Stream(StreamSlot, u64),
    /// The record of an event with this number has occurred.
    Event(EventSlot, u64),
    /// This many commands of all streams have ended.
    Retired(u64),
    /// The server has taken this many commands out of the ring.
    Taken(u64),
}

/// Notification that a command has ended, or that a host function may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Token of the command; for a host function in a graph, the token of the graph's launch.
    pub token: u64,
    /// For a host function: the command, to be returned in [`crate::record::Command::HostDone`]. For a wait on an event
    /// of another process: the number of its records that must have taken effect.
    pub value: u64,
    /// For a host function: its node's index in the graph, plus one. For a dropped command: [`DROPPED`]. Otherwise 0.
    pub turn: u64,
}

/// Value of [`Completion::turn`] for a command that was dropped and has no effect on memory.
pub const DROPPED: u64 = u64::MAX;

#[derive(Debug)]
#[repr(C, align(64))]
struct Line<T>(T);

#[derive(Debug)]
#[repr(C)]
struct FromClient {
    tail: AtomicU64,
    /// Counter incremented whenever a thread begins to wait or makes a request.
    attention: AtomicU32,
}

#[derive(Debug)]
#[repr(C)]
struct FromServer {
    head: AtomicU64,
    retired: AtomicU64,
    /// 0: running; 1: locked for a checkpoint.
    locked: AtomicU32,
}

#[derive(Debug)]
#[repr(C, align(32))]
struct WaitSlot {
    /// 0: free; 1: waiting; 2: condition reached; 3: claimed, not yet filled in.
    state: AtomicU32,
    kind: AtomicU32,
    index: AtomicU32,
    target: AtomicU64,
    /// Time at which the wait began, in nanoseconds.
    since: AtomicU64,
}

#[derive(Debug)]
#[repr(C)]
struct EventWord {
    record: AtomicU64,
    time: AtomicU64,
}

#[derive(Debug)]
#[repr(C)]
struct CompletionWords {
    token: AtomicU64,
    value: AtomicU64,
    turn: AtomicU64,
}

/// Layout of the shared memory.
#[derive(Debug)]
#[repr(C)]
pub struct Page {
    magic: AtomicU64,
    version: AtomicU64,
    client: Line<FromClient>,
    server: Line<FromServer>,
    completions_tail: Line<AtomicU64>,
    completions_head: Line<AtomicU64>,
    /// Low half of the number of completions: the futex on which the client's worker waits.
    completions_bell: Line<AtomicU32>,
    waits_active: Line<AtomicU64>,
    faults: [AtomicU32; CONTEXTS],
    waits: [WaitSlot; WAITS],
    commands: [[AtomicU64; WORDS]; COMMAND_PLACES],
    completions: [CompletionWords; COMPLETION_PLACES],
    streams: [AtomicU64; STREAMS],
    events: [EventWord; EVENTS],
}

/// State of the server that all clients read.
#[derive(Debug)]
#[repr(C)]
pub struct Bell {
    magic: AtomicU64,
    version: AtomicU64,
    /// 0: awake; 1: asleep for a short time; 2: asleep until a client rings.
    sleeps: AtomicU32,
}

/// How the server sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// Running; reads all rings again before it sleeps.
    Awake,
    /// Asleep for milliseconds at most, then reads all rings.
    Short,
    /// Asleep until a client rings.
    Deep,
}

/// A mapping of shared memory.
#[derive(Debug)]
pub struct Shared<T> {
    at: *const T,
}

// SAFETY: all there is in the memory are atomics, and the mapping lives as long as the value.
#[expect(unsafe_code, reason = "shared memory")]
unsafe impl<T: Sync> Send for Shared<T> {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "shared memory")]
unsafe impl<T: Sync> Sync for Shared<T> {}

/// Types that may be mapped over shared memory: atomics only, for which every bit pattern is valid.
trait Plain: Sync {}
impl Plain for Page {}
impl Plain for Bell {}

impl<T: Sync> std::ops::Deref for Shared<T> {
    type Target = T;

    #[expect(unsafe_code, reason = "shared memory")]
    fn deref(&self) -> &T {
        // SAFETY: mapped at its full size, which is sealed, until the value is dropped; `T` is of atomics alone (`Plain`).
        unsafe { &*self.at }
    }
}

impl<T> Drop for Shared<T> {
    #[expect(unsafe_code, reason = "shared memory")]
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `map`, and only this value unmaps it.
        let _unmapped = unsafe { munmap(self.at.cast_mut().cast(), size_of::<T>()) };
    }
}

/// Fixes the size of the file and the set of its seals.
const SEALS: SealFlags = SealFlags::SHRINK
    .union(SealFlags::GROW)
    .union(SealFlags::SEAL);

fn create(name: &str, bytes: usize) -> Result<OwnedFd, Errno> {
    let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, bytes as u64)?;
    Ok(file)
}

#[expect(private_bounds, reason = "only what this module declares is mapped")]
impl<T: Plain> Shared<T> {
    #[expect(unsafe_code, reason = "shared memory")]
    fn map(file: impl AsFd, access: ProtFlags) -> Result<Self, Errno> {
        let size = size_of::<T>();
        if fstat(&file)?.st_size != i64::try_from(size).unwrap_or(i64::MAX) {
            return Err(Errno::INVAL);
        }
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let at = unsafe {
            mmap(
                std::ptr::null_mut(),
                size,
                access,
                MapFlags::SHARED,
                file,
                0,
            )?
        };
        Ok(Self {
            at: at.cast_const().cast(),
        })
    }
}

const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

impl Shared<Page> {
    /// Creates the memory of a client; returns it and the file to send to the client.
    ///
    /// # Errors
    /// Fails when the system has no memory or file descriptor left.
    pub fn create() -> Result<(Self, OwnedFd), Errno> {
        let file = create("weir-softgpu-client", size_of::<Page>())?;
        let page = Self::map(&file, READ_WRITE)?;
        fcntl_add_seals(&file, SEALS)?;
        page.magic.store(MAGIC, Ordering::Relaxed);
        page.version.store(VERSION, Ordering::Relaxed);
        Ok((page, file))
    }

    /// Maps the client's side.
    ///
    /// # Errors
    /// Fails when the file cannot be mapped or has another version.
    pub fn open(file: impl AsFd) -> Result<Self, Errno> {
        let page = Self::map(file, READ_WRITE)?;
        let is_ours = page.magic.load(Ordering::Relaxed) == MAGIC
            && page.version.load(Ordering::Relaxed) == VERSION;
        if is_ours { Ok(page) } else { Err(Errno::INVAL) }
    }
}

impl Shared<Bell> {
    /// Creates the server's side; returns it and the file to send to clients.
    ///
    /// # Errors
    /// Fails when the system has no memory or file descriptor left.
    pub fn create() -> Result<(Self, OwnedFd), Errno> {
        let file = create("weir-softgpu-bell", size_of::<Bell>())?;
        let bell = Self::map(&file, READ_WRITE)?;
        bell.magic.store(MAGIC, Ordering::Relaxed);
        bell.version.store(VERSION, Ordering::Relaxed);
        // Clients may only read; the server's writable mapping exists already.
        fcntl_add_seals(&file, SEALS | SealFlags::FUTURE_WRITE)?;
        Ok((bell, file))
    }

    /// Maps a client's side.
    ///
    /// # Errors
    /// Fails when the file cannot be mapped or has another version.
    pub fn open(file: impl AsFd) -> Result<Self, Errno> {
        let bell = Self::map(file, ProtFlags::READ)?;
        let is_ours = bell.magic.load(Ordering::Relaxed) == MAGIC
            && bell.version.load(Ordering::Relaxed) == VERSION;
        if is_ours { Ok(bell) } else { Err(Errno::INVAL) }
    }
}

impl Bell {
    /// Publishes how the server sleeps. Before it does sleep, the server must read all rings once more.
    pub fn set(&self, sleep: Sleep) {
        let value = match sleep {
            Sleep::Awake => 0,
            Sleep::Short => 1,
            Sleep::Deep => 2,
        };
        self.sleeps.store(value, Ordering::Relaxed);
        // Pairs with the fence in `sleep`: either the server sees the client's write, or the client sees that the
        // server sleeps.
        fence(Ordering::SeqCst);
    }

    /// Returns how the server sleeps; to be called after writing for the server.
    #[must_use]
    pub fn sleep(&self) -> Sleep {
        fence(Ordering::SeqCst);
        match self.sleeps.load(Ordering::Relaxed) {
            0 => Sleep::Awake,
            1 => Sleep::Short,
            _ => Sleep::Deep,
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "places in rings, which are far below 2^32"
)]
const fn place(count: u64, of: u64) -> usize {
    (count % of) as usize
}

/// The client's side. One thread at a time calls [`Page::push`], and one [`Page::next_completion`].
impl Page {
    /// Appends a command to the ring; returns `false` if it is full.
    pub fn push(&self, words: &[u64; WORDS]) -> bool {
        let tail = self.client.0.tail.load(Ordering::Relaxed);
        if tail.wrapping_sub(self.server.0.head.load(Ordering::Acquire)) >= COMMANDS {
            return false;
        }
        for (to, word) in self.commands[place(tail, COMMANDS)].iter().zip(words) {
            to.store(*word, Ordering::Relaxed);
        }
        self.client.0.tail.store(tail + 1, Ordering::Release);
        true
    }

    /// Returns the number of commands ever appended.
    #[must_use]
    pub fn pushed(&self) -> u64 {
        self.client.0.tail.load(Ordering::Relaxed)
    }

    /// Returns the number of commands the server has taken out of the ring.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.server.0.head.load(Ordering::Acquire)
    }

    /// Returns the number of commands that have ended.
    #[must_use]
    pub fn retired(&self) -> u64 {
        self.server.0.retired.load(Ordering::Acquire)
    }

    /// Requests that the server read the rings.
    pub fn request_attention(&self) {
        self.client.0.attention.fetch_add(1, Ordering::Release);
    }

    /// Returns the next completion without removing it; see [`Page::completion_taken`].
    #[must_use]
    pub fn next_completion(&self) -> Option<Completion> {
        let head = self.completions_head.0.load(Ordering::Relaxed);
        if head == self.completions_tail.0.load(Ordering::Acquire) {
            return None;
        }
        let words = &self.completions[place(head, IN_FLIGHT)];
        let completion = Completion {
            token: words.token.load(Ordering::Relaxed),
            value: words.value.load(Ordering::Relaxed),
            turn: words.turn.load(Ordering::Relaxed),
        };
        Some(completion)
    }

    /// Removes the next completion.
    pub fn completion_taken(&self) {
        self.completions_head.0.fetch_add(1, Ordering::Release);
    }

    /// Returns the futex on which the worker waits; every completion changes it.
    #[must_use]
    pub const fn completions_bell(&self) -> &AtomicU32 {
        &self.completions_bell.0
    }

    /// Returns the number of commands of a stream that have ended, since the memory was created.
    #[must_use]
    pub fn stream_done(&self, stream: StreamSlot) -> u64 {
        self.streams
            .get(stream.0 as usize)
            .map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// Returns the number and the time of an event's last record that has occurred.
    #[must_use]
    pub fn event(&self, event: EventSlot) -> (u64, Time) {
        let Some(word) = self.events.get(event.0 as usize) else {
            return (0, Time::ZERO);
        };
        loop {
            let record = word.record.load(Ordering::Acquire);
            let time = word.time.load(Ordering::Acquire);
            if word.record.load(Ordering::Acquire) == record {
                return (record, Time(time));
            }
        }
    }

    /// Returns the error of a context as a `CUresult`; 0 for none.
    #[must_use]
    pub fn fault(&self, context: u32) -> u32 {
        self.faults
            .get(context as usize)
            .map_or(0, |fault| fault.load(Ordering::Acquire))
    }

    /// Returns the futex that is 1 while a checkpoint locks this client.
    #[must_use]
    pub const fn locked(&self) -> &AtomicU32 {
        &self.server.0.locked
    }

    /// Claims a wait slot; returns `None` if all are taken. The caller then calls [`Page::request_attention`] and
    /// rings.
    #[must_use]
    pub fn begin_wait(&self, awaited: Awaited) -> Option<WaitHandle> {
        let place = self.waits.iter().position(|slot| {
            slot.state
                .compare_exchange(0, 3, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
        })?;
        let (kind, index, target) = match awaited {
            Awaited::Stream(stream, target) => (1, stream.0, target),
            Awaited::Event(event, target) => (2, event.0, target),
            Awaited::Retired(target) => (3, 0, target),
            Awaited::Taken(target) => (4, 0, target),
        };
        let slot = &self.waits[place];
        slot.kind.store(kind, Ordering::Relaxed);
        slot.index.store(index, Ordering::Relaxed);
        slot.target.store(target, Ordering::Relaxed);
        slot.since.store(clock::now().0, Ordering::Relaxed);
        slot.state.store(1, Ordering::Release);
        self.waits_active.0.fetch_or(1 << place, Ordering::Release);
        Some(WaitHandle(place))
    }

    /// Returns the futex of a slot, which is 1 until its condition is reached.
    #[must_use]
    pub fn wait_word(&self, place: &WaitHandle) -> &AtomicU32 {
        &self.waits[place.0].state
    }

    /// Releases a wait slot.
    #[expect(clippy::needless_pass_by_value, reason = "the handle is consumed")]
    pub fn end_wait(&self, place: WaitHandle) {
        self.waits_active
            .0
            .fetch_and(!(1 << place.0), Ordering::Release);
        self.waits[place.0].state.store(0, Ordering::Release);
    }
}

/// A claimed wait slot.
#[derive(Debug)]
pub struct WaitHandle(usize);

/// A violation of the protocol by the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtocolViolation;

/// The server's side. It keeps its own counters, since the client could overwrite those in the memory.
impl Page {
    /// Returns the next command after `head` commands taken, without removing it; see [`Page::pop`].
    ///
    /// # Errors
    /// Fails when the client's counter is out of range.
    pub fn front(&self, head: u64) -> Result<Option<[u64; WORDS]>, ProtocolViolation> {
        let tail = self.client.0.tail.load(Ordering::Acquire);
        match tail.wrapping_sub(head) {
            0 => return Ok(None),
            1..=COMMANDS => {}
            _ => return Err(ProtocolViolation),
        }
        let words = &self.commands[place(head, COMMANDS)];
        Ok(Some(std::array::from_fn(|at| {
            words[at].load(Ordering::Relaxed)
        })))
    }

    /// Removes the command at the front.
    pub fn pop(&self, head: &mut u64) {
        *head += 1;
        self.server.0.head.store(*head, Ordering::Release);
    }

    /// Returns whether the ring holds a command beyond the `head` taken ones.
    #[must_use]
    pub fn has_commands(&self, head: u64) -> bool {
        self.client.0.tail.load(Ordering::Acquire) != head
    }

    /// Returns a counter that changes with every wait and request of the client.
    #[must_use]
    pub fn attention(&self) -> u32 {
        self.client.0.attention.load(Ordering::Acquire)
    }

    /// Publishes the number of commands that have ended.
    pub fn set_retired(&self, retired: u64) {
        self.server.0.retired.store(retired, Ordering::Release);
    }

    /// Appends a completion after `tail` earlier ones; returns `false` while the ring is full.
    pub fn complete(&self, tail: &mut u64, completion: Completion) -> bool {
        let head = self.completions_head.0.load(Ordering::Acquire);
        if tail.wrapping_sub(head) >= IN_FLIGHT {
            return false;
        }
        let words = &self.completions[place(*tail, IN_FLIGHT)];
        words.token.store(completion.token, Ordering::Relaxed);
        words.value.store(completion.value, Ordering::Relaxed);
        words.turn.store(completion.turn, Ordering::Relaxed);
        *tail += 1;
        self.completions_tail.0.store(*tail, Ordering::Release);
        self.completions_bell.0.fetch_add(1, Ordering::Release);
        true
    }

    /// Publishes the number of commands of a stream that have ended.
    pub fn set_stream_done(&self, stream: StreamSlot, done: u64) {
        if let Some(word) = self.streams.get(stream.0 as usize) {
            word.store(done, Ordering::Release);
        }
    }

    /// Publishes that a record of an event has occurred.
    pub fn set_event(&self, event: EventSlot, record: u64, time: Time) {
        if let Some(word) = self.events.get(event.0 as usize) {
            // A reader that sees the new time with the old record number attributes the later of two records to the
            // earlier one, as if it had queried a moment later.
            word.time.store(time.0, Ordering::Release);
            word.record.store(record, Ordering::Release);
        }
    }

    /// Publishes the error of a context, as a `CUresult`.
    pub fn set_fault(&self, context: u32, code: u32) {
        if let Some(fault) = self.faults.get(context as usize) {
            fault.store(code, Ordering::Release);
        }
    }

    /// Returns the set of slots at which a thread waits, as a bit mask.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.waits_active.0.load(Ordering::Acquire)
    }

    /// Returns the condition for which the thread at a slot waits, or `None` if it no longer waits.
    #[must_use]
    pub fn awaited(&self, place: u32) -> Option<Awaited> {
        let slot = self.waits.get(place as usize)?;
        if slot.state.load(Ordering::Acquire) != 1 {
            return None;
        }
        let index = slot.index.load(Ordering::Relaxed);
        let target = slot.target.load(Ordering::Relaxed);
        match slot.kind.load(Ordering::Relaxed) {
            1 => Some(Awaited::Stream(StreamSlot(index), target)),
            2 => Some(Awaited::Event(EventSlot(index), target)),
            3 => Some(Awaited::Retired(target)),
            _ => Some(Awaited::Taken(target)),
        }
    }

    /// Returns when the wait at a slot began.
    #[must_use]
    pub fn waits_since(&self, place: u32) -> Time {
        let slot = self.waits.get(place as usize);
        Time(slot.map_or(0, |slot| slot.since.load(Ordering::Relaxed)))
    }

    /// Ends the wait of the thread at a slot: marks its condition as reached. Returns the futex to wake; `None` if the thread no
    /// longer waits.
    #[must_use]
    pub fn grant(&self, place: u32) -> Option<&AtomicU32> {
        let slot = self.waits.get(place as usize)?;
        self.waits_active
            .0
            .fetch_and(!(1 << place), Ordering::Release);
        slot.state
            .compare_exchange(1, 2, Ordering::Release, Ordering::Relaxed)
            .ok()?;
        Some(&slot.state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_completions_arrive_in_order_and_are_bounded() {
        let (server, file) = Shared::<Page>::create().unwrap();
        let client = Shared::<Page>::open(&file).unwrap();
        for n in 0..COMMANDS {
            assert!(client.push(&[n; WORDS]));
        }
        assert!(!client.push(&[0; WORDS]));
        let mut head = 0;
        for n in 0..COMMANDS {
            assert_eq!(server.front(head), Ok(Some([n; WORDS])));
            server.pop(&mut head);
        }
        assert_eq!(server.front(head), Ok(None));
        assert!(client.push(&[7; WORDS]));
        assert_eq!(server.front(head), Ok(Some([7; WORDS])));
        assert_eq!(server.front(head), Ok(Some([7; WORDS])));

        let mut tail = 0;
        let completion = |token| Completion {
            token,
            value: 1,
            turn: 2,
        };
        for token in 0..IN_FLIGHT {
            assert!(server.complete(&mut tail, completion(token)));
        }
        assert!(!server.complete(&mut tail, completion(0)));
        for token in 0..IN_FLIGHT {
            assert_eq!(client.next_completion(), Some(completion(token)));
            client.completion_taken();
        }
        assert_eq!(client.next_completion(), None);
    }

    #[test]
    fn an_invalid_command_count_is_detected() {
        let (server, file) = Shared::<Page>::create().unwrap();
        let client = Shared::<Page>::open(&file).unwrap();
        client.client.0.tail.store(COMMANDS + 1, Ordering::Relaxed);
        assert_eq!(server.front(0), Err(ProtocolViolation));
        client.client.0.tail.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(server.front(0), Err(ProtocolViolation));
        // Neither side can shrink the file under the other.
        assert_eq!(ftruncate(&file, 0), Err(Errno::PERM));
    }

    #[test]
    fn a_wait_is_granted_once() {
        let (server, file) = Shared::<Page>::create().unwrap();
        let client = Shared::<Page>::open(&file).unwrap();
        let awaited = Awaited::Stream(StreamSlot(3), 9);
        let before = clock::now();
        let place = client.begin_wait(awaited).unwrap();
        assert_eq!(server.waiting(), 1);
        assert_eq!(server.awaited(0), Some(awaited));
        assert!(server.waits_since(0) >= before && server.waits_since(0) <= clock::now());
        assert!(server.grant(0).is_some());
        assert!(server.grant(0).is_none());
        assert_eq!(client.wait_word(&place).load(Ordering::Relaxed), 2);
        client.end_wait(place);
        let places: Vec<_> = (0..WAITS)
            .map(|_| client.begin_wait(awaited).unwrap())
            .collect();
        assert!(client.begin_wait(awaited).is_none());
        drop(places);
    }
}
