//! The gate at each launch (contracts §6: open while the process has a token), and the return of an unused token.
//!
//! A launch reads three words without a lock: the gate, the work in flight, and its bound. Before that it marks a launch in
//! progress in a word of its own thread. To close the gate, a thread makes all threads' words visible with `membarrier` and waits
//! until no launch is in progress, so that launches need no fence.

use std::cell::Cell;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering, compiler_fence, fence,
};
use std::time::Duration;

use protocol::message::FromProcess;

use crate::driver::{Code, Handle, NOT_PERMITTED, SUCCESS};
use crate::functions::{self, Kind};
use crate::silence::Silence;
use crate::streams::{self, DefaultStream, IN_FLIGHT, SHUT};
use crate::{capture, link, log, time};

/// Number of threads with a word of their own; further threads share one.
const THREADS: usize = 512;
/// Interval at which a thread parked at the gate re-reads it, whether it is woken or not.
const RECHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Interval at which a thread checks for completed work while too much is in flight.
const IN_FLIGHT_POLL: Duration = Duration::from_micros(50);
/// Longest time in nanoseconds for which a launch waits for other launches of its process to finish; it then passes, since they
/// may depend on it. Such launches are counted.
const IN_FLIGHT_WAIT_MAX: u64 = 20_000_000;
/// Time without a heartbeat, while a thread is parked, after which the agent counts as hung.
const HUNG_AFTER: Duration = Duration::from_secs(1);
/// A program that usually launches again within this time, in nanoseconds, after a wait for the device keeps its token meanwhile.
const SHORT_GAP: u64 = 400_000;

#[derive(Debug)]
#[repr(align(64))]
struct Thread {
    /// 1 while the thread's launch is in progress.
    launching: AtomicU32,
    /// Thread id; 0 if the entry is free.
    id: AtomicI32,
}

static TABLE: [Thread; THREADS] = [const {
    Thread {
        launching: AtomicU32::new(0),
        id: AtomicI32::new(0),
    }
}; THREADS];
/// Number of launches in progress in threads without an entry in the table.
static SHARED: AtomicU32 = AtomicU32::new(0);
/// Whether the kernel lacks `membarrier`, so that each launch executes a fence.
static FENCED: AtomicBool = AtomicBool::new(true);

/// Even epoch of the gate whose token this process has returned by itself.
static GIVEN_BACK: AtomicU64 = AtomicU64::new(0);
/// Epoch for which a token was requested, plus one; 0 if none was.
static REQUESTED: AtomicU64 = AtomicU64::new(0);
/// Time since when the host is known to have no work in flight, in nanoseconds; 0 if something was launched since.
static IDLE_SINCE: AtomicU64 = AtomicU64::new(0);
/// Moving average of the time from then to the program's next launch, in nanoseconds.
static USUAL_GAP: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Entry of the calling thread. It has no destructor, since threads end at any time.
    static OWN: Cell<Option<&'static Thread>> = const { Cell::new(None) };
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Registers the process for `membarrier`. To be called before the gate is used.
pub(crate) fn prepare() {
    const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;
    // SAFETY: a system call that passes no memory.
    let code = unsafe { libc::syscall(libc::SYS_membarrier, REGISTER_PRIVATE_EXPEDITED, 0, 0) };
    FENCED.store(code != 0, Ordering::Release);
}

/// Memory barrier in all threads of the process: their earlier writes become visible, and their later reads are not reordered
/// before it.
fn barrier() {
    const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
    fence(Ordering::SeqCst);
    if !FENCED.load(Ordering::Relaxed) {
        // SAFETY: a system call that passes no memory.
        let _registered = unsafe { libc::syscall(libc::SYS_membarrier, PRIVATE_EXPEDITED, 0, 0) };
    }
}

fn own() -> Option<&'static Thread> {
    if let Some(own) = OWN.get() {
        return Some(own);
    }
    // SAFETY: a system call without arguments.
    let id = unsafe { libc::syscall(libc::SYS_gettid) };
    let id = i32::try_from(id).unwrap_or(0);
    let process = std::process::id();
    let take = |place: &&Thread, free: i32| {
        place
            .id
            .compare_exchange(free, id, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    };
    let found = TABLE.iter().find(|place| take(place, 0)).or_else(|| {
        // Entries of threads that have ended are reused: threads end without notice.
        TABLE.iter().find(|place| {
            let other = place.id.load(Ordering::Relaxed);
            // SAFETY: signal 0 only tests whether the thread exists.
            let gone = unsafe { libc::syscall(libc::SYS_tgkill, process, other, 0) } != 0;
            gone && take(place, other)
        })
    });
    OWN.set(found);
    found
}

struct LaunchGuard(Option<&'static Thread>);

impl LaunchGuard {
    #[inline]
    fn begin() -> Self {
        let own = own();
        match own {
            Some(own) => own.launching.store(1, Ordering::Relaxed),
            None => {
                SHARED.fetch_add(1, Ordering::SeqCst);
            }
        }
        if FENCED.load(Ordering::Relaxed) {
            fence(Ordering::SeqCst);
        } else {
            compiler_fence(Ordering::SeqCst);
        }
        Self(own)
    }
}

impl Drop for LaunchGuard {
    fn drop(&mut self) {
        match self.0 {
            Some(own) => own.launching.store(0, Ordering::Release),
            None => {
                SHARED.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }
}

/// Returns whether some thread is between the gate and the end of its launch. Exact only after [`barrier`].
fn any_launching() -> bool {
    SHARED.load(Ordering::SeqCst) != 0
        || TABLE
            .iter()
            .any(|thread| thread.launching.load(Ordering::Acquire) != 0)
}

/// Returns whether a launch may be made now.
#[inline]
fn may_launch(bound_holds: bool) -> bool {
    let bound = if bound_holds { bound() } else { SHUT };
    link::orders().gate.is_open() && IN_FLIGHT.load(Ordering::Relaxed) < bound
}

/// Returns the bound of the work in flight, in nanoseconds.
#[inline]
fn bound() -> u64 {
    u64::from(link::orders().inflight_us_max.load(Ordering::Relaxed)) * 1_000
}

/// Runs the check of a launch at the gate, without the launch, and returns whether it would pass.
#[cfg(feature = "bench")]
#[must_use]
pub fn check() -> bool {
    let _guard = LaunchGuard::begin();
    may_launch(true)
}

/// Makes a launch once the gate is open.
pub(crate) fn launch(
    real: &dyn Fn() -> Code,
    stream: Handle,
    default: DefaultStream,
    function: Handle,
    kind: Kind,
) -> Code {
    // A driver that calls its own exported functions does so within a launch that has passed.
    if !link::is_active() || INSIDE.get() {
        return real();
    }
    if capture::any() && capture::is_capturing(stream_of(stream, default)) {
        return real();
    }
    let info = functions::lookup(function, kind);
    if info.is_collective {
        return refuse_collective(function);
    }
    let mut bound_holds = true;
    loop {
        let guard = LaunchGuard::begin();
        if may_launch(bound_holds) {
            INSIDE.set(true);
            let launch = streams::before(stream, default, info);
            let code = real();
            streams::after(&launch, code == SUCCESS);
            INSIDE.set(false);
            link::facts().launches.0.fetch_add(1, Ordering::Relaxed);
            drop(guard);
            return code;
        }
        drop(guard);
        bound_holds = wait_at_gate(stream, default);
    }
}

/// Returns the stream's handle with the default stream made explicit, for driver functions that have one entry point only.
const fn stream_of(stream: Handle, default: DefaultStream) -> Handle {
    match (stream, default) {
        (0, DefaultStream::Legacy) => crate::driver::LEGACY,
        (0, DefaultStream::PerThread) => crate::driver::PER_THREAD,
        (stream, _) => stream,
    }
}

/// Refuses a collective: one rank would wait on the device for another rank without a token, and delay all other processes (gang
/// leases are not given).
fn refuse_collective(function: Handle) -> Code {
    static REPORTED: AtomicBool = AtomicBool::new(false);
    let name = functions::name(function).map_or("", |name| name.to_str().unwrap_or(""));
    if !REPORTED.swap(true, Ordering::AcqRel) {
        log::line(&format!(
            "{name} refused (CUDA_ERROR_NOT_PERMITTED): collectives among several ranks cannot run on a slot that is shared in \
             time; use an exclusive slot for this function"
        ));
        link::report_collective(name);
    }
    NOT_PERMITTED
}

/// Waits until a launch may be tried again. Returns `false` if it may exceed the bound of the work in flight.
#[cold]
fn wait_at_gate(stream: Handle, default: DefaultStream) -> bool {
    static NEVER: AtomicU32 = AtomicU32::new(0);
    let facts = link::facts();
    facts.parked.fetch_add(1, Ordering::AcqRel);
    // The program's pause ends here: the wait at the gate is not part of it.
    begin_burst(time::now());
    // Work that this thread has launched is measured up to here.
    streams::mark_all();
    let mut bound_since = None;
    let mut silence = Silence::default();
    let bound_holds = loop {
        let orders = link::orders();
        let epoch = orders.gate.epoch();
        let shut = IN_FLIGHT.load(Ordering::Acquire) & SHUT != 0;
        if shut && epoch > GIVEN_BACK.load(Ordering::Acquire) && epoch & 1 == 0 {
            // A new token was granted.
            IN_FLIGHT.fetch_and(!SHUT, Ordering::AcqRel);
            continue;
        }
        if epoch & 1 == 1 || shut {
            if link::is_served() && REQUESTED.swap(epoch + 1, Ordering::AcqRel) != epoch + 1 {
                link::send(&FromProcess::Ask { epoch });
            }
            let begin = time::now();
            time::wait(orders.gate.word(), low_half(epoch), RECHECK_INTERVAL);
            let waited = Duration::from_nanos(time::now().saturating_sub(begin));
            // A hung agent is treated like a stopped one.
            if silence.has_lasted(
                orders,
                link::is_served(),
                waited,
                RECHECK_INTERVAL,
                HUNG_AFTER,
            ) {
                link::abandon_hung_agent();
            }
            bound_since = None;
            continue;
        }
        if may_launch(true) {
            break true;
        }
        // Too much was in flight; some of it may have finished.
        streams::reap_all();
        if may_launch(true) {
            break true;
        }
        // Of a launch longer than the bound so little may remain that the next one should be queued by the time it ends.
        if streams::remaining_in_flight() < bound() {
            break false;
        }
        // Streams run concurrently: while no process waits, no stream waits for the others.
        if orders.contended.load(Ordering::Relaxed) == 0 && streams::is_empty(stream, default) {
            break false;
        }
        let now = time::now();
        let since = *bound_since.get_or_insert(now);
        let wait_max = IN_FLIGHT_WAIT_MAX.saturating_add(streams::in_flight().saturating_mul(4));
        if now.saturating_sub(since) > wait_max {
            facts.bound_exceeded.fetch_add(1, Ordering::Relaxed);
            break false;
        }
        time::wait(&NEVER, 0, IN_FLIGHT_POLL);
    };
    facts.parked.fetch_sub(1, Ordering::AcqRel);
    bound_holds
}

#[expect(clippy::cast_possible_truncation, reason = "the low half is meant")]
const fn low_half(epoch: u64) -> u32 {
    epoch as u32
}

/// Forgets requested and returned tokens, because another agent, or none, controls the gate from now on.
pub(crate) fn reset() {
    REQUESTED.store(0, Ordering::Release);
    GIVEN_BACK.store(0, Ordering::Release);
    IN_FLIGHT.fetch_and(!SHUT, Ordering::AcqRel);
}

/// Notes that a burst of launches begins, and updates the usual gap.
pub(crate) fn begin_burst(now: u64) {
    let idle_since = IDLE_SINCE.swap(0, Ordering::AcqRel);
    if idle_since == 0 {
        return;
    }
    let gap = now.saturating_sub(idle_since);
    let usual = USUAL_GAP.load(Ordering::Relaxed);
    USUAL_GAP.store(usual - usual / 4 + gap.min(1 << 40) / 4, Ordering::Relaxed);
}

/// Notes that the program has waited for the device. If other processes wait and the program usually pauses, the token is
/// returned at once.
pub(crate) fn after_host_wait() {
    if !link::is_active() || streams::in_flight() != 0 {
        return;
    }
    let now = time::now();
    let _first = IDLE_SINCE.compare_exchange(0, now, Ordering::AcqRel, Ordering::Relaxed);
    if link::orders().contended.load(Ordering::Relaxed) != 0 && usually_pauses() {
        let _given = give_back();
    }
}

/// Returns whether the program usually pauses for at least [`SHORT_GAP`] before it launches again.
pub(crate) fn usually_pauses() -> bool {
    USUAL_GAP.load(Ordering::Relaxed) >= SHORT_GAP
}

/// Returns the token to the agent if nothing is in flight and no launch is in progress. Returns whether it did.
pub(crate) fn give_back() -> bool {
    let orders = link::orders();
    let epoch = orders.gate.epoch();
    if epoch & 1 == 1
        || INSIDE.get()
        || OWN
            .get()
            .is_some_and(|own| own.launching.load(Ordering::Relaxed) != 0)
    {
        return false;
    }
    // Stored before the bit: a reader that sees the bit thereby knows the token to which it belongs.
    GIVEN_BACK.store(epoch, Ordering::Release);
    if IN_FLIGHT
        .compare_exchange(0, SHUT, Ordering::AcqRel, Ordering::Acquire)
        .is_err()
    {
        return false;
    }
    barrier();
    if any_launching() || streams::in_flight() != 0 {
        // Another thread launched first; the token is kept.
        IN_FLIGHT.fetch_and(!SHUT, Ordering::AcqRel);
        time::wake(orders.gate.word());
        return false;
    }
    streams::publish();
    link::send(&FromProcess::Closed { epoch });
    true
}

/// Returns whether this process has returned the token of that epoch by itself.
pub(crate) fn was_given_back(epoch: u64) -> bool {
    IN_FLIGHT.load(Ordering::Acquire) & SHUT != 0 && GIVEN_BACK.load(Ordering::Acquire) == epoch
}

/// Waits until no launch is in progress. The gate must be closed.
pub(crate) fn wait_for_launches() {
    static NEVER: AtomicU32 = AtomicU32::new(0);
    barrier();
    while any_launching() {
        time::wait(&NEVER, 0, IN_FLIGHT_POLL);
    }
}
