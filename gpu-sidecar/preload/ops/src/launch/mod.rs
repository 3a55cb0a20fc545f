//! Launches of kernels and graphs. Each passes the gate.

use std::borrow::Cow;
use std::sync::atomic::Ordering;
use std::time::Duration;

use preload_state::functions::{self, FunctionInfo};
use preload_state::gate::{IN_FLIGHT_POLL, LaunchGuard, ParkStep, Parking, RECHECK_INTERVAL};
use preload_state::streams::{DefaultStream, LaunchGroup};
use protocol::message::{FromProcess, Report};

use crate::cuda::{Code, Handle, NOT_PERMITTED, NOT_READY, SUCCESS};
use crate::outcome::{Call, Outcome, Reason};
use crate::platform::{Driver, Platform, System};
use crate::residency::restoring;
use crate::streams::{self, ParkedWork};
use crate::{capture_mode, failures, gate, touch};

/// Kind of a launched handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A `CUfunction` or `CUkernel`.
    Kernel,
    /// A `CUgraphExec`.
    Graph,
}

/// Addresses at which the program passes the arguments of a kernel to its launch; both are 0 where they are not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Arguments {
    /// Address of the list of pointers to the arguments; 0 for none.
    pub list: usize,
    /// Address of the list of launch options (`extra`), which names one buffer with all arguments; 0 for none.
    pub extra: usize,
}

/// Launches a kernel, whose arguments are not known, or a graph, once the gate is open and the process's memory is on the device.
#[inline]
pub fn launch<P: Platform>(
    host: P,
    call: Call<'_>,
    stream: Handle,
    default: DefaultStream,
    function: Handle,
    kind: Kind,
) -> Outcome {
    let arguments = Arguments::default();
    launch_with(host, call, stream, default, function, kind, arguments)
}

/// As [`launch`], of a kernel with these arguments: amid a restore the launch waits for what they name.
#[inline]
pub fn launch_with<P: Platform>(
    host: P,
    call: Call<'_>,
    stream: Handle,
    default: DefaultStream,
    function: Handle,
    kind: Kind,
    arguments: Arguments,
) -> Outcome {
    if !host.is_active() {
        return Outcome::Pass(Reason::Inactive);
    }
    // A driver that calls its own exported functions does so within a launch that has passed.
    if host.is_inside() {
        return Outcome::Pass(Reason::Nested);
    }
    if capture_mode::any(host) && capture_mode::is_capturing(host, default.resolve(stream)) {
        return Outcome::Pass(Reason::Capturing);
    }
    let process = host.process();
    let info = process
        .functions
        .lookup(function, || is_collective(host, function, kind));
    if info.is_collective {
        return refuse_collective(host, function);
    }
    let need = Need::Program {
        function,
        kind,
        arguments,
    };
    Outcome::Done(once_open(host, call, stream, default, info, need))
}

/// Launches a kernel of this library's own, which needs a token but not the gate of memory: the calling thread knows that the memory stays.
/// Returns `NOT_READY` if the gate is still closed at the time `until`, in nanoseconds.
pub(crate) fn own<P: Platform>(
    host: P,
    call: Call<'_>,
    stream: Handle,
    kernel: Handle,
    until: u64,
) -> Code {
    let info = host.process().functions.lookup(kernel, || false);
    let default = DefaultStream::Legacy;
    once_open(host, call, stream, default, info, Need::Own { until })
}

/// What a launch waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Need {
    /// One of the program: token and memory.
    Program {
        /// Kernel or graph.
        function: Handle,
        /// Which of both it is.
        kind: Kind,
        /// Where the arguments of a kernel are.
        arguments: Arguments,
    },
    /// One of this library: the token alone, and not for ever.
    Own {
        /// End of the wait, in nanoseconds.
        until: u64,
    },
}

#[inline]
fn once_open<P: Platform>(
    host: P,
    call: Call<'_>,
    stream: Handle,
    default: DefaultStream,
    info: FunctionInfo,
    need: Need,
) -> Code {
    let process = host.process();
    let mut bound_holds = true;
    let mut needed = None;
    loop {
        let guard = begin(host);
        let in_flight = process.streams.announce(&info, &process.gate, host.facts());
        let has_memory = match need {
            Need::Own { .. } => true,
            Need::Program {
                function,
                kind,
                arguments,
            } => {
                process.memory_gate.is_open()
                    || restoring::is_there(host, &mut needed, || {
                        restoring::of_launch(host, function, kind, arguments)
                    })
            }
        };
        if has_memory && process.gate.passes(host.orders(), in_flight, bound_holds) {
            host.set_inside(true);
            let launch = streams::before(host, stream, default, info);
            let code = call();
            streams::after(host, &launch, code == SUCCESS);
            host.set_inside(false);
            host.facts().launches.0.fetch_add(1, Ordering::Relaxed);
            drop(guard);
            return failures::report_before_return(host, code);
        }
        streams::finish(host, &LaunchGroup::of(info));
        drop(guard);
        if !has_memory {
            touch::wait(host, needed);
            continue;
        }
        match park(host, stream, default, need) {
            Parked::Retry { bound_holds: holds } => bound_holds = holds,
            Parked::Late => return NOT_READY,
        }
    }
}

#[inline]
fn begin<P: System>(host: P) -> LaunchGuard<'static> {
    host.process().threads.begin(host.thread())
}

/// Runs the check of a launch at the gate, without the launch, and returns whether it would pass.
#[inline]
pub fn check<P: System>(host: P) -> bool {
    let info = FunctionInfo {
        slot: 0,
        estimate_ns: 0,
        is_new: false,
        is_collective: false,
    };
    let process = host.process();
    let _guard = begin(host);
    let in_flight = process.streams.announce(&info, &process.gate, host.facts());
    process.memory_gate.is_open() && process.gate.passes(host.orders(), in_flight, true)
}

fn is_collective<P: Driver>(host: P, function: Handle, kind: Kind) -> bool {
    let is_of_nccl = |name: Cow<'_, str>| functions::is_collective(name.as_bytes());
    kind == Kind::Kernel && host.function_name(function).is_some_and(is_of_nccl)
}

/// Refuses a collective: one rank would wait on the device for another rank without a token, and delay all other processes (gang
/// leases are not given).
#[cold]
fn refuse_collective<P: Platform>(host: P, function: Handle) -> Outcome<Code> {
    let name = host.function_name(function).unwrap_or_default();
    if host.process().reports_collective() {
        host.log(&format!(
            "{name} refused (CUDA_ERROR_NOT_PERMITTED): collectives among several ranks cannot run on a slot that is shared in \
             time; use an exclusive slot for this function"
        ));
        host.report(Report::Collective(name.into_owned()));
    }
    Outcome::Fail(NOT_PERMITTED)
}

/// Outcome of a wait at the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Parked {
    /// The launch may be tried again.
    Retry {
        /// Whether it must keep the bound of the work in flight.
        bound_holds: bool,
    },
    /// The end of the wait has come.
    Late,
}

/// Waits until a launch may be tried again, or until it is too late for it.
#[cold]
fn park<P: Platform>(host: P, stream: Handle, default: DefaultStream, need: Need) -> Parked {
    let facts = host.facts();
    let gate = &host.process().gate;
    facts.parked.fetch_add(1, Ordering::AcqRel);
    // The program's pause ends here: the wait at the gate is not part of it.
    gate.begin_burst(host.now());
    // Work that this thread has launched is measured up to here.
    streams::mark_all(host);
    let mut parking = Parking::default();
    let mut work = ParkedWork {
        host,
        stream,
        default,
    };
    let parked = loop {
        let mut at_most = RECHECK_INTERVAL;
        if let Need::Own { until } = need {
            let left = Duration::from_nanos(until.saturating_sub(host.now()));
            if left.is_zero() {
                break Parked::Late;
            }
            at_most = at_most.min(left);
        }
        let orders = host.orders();
        let is_served = host.is_served();
        let epoch = match parking.step(host.now(), orders, gate, is_served, &mut work) {
            ParkStep::Launch => break Parked::Retry { bound_holds: true },
            ParkStep::Exceed { is_counted } => {
                let exceeded = &facts.bound_exceeded;
                exceeded.fetch_add(u64::from(is_counted), Ordering::Relaxed);
                break Parked::Retry { bound_holds: false };
            }
            ParkStep::Poll => {
                host.pause(IN_FLIGHT_POLL);
                continue;
            }
            ParkStep::Ask { epoch } => {
                host.send(&FromProcess::Ask { epoch });
                epoch
            }
            ParkStep::Wait { epoch } => epoch,
        };
        let begin = host.now();
        let word = orders.gate.word();
        host.wait(orders, word, gate::low_half(epoch), at_most);
        let waited = host.now().saturating_sub(begin);
        // A hung agent is treated like a stopped one.
        if parking.waited(waited, orders, host.is_served()) {
            host.abandon_hung_agent();
        }
    };
    facts.parked.fetch_sub(1, Ordering::AcqRel);
    parked
}

#[cfg(test)]
mod tests;
