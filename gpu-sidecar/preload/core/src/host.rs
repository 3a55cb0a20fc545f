//! This process, as the operations see it.

use std::cell::Cell;
use std::ffi::c_int;
use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

use preload_ops::System;
use preload_ops::memory::Memory;
use preload_state::gate::Thread;
use preload_state::memory::{HostSpan, size};
use preload_state::process::Process;
use preload_state::streams::Stream;
use protocol::message::FromProcess;
use protocol::page::{Facts, Orders};

use crate::context::context;
use crate::driver::{Code, INVALID_VALUE, NOT_SUPPORTED};
use crate::pointers::words_within;
use crate::{copiers, log, threads, time};

/// The driver and the process in which this library is loaded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Host;

/// Variables of one thread. They have no destructor, since threads end at any time.
struct Local {
    /// Entry of the thread among those that launch or touch memory.
    entry: Cell<Option<&'static Thread>>,
    /// Whether the thread is in a launch or touch that has passed its gate.
    is_inside: Cell<bool>,
    /// Stream of the thread's last launch.
    recent: Cell<Option<&'static Stream>>,
}

thread_local! {
    static LOCAL: Local = const {
        Local {
            entry: Cell::new(None),
            is_inside: Cell::new(false),
            recent: Cell::new(None),
        }
    };
}

/// Registers the process for `membarrier`. To be called before the gate is used.
pub(crate) fn prepare_barrier() {
    const REGISTER_PRIVATE_EXPEDITED: c_int = 1 << 4;
    // SAFETY: `membarrier` takes numbers alone.
    let code = unsafe { libc::syscall(libc::SYS_membarrier, REGISTER_PRIVATE_EXPEDITED, 0, 0) };
    context().process.threads.set_fenced(code != 0);
}

fn register() -> Option<&'static Thread> {
    // SAFETY: `gettid` takes no arguments.
    let id = unsafe { libc::syscall(libc::SYS_gettid) };
    let id = i32::try_from(id).unwrap_or(0);
    let process = std::process::id();
    let is_gone = |other: i32| {
        // SAFETY: `tgkill` takes numbers alone; signal 0 is not delivered.
        unsafe { libc::syscall(libc::SYS_tgkill, process, other, 0) != 0 }
    };
    let found = context().process.threads.register(id, is_gone);
    LOCAL.with(|local| local.entry.set(found));
    found
}

impl System for Host {
    #[inline]
    fn process(self) -> &'static Process {
        &context().process
    }

    #[inline]
    fn orders(self) -> &'static Orders {
        context().orders()
    }

    #[inline]
    fn facts(self) -> &'static Facts {
        context().facts()
    }

    fn has_agent_orders(self) -> bool {
        context().has_agent_orders()
    }

    fn memory(self) -> &'static Memory {
        context().memory()
    }

    fn now(self) -> u64 {
        time::now()
    }

    fn wait(self, orders: &Orders, word: &AtomicU32, expected: u32, at_most: Duration) {
        let context = context();
        context.process.waiters.wait(
            || std::ptr::eq(orders, context.orders()),
            || time::wait(word, expected, at_most),
        );
    }

    fn wait_at(self, word: &AtomicU32, expected: u32, at_most: Duration) {
        time::wait(word, expected, at_most);
    }

    fn wake(self, word: &AtomicU32) {
        time::wake(word);
    }

    fn host_words(self, span: HostSpan, near: &Range<u64>) -> Vec<u64> {
        let begin = std::ptr::with_exposed_provenance(size(span.at));
        words_within(begin, size(span.bytes), near)
    }

    fn map_host(self, bytes: u64) -> Option<u64> {
        copiers::map(size(bytes))
    }

    fn unmap_host(self, span: HostSpan) {
        copiers::unmap(span.at, size(span.bytes));
    }

    fn begin_copy(self, piece: usize, to: HostSpan, from: HostSpan) {
        let start = || threads::start("weir-copy", || context().copiers.run());
        context().copiers.begin(piece, to, from, start);
    }

    fn is_copied(self, piece: usize) -> bool {
        context().copiers.is_over(piece)
    }

    fn end_copy(self, piece: usize) {
        context().copiers.end(piece);
    }

    fn pause(self, span: Duration) {
        time::pause(span);
    }

    fn barrier(self) {
        const PRIVATE_EXPEDITED: c_int = 1 << 3;
        fence(Ordering::SeqCst);
        if !context().process.threads.is_fenced() {
            // SAFETY: `membarrier` takes numbers alone; the process is registered, or launches are fenced.
            let _registered =
                unsafe { libc::syscall(libc::SYS_membarrier, PRIVATE_EXPEDITED, 0, 0) };
        }
    }

    #[inline]
    fn thread(self) -> Option<&'static Thread> {
        LOCAL.with(|local| local.entry.get()).or_else(register)
    }

    fn is_launching(self) -> bool {
        LOCAL.with(|local| local.entry.get().is_some_and(Thread::is_launching))
    }

    fn thread_identity(self) -> usize {
        LOCAL.with(|local| std::ptr::from_ref(local).addr())
    }

    #[inline]
    fn is_inside(self) -> bool {
        LOCAL.with(|local| local.is_inside.get())
    }

    #[inline]
    fn set_inside(self, is_inside: bool) {
        LOCAL.with(|local| local.is_inside.set(is_inside));
    }

    #[inline]
    fn recent(self) -> Option<&'static Stream> {
        LOCAL.with(|local| local.recent.get())
    }

    #[inline]
    fn set_recent(self, stream: Option<&'static Stream>) {
        LOCAL.with(|local| local.recent.set(stream));
    }

    fn send(self, message: &FromProcess) {
        let mut writer = message.write();
        let _lost = context().connection.send(writer.finish());
    }

    fn abandon_hung_agent(self) {
        let context = context();
        if context.connection.is_open() && self.is_served() {
            log::line("no heartbeat from the agent for one second: it is treated as stopped");
            context.process.status.set_hung();
            context.connection.shutdown();
        }
    }

    fn log(self, line: &str) {
        log::line(line);
    }

    fn process_id(self) -> u32 {
        std::process::id()
    }

    fn random(self) -> Option<u64> {
        let mut bytes = [0_u8; 8];
        // SAFETY: the kernel writes at most the length of the buffer.
        let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
        (got == 8).then(|| u64::from_le_bytes(bytes))
    }

    fn memory_file(self) -> Option<File> {
        // SAFETY: a NUL-terminated string, which the kernel copies.
        let file = unsafe { libc::memfd_create(c"weir-memory-ticket".as_ptr(), libc::MFD_CLOEXEC) };
        owned(file.into()).map(File::from)
    }

    fn permit_copies(self) {
        if !context().permits_copies.swap(true, Ordering::AcqRel) {
            // SAFETY: `prctl` with this option takes numbers alone. It fails without Yama, which then requires nothing.
            let _allowed = unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY) };
        }
    }

    fn open_process(self, pid: u64) -> Option<OwnedFd> {
        let pid = libc::pid_t::try_from(pid).ok()?;
        // SAFETY: `pidfd_open` takes numbers alone.
        owned(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })
    }

    fn copy_descriptor(self, process: BorrowedFd<'_>, number: u64) -> Result<OwnedFd, Code> {
        let number = c_int::try_from(number).map_err(|_| INVALID_VALUE)?;
        // SAFETY: `pidfd_getfd` takes numbers alone, one of them of a descriptor borrowed for the call.
        let copy = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) };
        if let Some(copy) = owned(copy) {
            return Ok(copy);
        }
        match std::io::Error::last_os_error().raw_os_error() {
            Some(libc::EBADF | libc::ESRCH) => Err(INVALID_VALUE),
            _ => {
                if !context().reported_copies.swap(true, Ordering::AcqRel) {
                    log::line(
                        "cuIpcOpenMemHandle is refused: the system does not permit this process to copy descriptors of the one that \
                         created the handle (pidfd_getfd requires the same user and container, and no security profile against it)",
                    );
                }
                Err(NOT_SUPPORTED)
            }
        }
    }
}

/// Takes ownership of a descriptor that a system call has returned; `None` if the call has failed.
fn owned(file: libc::c_long) -> Option<OwnedFd> {
    let file = RawFd::try_from(file).ok().filter(|file| *file >= 0)?;
    // SAFETY: opened just now by the kernel for the caller, which has passed its result and keeps no copy.
    Some(unsafe { OwnedFd::from_raw_fd(file) })
}
