//! The connection to the node's agent, and the pages shared with it: carries out what [`Link`] decides.

use std::ffi::{CStr, CString, OsStr, c_int};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

use preload_ops::{Driver as _, System as _, residency, watch};
use preload_state::counters;
use preload_state::link::{ANSWER_MAX, Action, Activity, Event, Link, Phase, Terms};
use preload_state::memory::HostSpan;
use preload_state::mover::Mover;
use preload_state::watch::Watch;
use protocol::message::{FromAgent, FromProcess};
use protocol::{GPU_SOCKET, GPU_SOCKET_VARIABLE};

use crate::connection::{Files, Received};
use crate::context::{Context, context};
use crate::driver::{Code, REFUSED};
use crate::host::{self, Host};
use crate::{log, memory, threads, time};

/// What follows from the actions after one event.
enum Next {
    /// This has happened.
    Event(Event),
    /// The program's call returns; `false` is an error.
    Return(bool),
}

/// Connects before the driver is initialised, and sets the environment variables that the driver reads. An error is the result of
/// the program's `cuInit`.
pub(crate) fn begin() -> Result<(), Code> {
    let context = context();
    let mut link = lock(context);
    let mut has_socket = false;
    if link.phase() == Phase::New
        && let Some(path) = socket()
    {
        context.connection.set_path(path);
        has_socket = true;
    }
    run(&mut link, Event::Begin { has_socket })
}

/// Obtains the agent's pages for the device once the driver is initialised; the gate is in effect from then on. An error is the
/// result of the program's `cuInit`.
pub(crate) fn attach() -> Result<(), Code> {
    let context = context();
    let mut link = lock(context);
    if link.phase() == Phase::Ready {
        host::prepare_barrier();
    }
    let is_connected = context.connection.is_open();
    run(&mut link, Event::Initialised { is_connected })
}

fn lock(context: &'static Context) -> MutexGuard<'static, Link> {
    context.link.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Handles an event and all that follow from it, up to the return from the program's call.
fn run(link: &mut Link, mut event: Event) -> Result<(), Code> {
    let mut files = None;
    loop {
        link.handle(time::now(), event);
        match carry_out(link, &mut files) {
            Next::Event(next) => event = next,
            Next::Return(true) => return Ok(()),
            Next::Return(false) => return Err(REFUSED),
        }
    }
}

/// Runs the thread of the link, as long as the process.
fn run_link() {
    let context = context();
    // Waits until the initialisation that has started this thread is over.
    let mut link = lock(context).clone();
    let mut files = None;
    let mut event = Event::Run {
        is_connected: context.connection.is_open(),
        activity: activity(),
    };
    loop {
        link.handle(time::now(), event);
        context.process.status.set_lost(link.is_lost());
        match carry_out(&mut link, &mut files) {
            Next::Event(next) => event = next,
            Next::Return(_) => return,
        }
    }
}

/// Runs the watch thread, as long as the process.
fn run_watch() {
    preload_ops::capture_mode::set_relaxed(Host);
    let mut state = Watch::new();
    loop {
        watch::step(Host, &mut state);
    }
}

fn activity() -> Activity {
    let process = &context().process;
    Activity {
        is_hung: process.status.take_hung(),
        computes: Host.orders().gate.is_open() || process.gate.word().in_flight() != 0,
    }
}

/// Carries out actions up to the one that an event answers.
fn carry_out(link: &mut Link, files: &mut Option<Files>) -> Next {
    let context = context();
    while let Some(action) = link.poll() {
        let event = match action {
            Action::Connect => Event::Connect(context.connection.open()),
            Action::Hello { again, open } => {
                let process = &context.process;
                let greeting = counters::Greeting {
                    pid: std::process::id(),
                    again,
                    open,
                    busy_ns: process.streams.busy_ns(),
                    program: program(),
                    host_bytes: process.host_bytes.load(Ordering::Relaxed),
                    pinned_bytes: process.pinned_bytes.load(Ordering::Relaxed),
                };
                Host.send(&counters::hello(Host.facts(), greeting));
                Event::Reply(reply(files))
            }
            Action::Attach => Event::Reply(attachment().and_then(|attach| {
                Host.send(&attach);
                reply(files)
            })),
            Action::MapPages => Event::Mapped(files.take().is_some_and(|files| map_pages(&files))),
            Action::Start => Event::Started(start()),
            Action::Receive => match context.connection.receive(None) {
                Received::Message(FromAgent::HostWindow { bytes, is_pinned }, files) => {
                    add_window(files.as_ref(), bytes, is_pinned);
                    Event::Nothing
                }
                Received::Message(message, _) => Event::Message(message),
                Received::Nothing => Event::Nothing,
                Received::Closed => Event::Closed(activity()),
            },
            Action::Pause(span) => {
                time::pause(span);
                Event::Elapsed(activity())
            }
            Action::Return(is_allowed) => return Next::Return(is_allowed),
            effect => {
                apply(effect);
                continue;
            }
        };
        return Next::Event(event);
    }
    // Every batch of actions ends with one that names the next event; a loop without would spin.
    Next::Return(true)
}

/// Carries out an action that no event answers.
fn apply(action: Action) {
    let context = context();
    match action {
        Action::Limits(terms) => context.process.set_limits(&terms),
        Action::SetEnvironment(terms) => set_environment(&terms),
        Action::Send(message) => Host.send(&message),
        Action::Relinquish => memory::relinquish(),
        Action::Shutdown => context.connection.shutdown(),
        Action::UseOpenOrders => context.switch_to_open_orders(),
        Action::UseClosedOrders => context.switch_to_closed_orders(),
        Action::CountUngated(ns) => {
            Host.facts().ungated_ns.fetch_add(ns, Ordering::Relaxed);
        }
        Action::Log(line) => log::line(&line),
        // Answered by an event: see `carry_out`.
        Action::Connect
        | Action::Hello { .. }
        | Action::Attach
        | Action::MapPages
        | Action::Start
        | Action::Receive
        | Action::Pause(_)
        | Action::Return(_) => {}
    }
}

/// Waits for a reply of the agent, and keeps the files that come with it.
fn reply(files: &mut Option<Files>) -> Option<FromAgent> {
    match context().connection.receive(Some(ANSWER_MAX)) {
        Received::Message(message, received) => {
            *files = received;
            Some(message)
        }
        Received::Nothing | Received::Closed => None,
    }
}

/// Maps the pages, continues the counters in them, and uses them.
fn map_pages(files: &Files) -> bool {
    let Some((orders, facts)) = files.map() else {
        return false;
    };
    let context = context();
    context.process.streams.with_busy(|busy_ns| {
        counters::carry_over(Host.facts(), facts, busy_ns);
        context.use_facts(facts);
    });
    context.switch_orders(orders);
    true
}

/// Adds a window of host memory that came with a message.
fn add_window(files: Option<&Files>, bytes: u64, is_pinned: bool) {
    match files.and_then(|files| files.map_window(bytes)) {
        Some(at) => residency::add_window(Host, HostSpan { at, bytes }, is_pinned),
        None => log::line(
            "host memory of the agent cannot be mapped: the model cannot leave the device",
        ),
    }
}

/// Runs the mover thread, as long as the process.
fn run_mover() {
    residency::begin(Host);
    let mut state = Mover::new();
    loop {
        residency::step(Host, &mut state);
    }
}

/// Puts the library into effect and starts its threads. Returns `false`, without effect, if a thread cannot be created.
fn start() -> bool {
    let process = &context().process;
    process.set_active(true);
    let is_started = threads::start("weir-watch", run_watch)
        && threads::start("weir-mover", run_mover)
        && threads::start("weir-link", run_link);
    if !is_started {
        process.set_active(false);
    }
    is_started
}

fn socket() -> Option<PathBuf> {
    // SAFETY: a NUL-terminated name. The value is copied before this thread runs anything else.
    let named = unsafe { libc::getenv(c"WEIR_GPU_SOCKET".as_ptr()) };
    debug_assert_eq!(GPU_SOCKET_VARIABLE, "WEIR_GPU_SOCKET");
    if !named.is_null() {
        // SAFETY: not null, and `getenv` returns NUL-terminated values, which stay until the variable is changed.
        let named = unsafe { CStr::from_ptr(named) };
        return (!named.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(named.to_bytes())));
    }
    let folder = crate::front::folder()?;
    let path = PathBuf::from(OsStr::from_bytes(folder.to_bytes())).join(GPU_SOCKET);
    std::fs::symlink_metadata(&path).is_ok().then_some(path)
}

fn attachment() -> Option<FromProcess> {
    const MULTIPROCESSORS: c_int = 16;
    const MPS: c_int = 133;
    let device = Host.device(0).ok()?;
    let uuid = Host.device_uuid(device).ok()?;
    let mps = Host.device_attribute(MPS, device).ok();
    let mps_state = mps.map_or(2, |mps| u32::from(mps != 0));
    Host.facts().mps.store(mps_state, Ordering::Relaxed);
    let multiprocessors = Host.device_attribute(MULTIPROCESSORS, device).ok()?;
    Some(FromProcess::Attach {
        uuid,
        multiprocessors: u32::try_from(multiprocessors).ok()?,
        mps: mps == Some(1),
        context_bytes: 0,
        busy_ns: context().process.streams.busy_ns(),
    })
}

fn program() -> String {
    let name = std::env::current_exe().ok();
    let name = name.as_deref().and_then(std::path::Path::file_name);
    name.map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

/// Sets the variables that the driver reads when it is initialised.
fn set_environment(terms: &Terms) {
    let stated = std::env::var("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE").ok();
    for (name, value) in terms.environment(stated.as_deref()) {
        if let (Ok(name), Ok(value)) = (CString::new(name), CString::new(value)) {
            // SAFETY: NUL-terminated strings, which the C library copies. The program's own threads may read the environment at the
            // same time, as with every `setenv` in `cuInit`; glibc's `getenv` tolerates it.
            let _full = unsafe { libc::setenv(name.as_ptr(), value.as_ptr(), 1) };
        }
    }
}
