//! Memory that one client shares with the server: commands one way, completions the other. Nobody else maps it, and
//! nobody waits for a lock in it.
//!
//! Either side may die or write nonsense at any moment: whatever is read here is checked by its reader, and the file is
//! sealed at its size, so that no side can make the other fault.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use device::Time;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::record::{EventSlot, StreamSlot, WORDS};

/// Commands that lie in the ring at most.
pub const COMMANDS: u64 = COMMAND_PLACES as u64;
/// Commands of a client that have not ended, at most; the next waits.
pub const IN_FLIGHT: u64 = COMPLETION_PLACES as u64;
/// Streams of a client.
pub const STREAMS: usize = 2048;
/// Events of a client.
pub const EVENTS: usize = 131_072;
/// Contexts of a client.
pub const CONTEXTS: usize = 64;
/// Threads of a client that wait at once without looking from time to time.
pub const WAITS: usize = 64;

const COMMAND_PLACES: usize = 2048;
const COMPLETION_PLACES: usize = 8192;
const MAGIC: u64 = u64::from_le_bytes(*b"weirgpu\0");
const VERSION: u64 = 1;

/// What a thread can wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// So many commands of a stream have ended.
    Stream(StreamSlot, u64),
    /// A record of an event, by its number, has happened.
    Event(EventSlot, u64),
    /// So many commands of all streams have ended.
    Retired(u64),
    /// So many commands have been taken out of the ring.
    Taken(u64),
}

/// What a completion says: the token of the command; of a function of the host, its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// As given with the command; of a function in a graph, that of the graph's launch.
    pub token: u64,
    /// Of a function of the host: the command, for [`crate::record::Command::HostDone`]. Of a wait for an event of
    /// another process: how many of its records have to be done.
    pub value: u64,
    /// Of a function of the host: its place in the graph, plus one. Of a command that was dropped: [`DROPPED`]. Else 0.
    pub turn: u64,
}

/// That a command was dropped, and does nothing to memory.
pub const DROPPED: u64 = u64::MAX;

#[derive(Debug)]
#[repr(C, align(64))]
struct Line<T>(T);

#[derive(Debug)]
#[repr(C)]
struct FromClient {
    tail: AtomicU64,
    /// Counts up whenever somebody waits or asks.
    attention: AtomicU32,
}

#[derive(Debug)]
#[repr(C)]
struct FromServer {
    head: AtomicU64,
    retired: AtomicU64,
    /// 0: runs; 1: locked for a checkpoint.
    locked: AtomicU32,
}

#[derive(Debug)]
#[repr(C, align(32))]
struct WaitSlot {
    /// 0: free, 1: waits, 2: what it waited for is there.
    state: AtomicU32,
    kind: AtomicU32,
    index: AtomicU32,
    target: AtomicU64,
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

/// What lies in the memory.
#[derive(Debug)]
#[repr(C)]
pub struct Page {
    magic: AtomicU64,
    version: AtomicU64,
    client: Line<FromClient>,
    server: Line<FromServer>,
    completions_tail: Line<AtomicU64>,
    completions_head: Line<AtomicU64>,
    /// The low half of how many completions there are, for the client's worker to wait for.
    completions_bell: Line<AtomicU32>,
    waits_active: Line<AtomicU64>,
    faults: [AtomicU32; CONTEXTS],
    waits: [WaitSlot; WAITS],
    commands: [[AtomicU64; WORDS]; COMMAND_PLACES],
    completions: [CompletionWords; COMPLETION_PLACES],
    streams: [AtomicU64; STREAMS],
    events: [EventWord; EVENTS],
}

/// What the server tells all clients.
#[derive(Debug)]
#[repr(C)]
pub struct Bell {
    magic: AtomicU64,
    version: AtomicU64,
    /// 0: it runs; 1: it sleeps for a short time; 2: it sleeps until somebody rings.
    sleeps: AtomicU32,
}

/// How the server sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// It looks at all rings again before it does.
    Awake,
    /// It will look at all rings within milliseconds.
    Short,
    /// Nothing is to be done until somebody rings.
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

/// What may be laid over shared memory: atomics alone, for which every bit pattern is good.
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
        // SAFETY: the mapping made in `map`, which nobody else unmaps.
        let _unmapped = unsafe { munmap(self.at.cast_mut().cast(), size_of::<T>()) };
    }
}

/// The size stays as it is, and so do the seals.
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
        // SAFETY: a new mapping, at a place that the kernel chooses.
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
    /// New memory for a client, and the file to hand to it.
    ///
    /// # Errors
    /// The system has none.
    pub fn create() -> Result<(Self, OwnedFd), Errno> {
        let file = create("weir-softgpu-client", size_of::<Page>())?;
        let page = Self::map(&file, READ_WRITE)?;
        fcntl_add_seals(&file, SEALS)?;
        page.magic.store(MAGIC, Ordering::Relaxed);
        page.version.store(VERSION, Ordering::Relaxed);
        Ok((page, file))
    }

    /// The client's side.
    ///
    /// # Errors
    /// It cannot be mapped, or is of another version.
    pub fn open(file: impl AsFd) -> Result<Self, Errno> {
        let page = Self::map(file, READ_WRITE)?;
        let is_ours = page.magic.load(Ordering::Relaxed) == MAGIC
            && page.version.load(Ordering::Relaxed) == VERSION;
        if is_ours { Ok(page) } else { Err(Errno::INVAL) }
    }
}

impl Shared<Bell> {
    /// The server's side, and the file to hand to clients.
    ///
    /// # Errors
    /// The system has none.
    pub fn create() -> Result<(Self, OwnedFd), Errno> {
        let file = create("weir-softgpu-bell", size_of::<Bell>())?;
        let bell = Self::map(&file, READ_WRITE)?;
        bell.magic.store(MAGIC, Ordering::Relaxed);
        bell.version.store(VERSION, Ordering::Relaxed);
        // Clients may only read: the server has its mapping already.
        fcntl_add_seals(&file, SEALS | SealFlags::FUTURE_WRITE)?;
        Ok((bell, file))
    }

    /// A client's side.
    ///
    /// # Errors
    /// It cannot be mapped, or is of another version.
    pub fn open(file: impl AsFd) -> Result<Self, Errno> {
        let bell = Self::map(file, ProtFlags::READ)?;
        let is_ours = bell.magic.load(Ordering::Relaxed) == MAGIC
            && bell.version.load(Ordering::Relaxed) == VERSION;
        if is_ours { Ok(bell) } else { Err(Errno::INVAL) }
    }
}

impl Bell {
    /// The server says how it sleeps. Before it does, it looks at all rings once more.
    pub fn set(&self, sleep: Sleep) {
        let value = match sleep {
            Sleep::Awake => 0,
            Sleep::Short => 1,
            Sleep::Deep => 2,
        };
        self.sleeps.store(value, Ordering::Relaxed);
        // With the one in `sleep`: either the server sees what a client wrote, or the client sees that it sleeps.
        fence(Ordering::SeqCst);
    }

    /// How the server sleeps; asked after something was written for it.
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
    /// Puts a command into the ring; `false`: it is full.
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

    /// How many commands have been put in.
    #[must_use]
    pub fn pushed(&self) -> u64 {
        self.client.0.tail.load(Ordering::Relaxed)
    }

    /// How many the server has taken out.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.server.0.head.load(Ordering::Acquire)
    }

    /// How many have ended.
    #[must_use]
    pub fn retired(&self) -> u64 {
        self.server.0.retired.load(Ordering::Acquire)
    }

    /// Asks the server to look.
    pub fn ask(&self) {
        self.client.0.attention.fetch_add(1, Ordering::Release);
    }

    /// The next completion; it stays the next until [`Page::completion_taken`].
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

    /// The next completion has been seen to.
    pub fn completion_taken(&self) {
        self.completions_head.0.fetch_add(1, Ordering::Release);
    }

    /// Where the worker waits for completions: the word changes with each.
    #[must_use]
    pub const fn completions_bell(&self) -> &AtomicU32 {
        &self.completions_bell.0
    }

    /// How many commands of a stream have ended, since the memory was made.
    #[must_use]
    pub fn stream_done(&self, stream: StreamSlot) -> u64 {
        self.streams
            .get(stream.0 as usize)
            .map_or(0, |word| word.load(Ordering::Acquire))
    }

    /// The last record of an event that has happened, and when.
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

    /// The error that a context has had, as the driver numbers them; 0: none.
    #[must_use]
    pub fn fault(&self, context: u32) -> u32 {
        self.faults
            .get(context as usize)
            .map_or(0, |fault| fault.load(Ordering::Acquire))
    }

    /// Whether a checkpoint has stopped this client, and the word to wait for.
    #[must_use]
    pub const fn locked(&self) -> &AtomicU32 {
        &self.server.0.locked
    }

    /// Takes a place to wait in; `None`: all are taken. Then [`Page::ask`], and ring.
    #[must_use]
    pub fn begin_wait(&self, awaited: Awaited) -> Option<WaitPlace> {
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
        slot.state.store(1, Ordering::Release);
        self.waits_active.0.fetch_or(1 << place, Ordering::Release);
        Some(WaitPlace(place))
    }

    /// The word at a place: it is 1 until what was awaited is there.
    #[must_use]
    pub fn wait_word(&self, place: &WaitPlace) -> &AtomicU32 {
        &self.waits[place.0].state
    }

    /// Gives the place back.
    #[expect(clippy::needless_pass_by_value, reason = "it is given back")]
    pub fn end_wait(&self, place: WaitPlace) {
        self.waits_active
            .0
            .fetch_and(!(1 << place.0), Ordering::Release);
        self.waits[place.0].state.store(0, Ordering::Release);
    }
}

/// A place where a thread waits.
#[derive(Debug)]
pub struct WaitPlace(usize);

/// What a client did that none of ours does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nonsense;

/// The server's side. It keeps its own counts, since the client could change those in the memory.
impl Page {
    /// The next command, `head` having been taken out before; it stays until [`Page::pop`].
    ///
    /// # Errors
    /// The client's count is nonsense.
    pub fn front(&self, head: u64) -> Result<Option<[u64; WORDS]>, Nonsense> {
        let tail = self.client.0.tail.load(Ordering::Acquire);
        match tail.wrapping_sub(head) {
            0 => return Ok(None),
            1..=COMMANDS => {}
            _ => return Err(Nonsense),
        }
        let words = &self.commands[place(head, COMMANDS)];
        Ok(Some(std::array::from_fn(|at| {
            words[at].load(Ordering::Relaxed)
        })))
    }

    /// The command at the front has been read.
    pub fn pop(&self, head: &mut u64) {
        *head += 1;
        self.server.0.head.store(*head, Ordering::Release);
    }

    /// Whether a command lies there, `head` having been taken out.
    #[must_use]
    pub fn has_commands(&self, head: u64) -> bool {
        self.client.0.tail.load(Ordering::Acquire) != head
    }

    /// Changes whenever the client asks for something.
    #[must_use]
    pub fn attention(&self) -> u32 {
        self.client.0.attention.load(Ordering::Acquire)
    }

    /// Says that so many commands have ended.
    pub fn set_retired(&self, retired: u64) {
        self.server.0.retired.store(retired, Ordering::Release);
    }

    /// Adds a completion, `tail` having been added before; `false`: the client has not taken enough of them out.
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

    /// Says how many commands of a stream have ended.
    pub fn set_stream_done(&self, stream: StreamSlot, done: u64) {
        if let Some(word) = self.streams.get(stream.0 as usize) {
            word.store(done, Ordering::Release);
        }
    }

    /// Says that a record of an event has happened.
    pub fn set_event(&self, event: EventSlot, record: u64, time: Time) {
        if let Some(word) = self.events.get(event.0 as usize) {
            // A reader who sees the new time with the old record takes the later of two records of one event for the
            // earlier: as if it had asked a moment later.
            word.time.store(time.0, Ordering::Release);
            word.record.store(record, Ordering::Release);
        }
    }

    /// Says that a context has had an error, as the driver numbers them.
    pub fn set_fault(&self, context: u32, code: u32) {
        if let Some(fault) = self.faults.get(context as usize) {
            fault.store(code, Ordering::Release);
        }
    }

    /// Which places wait, as bits.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.waits_active.0.load(Ordering::Acquire)
    }

    /// What the thread at a place waits for; `None`: it does not any more.
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

    /// What is awaited at a place is there: returns the word to wake.
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
    fn commands_and_completions_come_through_in_order_and_are_bounded() {
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
    fn a_client_that_writes_nonsense_is_seen() {
        let (server, file) = Shared::<Page>::create().unwrap();
        let client = Shared::<Page>::open(&file).unwrap();
        client.client.0.tail.store(COMMANDS + 1, Ordering::Relaxed);
        assert_eq!(server.front(0), Err(Nonsense));
        client.client.0.tail.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(server.front(0), Err(Nonsense));
        // Neither side can make the file smaller under the other.
        assert_eq!(ftruncate(&file, 0), Err(Errno::PERM));
    }

    #[test]
    fn a_wait_is_granted_once() {
        let (server, file) = Shared::<Page>::create().unwrap();
        let client = Shared::<Page>::open(&file).unwrap();
        let awaited = Awaited::Stream(StreamSlot(3), 9);
        let place = client.begin_wait(awaited).unwrap();
        assert_eq!(server.waiting(), 1);
        assert_eq!(server.awaited(0), Some(awaited));
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
