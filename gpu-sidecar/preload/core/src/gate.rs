//! The gate at each launch (design: open while the process has a token), and giving a token back that is not used.
//!
//! A launch reads three words and takes no lock and no time: the gate, the work in flight, its bound. Before that it says in
//! a word of its own thread that it is under way; whoever shuts the gate makes all threads' words visible with
//! `membarrier` and waits until none is under way, so the launches pay nothing for it.

use std::cell::Cell;
use std::sync::atomic::{
    AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering, compiler_fence, fence,
};
use std::time::Duration;

use protocol::message::FromProcess;

use crate::driver::{Code, Handle, NOT_PERMITTED, SUCCESS};
use crate::functions::{self, Kind};
use crate::silence::Silence;
use crate::streams::{self, Default, IN_FLIGHT, SHUT};
use crate::{capture, link, log, time};

/// Threads that launch, with a word each; who comes later shares one.
const THREADS: usize = 512;
/// A thread at the gate looks again after this time, whoever wakes it or not.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// While too much is in flight, a thread looks this often whether some of it is done.
const IN_FLIGHT_LOOK: Duration = Duration::from_micros(50);
/// So long, in nanoseconds, a launch waits for others of its process that do not end; then it goes on, since they may wait
/// for it. Such launches are counted.
const IN_FLIGHT_WAIT_MAX: u64 = 20_000_000;
/// An agent that gives no sign for this long while a thread is parked is taken for gone.
const HUNG_AFTER: Duration = Duration::from_secs(1);
/// A program that usually launches again within this time, in nanoseconds, after it has waited for the device, keeps its
/// token meanwhile.
const SHORT_GAP: u64 = 400_000;

#[derive(Debug)]
#[repr(align(64))]
struct Thread {
    /// 1 while a launch is under way.
    under_way: AtomicU32,
    /// The thread's number; 0: free.
    id: AtomicI32,
}

static TABLE: [Thread; THREADS] = [const {
    Thread {
        under_way: AtomicU32::new(0),
        id: AtomicI32::new(0),
    }
}; THREADS];
/// Launches under way of threads that have no place in the table.
static SHARED: AtomicU32 = AtomicU32::new(0);
/// The kernel has no `membarrier`: each launch pays for a fence of its own.
static FENCED: AtomicBool = AtomicBool::new(true);

/// The even epoch of the gate that this process has shut from inside.
static GIVEN_BACK: AtomicU64 = AtomicU64::new(0);
/// The epoch for which was asked, plus one; 0: none.
static ASKED: AtomicU64 = AtomicU64::new(0);
/// When the host was last known to wait for nothing, in nanoseconds; 0: since then something was launched.
static IDLE_SINCE: AtomicU64 = AtomicU64::new(0);
/// How long the program usually takes from then to its next launch, in nanoseconds.
static USUAL_GAP: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// No destructor: threads end at any time.
    static OWN: Cell<Option<&'static Thread>> = const { Cell::new(None) };
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Prepares what shutting the gate needs.
pub(crate) fn prepare() {
    const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;
    // SAFETY: a system call without memory.
    let code = unsafe { libc::syscall(libc::SYS_membarrier, REGISTER_PRIVATE_EXPEDITED, 0, 0) };
    FENCED.store(code != 0, Ordering::Release);
}

/// Makes what all threads have written visible, and what they read next read after this.
fn barrier() {
    const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
    fence(Ordering::SeqCst);
    if !FENCED.load(Ordering::Relaxed) {
        // SAFETY: a system call without memory.
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
        // Threads end without saying so.
        TABLE.iter().find(|place| {
            let other = place.id.load(Ordering::Relaxed);
            // SAFETY: signal 0 is sent to nobody.
            let gone = unsafe { libc::syscall(libc::SYS_tgkill, process, other, 0) } != 0;
            gone && take(place, other)
        })
    });
    OWN.set(found);
    found
}

struct UnderWay(Option<&'static Thread>);

impl UnderWay {
    #[inline]
    fn begin() -> Self {
        let own = own();
        match own {
            Some(own) => own.under_way.store(1, Ordering::Relaxed),
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

impl Drop for UnderWay {
    fn drop(&mut self) {
        match self.0 {
            Some(own) => own.under_way.store(0, Ordering::Release),
            None => {
                SHARED.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }
}

/// Some thread is between the gate and the end of its launch. Right only after [`barrier`].
fn any_under_way() -> bool {
    SHARED.load(Ordering::SeqCst) != 0
        || TABLE
            .iter()
            .any(|thread| thread.under_way.load(Ordering::Acquire) != 0)
}

/// A launch may be made now.
#[inline]
fn may_launch(bound_holds: bool) -> bool {
    let bound = if bound_holds { bound() } else { SHUT };
    link::orders().gate.is_open() && IN_FLIGHT.load(Ordering::Relaxed) < bound
}

/// So much may be in flight, in nanoseconds.
#[inline]
fn bound() -> u64 {
    u64::from(link::orders().inflight_us_max.load(Ordering::Relaxed)) * 1_000
}

/// What a launch does at the gate, without the launch.
#[cfg(feature = "bench")]
#[must_use]
pub fn check() -> bool {
    let _under_way = UnderWay::begin();
    may_launch(true)
}

/// Makes a launch when the gate is open.
pub(crate) fn launch(
    real: &dyn Fn() -> Code,
    stream: Handle,
    default: Default,
    function: Handle,
    kind: Kind,
) -> Code {
    // A driver that calls its own exported functions is inside a launch that has passed.
    if !link::is_active() || INSIDE.get() {
        return real();
    }
    if capture::any() && capture::is_capturing(stream_of(stream, default)) {
        return real();
    }
    let known = functions::known(function, kind);
    if known.is_collective {
        return refuse_collective(function);
    }
    let mut bound_holds = true;
    loop {
        let under_way = UnderWay::begin();
        if may_launch(bound_holds) {
            INSIDE.set(true);
            let launch = streams::before(stream, default, known);
            let code = real();
            streams::after(&launch, code == SUCCESS);
            INSIDE.set(false);
            link::facts().launches.0.fetch_add(1, Ordering::Relaxed);
            drop(under_way);
            return code;
        }
        drop(under_way);
        bound_holds = wait_at_gate(stream, default);
    }
}

/// The handle by which the driver's functions without a default of their own know the stream.
const fn stream_of(stream: Handle, default: Default) -> Handle {
    match (stream, default) {
        (0, Default::Legacy) => crate::driver::LEGACY,
        (0, Default::PerThread) => crate::driver::PER_THREAD,
        (stream, _) => stream,
    }
}

/// One rank would wait on the device for another that has no token, and hold up all others (gang leases are not given).
fn refuse_collective(function: Handle) -> Code {
    static SAID: AtomicBool = AtomicBool::new(false);
    let name = functions::name(function).map_or("", |name| name.to_str().unwrap_or(""));
    if !SAID.swap(true, Ordering::AcqRel) {
        log::line(&format!(
            "{name} refused (CUDA_ERROR_NOT_PERMITTED): collectives among several ranks cannot run on a slot that is shared in \
             time; use an exclusive slot for this function"
        ));
        link::report_collective(name);
    }
    NOT_PERMITTED
}

/// Waits until a launch may be tried again. `false`: it may exceed the bound in flight, which cannot be kept.
#[cold]
fn wait_at_gate(stream: Handle, default: Default) -> bool {
    static NEVER: AtomicU32 = AtomicU32::new(0);
    let facts = link::facts();
    facts.parked.fetch_add(1, Ordering::AcqRel);
    // The program has paused until now; what it waits for from here on is no pause of its own.
    burst_begins(time::now());
    // What this thread has launched is measured up to here.
    streams::mark_all();
    let mut bound_since = None;
    let mut silence = Silence::default();
    let bound_holds = loop {
        let orders = link::orders();
        let epoch = orders.gate.epoch();
        let shut = IN_FLIGHT.load(Ordering::Acquire) & SHUT != 0;
        if shut && epoch > GIVEN_BACK.load(Ordering::Acquire) && epoch & 1 == 0 {
            // A new token.
            IN_FLIGHT.fetch_and(!SHUT, Ordering::AcqRel);
            continue;
        }
        if epoch & 1 == 1 || shut {
            if link::is_served() && ASKED.swap(epoch + 1, Ordering::AcqRel) != epoch + 1 {
                link::send(&FromProcess::Ask { epoch });
            }
            let begin = time::now();
            time::wait(orders.gate.word(), low_half(epoch), LOOK_AGAIN);
            let waited = Duration::from_nanos(time::now().saturating_sub(begin));
            // An agent that is there and hung is no better than one that is gone.
            if silence.lasts(orders, link::is_served(), waited, LOOK_AGAIN, HUNG_AFTER) {
                link::suspect();
            }
            bound_since = None;
            continue;
        }
        if may_launch(true) {
            break true;
        }
        // Too much is in flight: some of it may be done.
        streams::reap_all();
        if may_launch(true) {
            break true;
        }
        // Of a launch that is longer than the bound so little may be left that the next is to be there when it ends.
        if streams::left_in_flight() < bound() {
            break false;
        }
        // Streams run beside each other: while nobody waits, none is held up for the others' sake.
        if orders.contended.load(Ordering::Relaxed) == 0 && streams::has_nothing(stream, default) {
            break false;
        }
        let now = time::now();
        let since = *bound_since.get_or_insert(now);
        let patience = IN_FLIGHT_WAIT_MAX.saturating_add(streams::in_flight().saturating_mul(4));
        if now.saturating_sub(since) > patience {
            facts.bound_exceeded.fetch_add(1, Ordering::Relaxed);
            break false;
        }
        time::wait(&NEVER, 0, IN_FLIGHT_LOOK);
    };
    facts.parked.fetch_sub(1, Ordering::AcqRel);
    bound_holds
}

#[expect(clippy::cast_possible_truncation, reason = "the low half is meant")]
const fn low_half(epoch: u64) -> u32 {
    epoch as u32
}

/// Another agent, or none, orders from now on: what was asked and given back counts no longer.
pub(crate) fn start_over() {
    ASKED.store(0, Ordering::Release);
    GIVEN_BACK.store(0, Ordering::Release);
    IN_FLIGHT.fetch_and(!SHUT, Ordering::AcqRel);
}

/// A burst of launches begins.
pub(crate) fn burst_begins(now: u64) {
    let idle_since = IDLE_SINCE.swap(0, Ordering::AcqRel);
    if idle_since == 0 {
        return;
    }
    let gap = now.saturating_sub(idle_since);
    let usual = USUAL_GAP.load(Ordering::Relaxed);
    USUAL_GAP.store(usual - usual / 4 + gap.min(1 << 40) / 4, Ordering::Relaxed);
}

/// The program has waited for the device and goes on. Where others wait for the device, and the program usually takes its
/// time, the token is given back at once.
pub(crate) fn host_has_waited() {
    if !link::is_active() || streams::in_flight() != 0 {
        return;
    }
    let now = time::now();
    let _first = IDLE_SINCE.compare_exchange(0, now, Ordering::AcqRel, Ordering::Relaxed);
    if link::orders().contended.load(Ordering::Relaxed) != 0 && usually_pauses() {
        let _given = give_back();
    }
}

/// The program usually does something else for a while before it launches again.
pub(crate) fn usually_pauses() -> bool {
    USUAL_GAP.load(Ordering::Relaxed) >= SHORT_GAP
}

/// Gives the token back if nothing is in flight and no launch is under way.
pub(crate) fn give_back() -> bool {
    let orders = link::orders();
    let epoch = orders.gate.epoch();
    if epoch & 1 == 1
        || INSIDE.get()
        || OWN
            .get()
            .is_some_and(|own| own.under_way.load(Ordering::Relaxed) != 0)
    {
        return false;
    }
    // Before the bit: who sees the bit knows by this which token it belongs to.
    GIVEN_BACK.store(epoch, Ordering::Release);
    if IN_FLIGHT
        .compare_exchange(0, SHUT, Ordering::AcqRel, Ordering::Acquire)
        .is_err()
    {
        return false;
    }
    barrier();
    if any_under_way() || streams::in_flight() != 0 {
        // Somebody was faster, and computes.
        IN_FLIGHT.fetch_and(!SHUT, Ordering::AcqRel);
        time::wake(orders.gate.word());
        return false;
    }
    streams::publish();
    link::send(&FromProcess::Closed { epoch });
    true
}

/// The token of that epoch was given back from inside.
pub(crate) fn was_given_back(epoch: u64) -> bool {
    IN_FLIGHT.load(Ordering::Acquire) & SHUT != 0 && GIVEN_BACK.load(Ordering::Acquire) == epoch
}

/// Waits until no launch is under way; the gate is shut.
pub(crate) fn wait_for_launches() {
    static NEVER: AtomicU32 = AtomicU32::new(0);
    barrier();
    while any_under_way() {
        time::wait(&NEVER, 0, IN_FLIGHT_LOOK);
    }
}
