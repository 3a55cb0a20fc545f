//! The connection to the node's agent, and the pages shared with it.
//!
//! Without a socket Weir is not installed, and everything passes to the driver unchanged. If the socket is missing or refuses
//! connections later, or the agent's heartbeat stops, the gate opens after [`OPENS_AFTER`], the time is counted
//! (invariant 6), and connecting is retried as long as the process lives. An agent that accepts connections but does not answer
//! yet, because other processes overload it, is waited for.

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

/// Time after which a gate without an agent opens.
pub(crate) const OPENS_AFTER: Duration = Duration::from_millis(100);
/// Time for which a reply of the agent is waited for.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// Interval between attempts to connect to an agent that accepts no connection.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);
/// Interval between attempts of a process that the agent refused.
const REFUSED_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between attempts to reach a lost agent.
const SEARCH_INTERVAL: Duration = Duration::from_millis(100);

/// `CUDA_ERROR_SYSTEM_NOT_READY`: result of `cuInit` when the agent refuses the process.
const REFUSED: Code = 802;

/// Orders in effect without an agent: every launch passes.
static OPEN_ORDERS: Orders = {
    let mut orders = Orders::new();
    orders.gate = Gate::at(0);
    orders
};
/// Orders in effect while an agent is running but has not provided pages yet: no launch passes.
static CLOSED_ORDERS: Orders = Orders::new();
static OWN_FACTS: Facts = Facts::new();

static ORDERS: AtomicPtr<Orders> = AtomicPtr::new((&raw const OPEN_ORDERS).cast_mut());
static FACTS: AtomicPtr<Facts> = AtomicPtr::new((&raw const OWN_FACTS).cast_mut());
static ACTIVE: AtomicBool = AtomicBool::new(false);
static PHASE: Mutex<Phase> = Mutex::new(Phase::New);
static TERMS: Mutex<Option<Terms>> = Mutex::new(None);
static LIMIT: AtomicU64 = AtomicU64::new(0);
static RESIDUE: AtomicU64 = AtomicU64::new(0);
/// Whether the agent was last given up for lack of a heartbeat.
static HUNG: AtomicBool = AtomicBool::new(false);
/// Whether there is no connection, or a new one is not served yet, so that the heartbeat of the previous page is meaningless.
static LOST: AtomicBool = AtomicBool::new(false);
/// Reason that the agent gave for its last refusal.
static REFUSAL: Mutex<String> = Mutex::new(String::new());

/// State of the process with respect to the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The driver has not been initialised.
    New,
    /// Weir does not control the process: there is no socket, no thread could be created, or it is a forked child.
    Off,
    /// Terms were received, or no agent answers: the driver is to be initialised.
    Ready,
    /// The driver is initialised, and the pages of an agent, or the defaults, are in use.
    Attached,
    /// The agent refuses the process.
    Refused,
}

/// Terms sent by the agent in its welcome message.
#[derive(Debug, Clone)]
struct Terms {
    on_loss: OnLoss,
    visible_devices: String,
    mps_pipe_directory: String,
    active_thread_hundredths: u32,
    mps_memory_limit: u64,
}

/// Returns the orders in effect. Pages are never unmapped, so the reference stays valid.
#[inline]
pub(crate) fn orders() -> &'static Orders {
    // SAFETY: a static, or a page mapped for the rest of the process's life.
    unsafe { &*ORDERS.load(Ordering::Acquire) }
}

/// Returns the facts in use, to which this process publishes its state.
#[inline]
pub(crate) fn facts() -> &'static Facts {
    // SAFETY: as in `orders`.
    unsafe { &*FACTS.load(Ordering::Acquire) }
}

/// Returns whether Weir controls this process: the agent's socket exists and the driver is initialised.
#[inline]
pub(crate) fn is_active() -> bool {
    ACTIVE.load(Ordering::Relaxed)
}

/// Returns whether this process has returned its token by itself.
pub(crate) fn is_given_back() -> bool {
    streams::IN_FLIGHT.load(Ordering::Acquire) & streams::SHUT != 0
}

/// Returns the pod's memory limit on the device in bytes; 0 if there is none.
pub(crate) fn memory_limit() -> u64 {
    LIMIT.load(Ordering::Acquire)
}

/// Returns the bytes that stay allocated with a context, charged once; 0 if they have to be measured.
pub(crate) fn context_residue() -> u64 {
    RESIDUE.load(Ordering::Acquire)
}

/// Sends a message to the agent. Lost messages are not repeated: a reconnected agent is sent the full state.
pub(crate) fn send(message: &FromProcess) {
    let mut writer = message.write();
    let _lost = connection::send(writer.finish());
}

/// Closes the connection to an agent without a heartbeat; the link thread then treats it as stopped.
pub(crate) fn abandon_hung_agent() {
    let is_lost = LOST.load(Ordering::Acquire);
    if connection::is_open() && !is_lost && agent_orders().is_some() {
        log::line("no heartbeat from the agent for one second: it is treated as stopped");
        HUNG.store(true, Ordering::Release);
        connection::shutdown();
    }
}

/// Sends a report of interest to an operator.
pub(crate) fn report(report: Report) {
    send(&FromProcess::Report(report));
}

/// Reports a refused collective.
pub(crate) fn report_collective(name: &str) {
    report(Report::Collective(name.to_owned()));
}

/// Reports the first sticky error of the driver.
pub(crate) fn report_fatal(code: Code) {
    // Other codes, of misuse, unfinished work and captures, concern only the program.
    const STICKY: std::ops::RangeInclusive<Code> = 700..=719;
    let code = code.unsigned_abs();
    let before = facts().last_error.load(Ordering::Relaxed);
    if before == 0 && code != 0 && STICKY.contains(&code.cast_signed()) {
        facts().last_error.store(code, Ordering::Relaxed);
        report(Report::Fatal(code));
    }
}

/// Returns whether the orders in effect are those of a connected agent, which accepts requests for a token.
pub(crate) fn is_served() -> bool {
    !LOST.load(Ordering::Acquire) && agent_orders().is_some()
}

/// Returns the agent's orders; `None` if the default orders are in effect.
pub(crate) fn agent_orders() -> Option<&'static Orders> {
    let orders = orders();
    let own = [&raw const OPEN_ORDERS, &raw const CLOSED_ORDERS];
    (!own.contains(&std::ptr::from_ref(orders))).then_some(orders)
}

/// Connects before the driver is initialised, and sets the environment variables that the driver reads. An error is the result of
/// the program's `cuInit`.
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

/// Obtains the agent's pages for the device once the driver is initialised; the gate is in effect from then on. An error is the
/// result of the program's `cuInit`.
pub(crate) fn attach() -> Result<(), Code> {
    let mut phase = PHASE.lock().unwrap_or_else(PoisonError::into_inner);
    if *phase != Phase::Ready {
        return Ok(());
    }
    gate::prepare();
    let connected = connection::is_open();
    if connected {
        match map_pages() {
            Ok(()) => {}
            Err(LinkError::Refused) => {
                *phase = Phase::Refused;
                return Err(REFUSED);
            }
            Err(LinkError::Lost) => {
                connection::shutdown();
                let closed: *const Orders = &raw const CLOSED_ORDERS;
                ORDERS.store(closed.cast_mut(), Ordering::Release);
            }
        }
    }
    *phase = Phase::Attached;
    ACTIVE.store(true, Ordering::Release);
    if !threads::start("weir-watch", watch::run) || !threads::start("weir-link", run) {
        // Without these threads no token would be returned and no loss of the agent noticed.
        ACTIVE.store(false, Ordering::Release);
        *phase = Phase::Off;
        log::line("no thread can be created: this process computes without limits");
        connection::shutdown();
    }
    Ok(())
}

/// Resets the state in the child of a fork, which has none of the threads. The child connects by itself if it initialises the
/// driver.
pub(crate) fn child() {
    ACTIVE.store(false, Ordering::Release);
    ORDERS.store((&raw const OPEN_ORDERS).cast_mut(), Ordering::Release);
    FACTS.store((&raw const OWN_FACTS).cast_mut(), Ordering::Release);
    connection::forget();
    // A thread that does not exist in the child may hold the lock. The state then stays as it is, and the child inactive.
    if let Ok(mut phase) = PHASE.try_lock()
        && *phase != Phase::New
    {
        *phase = Phase::Off;
    }
}

fn socket() -> Option<PathBuf> {
    // SAFETY: a NUL-terminated name. The value is copied before this thread runs anything else.
    let named = unsafe { libc::getenv(c"WEIR_GPU_SOCKET".as_ptr()) };
    debug_assert_eq!(GPU_SOCKET_VARIABLE, "WEIR_GPU_SOCKET");
    if !named.is_null() {
        // SAFETY: values of the environment are NUL-terminated.
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
    connection::set_path(path);
    let mut absence = Absence::default();
    loop {
        match connection::open() {
            ConnectOutcome::Connected => match exchange_hello(false, false) {
                Ok(()) => break,
                Err(LinkError::Refused) => return Phase::Refused,
                Err(LinkError::Lost) => {
                    connection::shutdown();
                    // A connection that was accepted, or is queued, belongs to a running agent; only the socket shows that it has
                    // stopped.
                    absence.end();
                }
            },
            ConnectOutcome::Busy => absence.end(),
            ConnectOutcome::NoAgent => {
                if absence.extend() >= OPENS_AFTER {
                    log::line(
                        "no agent answers: this process computes without limits until one does",
                    );
                    return Phase::Ready;
                }
            }
        }
        pause(RETRY_INTERVAL);
    }
    let terms = TERMS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(terms) = terms.as_ref() {
        set_environment(terms);
    }
    Phase::Ready
}

/// Time without an agent.
#[derive(Debug, Default)]
struct Absence {
    /// Start of the absence in nanoseconds; `None` while an agent is running.
    since: Option<u64>,
    /// Whether a log line has reported that the agent does not answer.
    is_reported: bool,
}

impl Absence {
    /// Notes that the agent is running but does not answer, and logs it once.
    fn end(&mut self) {
        self.since = None;
        if !std::mem::replace(&mut self.is_reported, true) {
            log::line("the agent is running but does not answer yet: this process waits for it");
        }
    }

    /// Returns whether the absence has lasted for at least `span`.
    fn has_lasted(&self, span: Duration) -> bool {
        let since = self.since.unwrap_or(u64::MAX);
        Duration::from_nanos(time::now().saturating_sub(since)) >= span
    }

    /// Notes that no agent is running now, and returns the time for which that has been so.
    fn extend(&mut self) -> Duration {
        let now = time::now();
        Duration::from_nanos(now.saturating_sub(*self.since.get_or_insert(now)))
    }
}

/// Reason for which a connection could not be used.
#[derive(Debug)]
enum LinkError {
    /// The connection was lost, or the agent does not answer.
    Lost,
    /// The agent refuses the process, and has sent the reason.
    Refused,
}

/// Sends the hello message and stores the terms of the reply. `again` and `open` state that the process was connected before, and
/// whether it has computed since.
fn exchange_hello(again: bool, open: bool) -> Result<(), LinkError> {
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
        _ => Err(LinkError::Lost),
    }
}

/// Attaches to the device, and maps the pages that the agent sends.
fn map_pages() -> Result<(), LinkError> {
    let attach = attachment().ok_or(LinkError::Lost)?;
    send(&attach);
    let (FromAgent::Pages, Some(pages)) = receive()? else {
        return Err(LinkError::Lost);
    };
    let (orders, facts) = pages.map().ok_or(LinkError::Lost)?;
    streams::with_busy(|busy_ns| {
        let before = self::facts();
        carry_over(before, facts, busy_ns);
        FACTS.store(std::ptr::from_ref(facts).cast_mut(), Ordering::Release);
    });
    let old = self::orders();
    ORDERS.store(std::ptr::from_ref(orders).cast_mut(), Ordering::Release);
    gate::reset();
    wake_waiters(old);
    Ok(())
}

/// Copies the counters to the new page. Launches that other threads make at this moment may be missed.
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
    // SAFETY: `device` is valid for writes.
    if unsafe { driver::cuDeviceGet(&raw mut device, 0) } != SUCCESS {
        return None;
    }
    let mut uuid = [0; 16];
    // SAFETY: sixteen bytes, valid for writes.
    if unsafe { driver::cuDeviceGetUuid_v2(uuid.as_mut_ptr(), device) } != SUCCESS {
        return None;
    }
    let attribute = |attribute: c_int| {
        let mut value = 0;
        // SAFETY: `value` is valid for writes.
        let code = unsafe { driver::cuDeviceGetAttribute(&raw mut value, attribute, device) };
        (code == SUCCESS).then_some(value)
    };
    let mps = attribute(MPS);
    let mps_state = mps.map_or(2, |mps| u32::from(mps != 0));
    facts().mps.store(mps_state, Ordering::Relaxed);
    Some(FromProcess::Attach {
        uuid,
        multiprocessors: u32::try_from(attribute(MULTIPROCESSORS)?).ok()?,
        mps: mps == Some(1),
        context_bytes: 0,
        busy_ns: streams::busy_ns(),
    })
}

fn receive() -> Result<(FromAgent, Option<connection::Files>), LinkError> {
    match connection::receive(Some(ANSWER_MAX)) {
        Received::Message(FromAgent::Refused { text, .. }, _) => {
            let mut refusal = REFUSAL.lock().unwrap_or_else(PoisonError::into_inner);
            if *refusal != text {
                log::line(&format!("the agent refuses this process: {text}"));
                *refusal = text;
            }
            Err(LinkError::Refused)
        }
        Received::Message(message, files) => Ok((message, files)),
        Received::Nothing | Received::Closed => Err(LinkError::Lost),
    }
}

fn program() -> String {
    let name = std::env::current_exe().ok();
    let name = name.as_deref().and_then(std::path::Path::file_name);
    name.map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

/// Sets the variables that the driver reads when it is initialised. A smaller share of SMs that the environment already has is
/// kept.
fn set_environment(terms: &Terms) {
    let set = |name: &CStr, value: &str| {
        if let Ok(value) = std::ffi::CString::new(value) {
            // SAFETY: NUL-terminated strings, which the C library copies.
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

/// Runs the link thread, which receives the agent's messages, as long as the process.
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
                // The agent sends no other message unrequested.
                Received::Message(..) | Received::Nothing => {}
                Received::Closed => loss = Some(Loss::new()),
            }
            continue;
        };
        // A hung agent may still accept connections without answering, so the gate is opened before the next attempt.
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
        connection::shutdown();
        if lost.is_hung || lost.absence.has_lasted(OPENS_AFTER) {
            lost.open();
        } else if matches!(outcome, Reconnect::Silent | Reconnect::Refused) {
            lost.close();
        }
        pause(match outcome {
            Reconnect::Refused => REFUSED_INTERVAL,
            Reconnect::Silent => SEARCH_INTERVAL,
            _ if lost.counted_to.is_some() => SEARCH_INTERVAL,
            _ => RETRY_INTERVAL,
        });
    }
}

/// Outcome of an attempt to reach the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reconnect {
    /// An agent serves this process.
    Served,
    /// The agent does not answer or accepts no connection.
    Silent,
    /// The agent refuses this process.
    Refused,
    /// No agent is running.
    NoAgent,
}

/// Loss of the connection, until an agent serves the process again.
#[derive(Debug)]
struct Loss {
    absence: Absence,
    /// Whether the agent had no heartbeat while a thread was parked.
    is_hung: bool,
    /// Whether the gate was open, or work was in flight, since the loss.
    computes: bool,
    /// Time up to which the time without an agent is counted, in nanoseconds; `None` if the gate is as the agent left it, or
    /// closed.
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

    /// Tries to connect to the agent, or to its successor.
    fn try_again(&mut self) -> Reconnect {
        self.computes |= orders().gate.is_open() || streams::in_flight() != 0;
        match connection::open() {
            ConnectOutcome::Connected => match reconnect(self.computes) {
                Ok(()) => Reconnect::Served,
                Err(_) if self.is_hung => Reconnect::Silent,
                Err(error) => {
                    self.absence.end();
                    match error {
                        LinkError::Refused => Reconnect::Refused,
                        LinkError::Lost => Reconnect::Silent,
                    }
                }
            },
            ConnectOutcome::Busy => {
                self.absence.end();
                Reconnect::Silent
            }
            ConnectOutcome::NoAgent => {
                let _since = self.absence.extend();
                Reconnect::NoAgent
            }
        }
    }

    /// Closes the gate: an agent is running but does not serve this process yet.
    fn close(&mut self) {
        let old = orders();
        let closed: *const Orders = &raw const CLOSED_ORDERS;
        if let Some(from) = self.counted_to.take() {
            let passed = time::now().saturating_sub(from);
            facts().ungated_ns.fetch_add(passed, Ordering::Relaxed);
        }
        if !std::ptr::eq(old, closed) {
            ORDERS.store(closed.cast_mut(), Ordering::Release);
            gate::reset();
            wake_waiters(old);
        }
    }

    /// Opens the gate and counts the time, unless the terms keep it as it is.
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

/// Registers with the agent again over the connection that was opened after a loss: exchanges `Hello`, maps the new pages, and
/// gives up the unused part of the memory claim. `computes`: the process computes, or its gate is open.
fn reconnect(computes: bool) -> Result<(), LinkError> {
    exchange_hello(true, computes)?;
    map_pages()?;
    // The account may rely on more than the new page grants.
    memory::relinquish();
    Ok(())
}

fn open_without_agent() {
    let old = orders();
    let open: *const Orders = &raw const OPEN_ORDERS;
    if !std::ptr::eq(old, open) {
        ORDERS.store(open.cast_mut(), Ordering::Release);
        gate::reset();
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
