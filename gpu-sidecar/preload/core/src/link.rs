//! The connection to the node's agent, and the pages that are shared with it.
//!
//! Without a socket there is no Weir, and everything passes to the driver unchanged. With one that is gone or refuses connections,
//! and with an agent whose heartbeat stands still, the gate opens after [`OPENS_AFTER`] and the time is counted (design: invariant
//! 6); the connection is tried again as long as the process lives. An agent that is there and does not answer yet, since others
//! flood it, is waited for.

use std::ffi::{CStr, OsStr, c_int};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use protocol::message::{FromAgent, FromProcess, OnLoss, Report};
use protocol::page::{Facts, Gate, Orders};
use protocol::{GPU_SOCKET, GPU_SOCKET_VARIABLE};

use crate::connection::{self, ConnectOutcome, Received};
use crate::driver::{self, Code, SUCCESS};
use crate::{gate, log, memory, streams, threads, time, watch};

/// A gate that nobody keeps opens after this time.
pub(crate) const OPENS_AFTER: Duration = Duration::from_millis(100);
/// How long an answer of the agent is waited for.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// How soon a connection that was not taken is tried again.
const RETRY: Duration = Duration::from_millis(5);
/// How soon a process that was refused tries again.
const REFUSED_AFTER: Duration = Duration::from_secs(1);
/// How often a lost agent is looked for.
const LOOK_AFTER: Duration = Duration::from_millis(100);

/// `CUDA_ERROR_SYSTEM_NOT_READY`: what `cuInit` answers when the agent refuses the process.
const REFUSED: Code = 802;

/// What is ordered while no agent does: everything may be launched.
static NOBODYS_ORDERS: Orders = {
    let mut orders = Orders::new();
    orders.gate = Gate::at(0);
    orders
};
/// What is ordered while an agent is there and has not given pages yet: nothing may be launched.
static CLOSED_ORDERS: Orders = Orders::new();
static OWN_FACTS: Facts = Facts::new();

static ORDERS: AtomicPtr<Orders> = AtomicPtr::new((&raw const NOBODYS_ORDERS).cast_mut());
static FACTS: AtomicPtr<Facts> = AtomicPtr::new((&raw const OWN_FACTS).cast_mut());
static ACTIVE: AtomicBool = AtomicBool::new(false);
static PHASE: Mutex<Phase> = Mutex::new(Phase::New);
static TERMS: Mutex<Option<Terms>> = Mutex::new(None);
static LIMIT: AtomicU64 = AtomicU64::new(0);
static RESIDUE: AtomicU64 = AtomicU64::new(0);
/// The agent was last given up for giving no sign.
static HUNG: AtomicBool = AtomicBool::new(false);
/// There is no connection, or a new one is not served yet: the heartbeat of the page before says nothing.
static LOST: AtomicBool = AtomicBool::new(false);
/// Why the agent refused this process, as it was last said.
static REFUSAL: Mutex<String> = Mutex::new(String::new());

/// How far the process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The driver was not initialised yet.
    New,
    /// There is no Weir here.
    Off,
    /// The agent has said where to compute, or there is none: the driver is to be initialised.
    Welcome,
    /// The pages are there.
    Attached,
    /// The agent will not have the process.
    Refused,
}

/// What the agent has said.
#[derive(Debug, Clone)]
struct Terms {
    on_loss: OnLoss,
    visible_devices: String,
    mps_pipe_directory: String,
    active_thread_hundredths: u32,
    mps_memory_limit: u64,
}

/// What holds at the moment. Pages are never unmapped, so a reference stays good.
#[inline]
pub(crate) fn orders() -> &'static Orders {
    // SAFETY: a static, or a page that is mapped for the rest of the process's life.
    unsafe { &*ORDERS.load(Ordering::Acquire) }
}

/// Where the process says how it stands.
#[inline]
pub(crate) fn facts() -> &'static Facts {
    // SAFETY: as of `orders`.
    unsafe { &*FACTS.load(Ordering::Acquire) }
}

/// The process belongs to a pod of Weir's and the driver is initialised.
#[inline]
pub(crate) fn is_active() -> bool {
    ACTIVE.load(Ordering::Relaxed)
}

/// The token was given back from inside.
pub(crate) fn is_given_back() -> bool {
    streams::IN_FLIGHT.load(Ordering::Acquire) & streams::SHUT != 0
}

/// Bytes of the device that the pod may have; 0: no limit.
pub(crate) fn memory_limit() -> u64 {
    LIMIT.load(Ordering::Acquire)
}

/// Bytes that stay with a context, charged once; 0: to be measured.
pub(crate) fn context_residue() -> u64 {
    RESIDUE.load(Ordering::Acquire)
}

/// Says something to the agent. What cannot be said is lost: the agent learns how the process stands when it is there again.
pub(crate) fn send(message: &FromProcess) {
    let mut writer = message.write();
    let _lost = connection::send(writer.finish());
}

/// The agent gives no sign: the connection is given up, and the thread that hears it goes on as if it were gone.
pub(crate) fn suspect() {
    let is_lost = LOST.load(Ordering::Acquire);
    if connection::is_open() && !is_lost && agents_orders().is_some() {
        log::line("the agent gives no sign: it is taken for gone");
        HUNG.store(true, Ordering::Release);
        connection::shut();
    }
}

/// Says something that an operator wants to know.
pub(crate) fn report(report: Report) {
    send(&FromProcess::Report(report));
}

/// A collective was refused.
pub(crate) fn report_collective(name: &str) {
    report(Report::Collective(name.to_owned()));
}

/// The driver has answered with an error that stays.
pub(crate) fn fatal(code: Code) {
    // Codes of misuse, of work under way and of captures are the program's own affair.
    const STAY: std::ops::RangeInclusive<Code> = 700..=719;
    let code = code.unsigned_abs();
    let before = facts().last_error.load(Ordering::Relaxed);
    if before == 0 && code != 0 && STAY.contains(&code.cast_signed()) {
        facts().last_error.store(code, Ordering::Relaxed);
        report(Report::Fatal(code));
    }
}

/// The orders that hold are those of an agent which is connected: it may be asked for a token.
pub(crate) fn is_served() -> bool {
    !LOST.load(Ordering::Acquire) && agents_orders().is_some()
}

/// The orders of the agent, if there is one.
pub(crate) fn agents_orders() -> Option<&'static Orders> {
    let orders = orders();
    let own = [&raw const NOBODYS_ORDERS, &raw const CLOSED_ORDERS];
    (!own.contains(&std::ptr::from_ref(orders))).then_some(orders)
}

/// Connects before the driver is initialised, and sets what the driver reads from the environment. An error: what the
/// program's `cuInit` answers.
pub(crate) fn begin() -> Result<(), Code> {
    let mut phase = PHASE.lock().unwrap_or_else(PoisonError::into_inner);
    if *phase == Phase::New {
        *phase = hello();
    }
    match *phase {
        Phase::Refused => Err(REFUSED),
        _ => Ok(()),
    }
}

/// The driver is initialised: the agent makes pages for the device, and the gate holds from now on.
pub(crate) fn attach() -> Result<(), Code> {
    let mut phase = PHASE.lock().unwrap_or_else(PoisonError::into_inner);
    if *phase != Phase::Welcome {
        return Ok(());
    }
    gate::prepare();
    let connected = connection::is_open();
    if connected {
        match pages() {
            Ok(()) => {}
            Err(Broken::Refused) => {
                *phase = Phase::Refused;
                return Err(REFUSED);
            }
            Err(Broken::Gone) => {
                connection::shut();
                let closed: *const Orders = &raw const CLOSED_ORDERS;
                ORDERS.store(closed.cast_mut(), Ordering::Release);
            }
        }
    }
    *phase = Phase::Attached;
    ACTIVE.store(true, Ordering::Release);
    if !threads::start("weir-watch", watch::run) || !threads::start("weir-link", run) {
        // Nobody would give a token back, or notice that the agent is gone.
        ACTIVE.store(false, Ordering::Release);
        *phase = Phase::Off;
        log::line("no thread can be started: this process computes without limits");
        connection::shut();
    }
    Ok(())
}

/// In a child of a fork: it is another process, without the threads; it begins anew if it initialises the driver itself.
pub(crate) fn child() {
    ACTIVE.store(false, Ordering::Release);
    ORDERS.store((&raw const NOBODYS_ORDERS).cast_mut(), Ordering::Release);
    FACTS.store((&raw const OWN_FACTS).cast_mut(), Ordering::Release);
    connection::forget();
    // The lock may be held by a thread that is not there: what cannot be had is left as it is, and the child stays off.
    if let Ok(mut phase) = PHASE.try_lock()
        && *phase != Phase::New
    {
        *phase = Phase::Off;
    }
}

fn socket() -> Option<PathBuf> {
    // SAFETY: a name that ends. The text is copied before anything else runs in this thread.
    let named = unsafe { libc::getenv(c"WEIR_GPU_SOCKET".as_ptr()) };
    debug_assert_eq!(GPU_SOCKET_VARIABLE, "WEIR_GPU_SOCKET");
    if !named.is_null() {
        // SAFETY: the environment's texts end.
        let named = unsafe { CStr::from_ptr(named) };
        return (!named.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(named.to_bytes())));
    }
    let folder = crate::front::folder()?;
    let path = PathBuf::from(OsStr::from_bytes(folder.to_bytes())).join(GPU_SOCKET);
    std::fs::symlink_metadata(&path).is_ok().then_some(path)
}

fn hello() -> Phase {
    let Some(path) = socket() else {
        return Phase::Off;
    };
    connection::keep(path);
    let mut absence = Absence::default();
    loop {
        match connection::open() {
            ConnectOutcome::Connected => match welcome(false, false) {
                Ok(()) => break,
                Err(Broken::Refused) => return Phase::Refused,
                Err(Broken::Gone) => {
                    connection::shut();
                    // A connection that was taken, or that waits to be, is an agent's: only its socket says that it is gone.
                    absence.is_there();
                }
            },
            ConnectOutcome::Busy => absence.is_there(),
            ConnectOutcome::NoAgent => {
                if absence.lasts() >= OPENS_AFTER {
                    log::line(
                        "no agent answers: this process computes without limits until one does",
                    );
                    return Phase::Welcome;
                }
            }
        }
        pause(RETRY);
    }
    let terms = TERMS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(terms) = terms.as_ref() {
        set_environment(terms);
    }
    Phase::Welcome
}

/// For how long no agent has been there.
#[derive(Debug, Default)]
struct Absence {
    /// Since when, in nanoseconds.
    since: Option<u64>,
    /// It was said that the agent does not answer.
    is_said: bool,
}

impl Absence {
    /// The agent is there, and does not answer.
    fn is_there(&mut self) {
        self.since = None;
        if !std::mem::replace(&mut self.is_said, true) {
            log::line("the agent is there and does not answer yet: this process waits for it");
        }
    }

    /// Whether there has been none for at least so long.
    fn has_lasted(&self, span: Duration) -> bool {
        let since = self.since.unwrap_or(u64::MAX);
        Duration::from_nanos(time::now().saturating_sub(since)) >= span
    }

    /// There is none now; returns for how long that has been so.
    fn lasts(&mut self) -> Duration {
        let now = time::now();
        Duration::from_nanos(now.saturating_sub(*self.since.get_or_insert(now)))
    }
}

/// Why nothing came of a connection.
#[derive(Debug)]
enum Broken {
    /// The agent is gone, or does not answer.
    Gone,
    /// It will not have the process; it was said why.
    Refused,
}

/// Says hello and hears the terms.
fn welcome(again: bool, open: bool) -> Result<(), Broken> {
    let facts = facts();
    send(&FromProcess::Hello {
        pid: std::process::id(),
        again,
        open,
        busy_ns: streams::busy_ns(),
        ungated_ns: facts.ungated_ns.load(Ordering::Relaxed),
        bytes_used: facts.bytes_used.load(Ordering::Relaxed),
        program: program(),
    });
    match receive()?.0 {
        FromAgent::Welcome {
            on_loss,
            visible_devices,
            mps_pipe_directory,
            active_thread_hundredths,
            mps_memory_limit,
            memory_limit,
            context_residue,
            pod: _,
        } => {
            LIMIT.store(memory_limit, Ordering::Release);
            RESIDUE.store(context_residue, Ordering::Release);
            let terms = Terms {
                on_loss,
                visible_devices,
                mps_pipe_directory,
                active_thread_hundredths,
                mps_memory_limit,
            };
            *TERMS.lock().unwrap_or_else(PoisonError::into_inner) = Some(terms);
            Ok(())
        }
        _ => Err(Broken::Gone),
    }
}

/// Says which device it is, and maps the pages that come back.
fn pages() -> Result<(), Broken> {
    let attach = attachment().ok_or(Broken::Gone)?;
    send(&attach);
    let (FromAgent::Pages, Some(pages)) = receive()? else {
        return Err(Broken::Gone);
    };
    let (orders, facts) = pages.map().ok_or(Broken::Gone)?;
    streams::with_busy(|busy_ns| {
        let before = self::facts();
        carry_over(before, facts, busy_ns);
        FACTS.store(std::ptr::from_ref(facts).cast_mut(), Ordering::Release);
    });
    let old = self::orders();
    ORDERS.store(std::ptr::from_ref(orders).cast_mut(), Ordering::Release);
    gate::start_over();
    wake_waiters(old);
    Ok(())
}

/// What was counted goes on being counted in the new page. Launches that other threads make at this moment may be missed.
fn carry_over(from: &Facts, to: &Facts, busy_ns: u64) {
    let copy = |from: &AtomicU64, to: &AtomicU64| {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    };
    copy(&from.launches.0, &to.launches.0);
    copy(&from.busy_since, &to.busy_since);
    copy(&from.ungated_ns, &to.ungated_ns);
    copy(&from.bound_exceeded, &to.bound_exceeded);
    copy(&from.bytes_used, &to.bytes_used);
    copy(&from.bytes_fixed, &to.bytes_fixed);
    copy(&from.refused_allocations, &to.refused_allocations);
    copy(&from.unknown_symbols, &to.unknown_symbols);
    to.busy_ns.store(busy_ns, Ordering::Relaxed);
    for (from, to) in [
        (&from.mps, &to.mps),
        (&from.inflight_us, &to.inflight_us),
        (&from.unmeasured, &to.unmeasured),
        (&from.last_error, &to.last_error),
        (&from.residency, &to.residency),
    ] {
        to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

fn attachment() -> Option<FromProcess> {
    const MULTIPROCESSORS: c_int = 16;
    const MPS: c_int = 133;
    let mut device = 0;
    // SAFETY: a place to write to.
    if unsafe { driver::cuDeviceGet(&raw mut device, 0) } != SUCCESS {
        return None;
    }
    let mut uuid = [0; 16];
    // SAFETY: a place of sixteen bytes to write to.
    if unsafe { driver::cuDeviceGetUuid_v2(uuid.as_mut_ptr(), device) } != SUCCESS {
        return None;
    }
    let attribute = |attribute: c_int| {
        let mut value = 0;
        // SAFETY: a place to write to.
        let code = unsafe { driver::cuDeviceGetAttribute(&raw mut value, attribute, device) };
        (code == SUCCESS).then_some(value)
    };
    let mps = attribute(MPS);
    let mps_known = mps.map_or(2, |mps| u32::from(mps != 0));
    facts().mps.store(mps_known, Ordering::Relaxed);
    Some(FromProcess::Attach {
        uuid,
        multiprocessors: u32::try_from(attribute(MULTIPROCESSORS)?).ok()?,
        mps: mps == Some(1),
        context_bytes: 0,
        busy_ns: streams::busy_ns(),
    })
}

fn receive() -> Result<(FromAgent, Option<connection::Files>), Broken> {
    match connection::receive(Some(ANSWER_MAX)) {
        Received::Message(FromAgent::Refused { text, .. }, _) => {
            let mut said = REFUSAL.lock().unwrap_or_else(PoisonError::into_inner);
            if *said != text {
                log::line(&format!("the agent refuses this process: {text}"));
                *said = text;
            }
            Err(Broken::Refused)
        }
        Received::Message(message, files) => Ok((message, files)),
        Received::Nothing | Received::Gone => Err(Broken::Gone),
    }
}

fn program() -> String {
    let name = std::env::current_exe().ok();
    let name = name.as_deref().and_then(std::path::Path::file_name);
    name.map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

/// What the driver reads when it is initialised. A share of SMs that the environment states already holds if it is smaller.
fn set_environment(terms: &Terms) {
    let set = |name: &CStr, value: &str| {
        if let Ok(value) = std::ffi::CString::new(value) {
            // SAFETY: texts that end; the C library copies them.
            let _full = unsafe { libc::setenv(name.as_ptr(), value.as_ptr(), 1) };
        }
    };
    if !terms.visible_devices.is_empty() {
        set(c"CUDA_VISIBLE_DEVICES", &terms.visible_devices);
    }
    if terms.mps_pipe_directory.is_empty() {
        return;
    }
    set(c"CUDA_MPS_PIPE_DIRECTORY", &terms.mps_pipe_directory);
    let hundredths = terms.active_thread_hundredths;
    let stated = std::env::var("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    let stated = stated.ok().and_then(|text| text.trim().parse::<f64>().ok());
    if hundredths < 10_000 && stated.is_none_or(|stated| stated * 100.0 > f64::from(hundredths)) {
        let percentage = format!("{}.{:02}", hundredths / 100, hundredths % 100);
        set(c"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", &percentage);
    }
    if terms.mps_memory_limit > 0 {
        let mebibytes = terms.mps_memory_limit.div_ceil(1 << 20);
        set(
            c"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
            &format!("0={mebibytes}M"),
        );
    }
}

/// The thread that hears the agent, as long as the process lives.
fn run() {
    let mut loss = (!connection::is_open()).then(Loss::new);
    loop {
        let Some(lost) = &mut loss else {
            match connection::receive(None) {
                Received::Message(FromAgent::Refused { text, .. }, _) => {
                    log::line(&format!("the agent no longer serves this process: {text}"));
                }
                Received::Message(FromAgent::Relinquish, _) => memory::relinquish(),
                Received::Message(FromAgent::Probe, _) => send(&FromProcess::Present),
                // Nothing else is said unasked.
                Received::Message(..) | Received::Nothing => {}
                Received::Gone => loss = Some(Loss::new()),
            }
            continue;
        };
        // One that hangs still takes connections and answers none: by the next time the gate is open.
        let hangs_now = HUNG.swap(false, Ordering::AcqRel);
        lost.is_hung |= hangs_now;
        let outcome = if hangs_now {
            Reconnect::Silent
        } else {
            lost.try_again()
        };
        if outcome == Reconnect::Served {
            LOST.store(false, Ordering::Release);
            loss = None;
            continue;
        }
        connection::shut();
        if lost.is_hung || lost.absence.has_lasted(OPENS_AFTER) {
            lost.open();
        } else if matches!(outcome, Reconnect::Silent | Reconnect::Refused) {
            lost.close();
        }
        pause(match outcome {
            Reconnect::Refused => REFUSED_AFTER,
            Reconnect::Silent => LOOK_AFTER,
            _ if lost.counted_to.is_some() => LOOK_AFTER,
            _ => RETRY,
        });
    }
}

/// What an attempt to reach the agent found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reconnect {
    /// An agent that serves this process.
    Served,
    /// One that does not answer, or takes no connection.
    Silent,
    /// One that refuses this process.
    Refused,
    /// None.
    NoAgent,
}

/// A connection that was lost.
#[derive(Debug)]
struct Loss {
    absence: Absence,
    /// The agent gave no sign while a thread was parked.
    is_hung: bool,
    /// The gate was open, or work was in flight, since then.
    computes: bool,
    /// Until when the time without an agent is counted; `None`: the gate stands as the agent left it, or is shut.
    counted_to: Option<u64>,
}

impl Loss {
    fn new() -> Self {
        LOST.store(true, Ordering::Release);
        Self {
            absence: Absence::default(),
            is_hung: false,
            computes: false,
            counted_to: None,
        }
    }

    /// Connects to the agent, or to another one.
    fn try_again(&mut self) -> Reconnect {
        self.computes |= orders().gate.is_open() || streams::in_flight() != 0;
        match connection::open() {
            ConnectOutcome::Connected => match again(self.computes) {
                Ok(()) => Reconnect::Served,
                Err(_) if self.is_hung => Reconnect::Silent,
                Err(broken) => {
                    self.absence.is_there();
                    match broken {
                        Broken::Refused => Reconnect::Refused,
                        Broken::Gone => Reconnect::Silent,
                    }
                }
            },
            ConnectOutcome::Busy => {
                self.absence.is_there();
                Reconnect::Silent
            }
            ConnectOutcome::NoAgent => {
                let _since = self.absence.lasts();
                Reconnect::NoAgent
            }
        }
    }

    /// Shuts the gate: an agent is there, and does not serve this process yet.
    fn close(&mut self) {
        let old = orders();
        let closed: *const Orders = &raw const CLOSED_ORDERS;
        if let Some(from) = self.counted_to.take() {
            let passed = time::now().saturating_sub(from);
            facts().ungated_ns.fetch_add(passed, Ordering::Relaxed);
        }
        if !std::ptr::eq(old, closed) {
            ORDERS.store(closed.cast_mut(), Ordering::Release);
            gate::start_over();
            wake_waiters(old);
        }
    }

    /// Opens the gate, where that is wanted, and counts the time.
    fn open(&mut self) {
        let keeps = {
            let terms = TERMS.lock().unwrap_or_else(PoisonError::into_inner);
            let terms = terms.as_ref();
            terms.is_some_and(|terms| terms.on_loss == OnLoss::Keep)
        };
        if keeps {
            return;
        }
        open_without_agent();
        let now = time::now();
        let from = self.counted_to.replace(now).unwrap_or(now);
        facts()
            .ungated_ns
            .fetch_add(now.saturating_sub(from), Ordering::Relaxed);
    }
}

/// Connects to another agent than before.
fn again(computes: bool) -> Result<(), Broken> {
    welcome(true, computes)?;
    pages()?;
    // The account may believe in more than the new page grants.
    memory::relinquish();
    Ok(())
}

fn open_without_agent() {
    let old = orders();
    let nobodys: *const Orders = &raw const NOBODYS_ORDERS;
    if !std::ptr::eq(old, nobodys) {
        ORDERS.store(nobodys.cast_mut(), Ordering::Release);
        gate::start_over();
        wake_waiters(old);
    }
}

fn wake_waiters(orders: &Orders) {
    time::wake(orders.gate.word());
    time::wake(&orders.attention);
    time::wake(&orders.claim_answered);
}

fn pause(span: Duration) {
    static NEVER: AtomicU32 = AtomicU32::new(0);
    time::wait(&NEVER, 0, span);
}
