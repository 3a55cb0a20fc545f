//! The socket to the agent. Its file descriptor stays the same for the life of the process and is above those that programs close
//! by number. A new connection replaces the old one atomically under the same number, so that no other thread writes to an
//! unrelated file.

use std::ffi::{c_int, c_void};
use std::mem::size_of;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use preload_state::link::ConnectOutcome;
use preload_state::memory::size;
use protocol::message::{FromAgent, MESSAGE_MAX};
use protocol::page::{Facts, Orders, PAGE_BYTES};

use crate::time;

/// Lowest descriptor used for the connection; lower ones belong to the program.
const FIRST_DESCRIPTOR: c_int = 700;
/// Interval at which a blocked reader checks whether the program has closed the descriptor, which wakes no reader.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Connection to the agent.
#[derive(Debug)]
pub(crate) struct Connection {
    /// File descriptor; −1 without one.
    descriptor: AtomicI32,
    /// Inode of the socket: the program may have closed the descriptor and opened a file of its own under the same number.
    inode: AtomicU64,
    is_open: AtomicBool,
    path: Mutex<Option<PathBuf>>,
}

/// Outcome of waiting for a message.
#[derive(Debug)]
pub(crate) enum Received {
    /// A message, with the files that it carries.
    Message(FromAgent, Option<Files>),
    /// No message in time, or the read was interrupted.
    Nothing,
    /// The connection is closed.
    Closed,
}

/// Memory files that came with a message.
#[derive(Debug)]
pub(crate) enum Files {
    /// The two shared pages.
    Pages {
        /// File of *orders*.
        orders: OwnedFd,
        /// File of *facts*.
        facts: OwnedFd,
    },
    /// A window of host memory.
    Window(OwnedFd),
}

impl Files {
    /// Maps a window of this size for the rest of the process's life, and returns its address; `None` if there is none or it cannot be
    /// mapped.
    pub(crate) fn map_window(&self, bytes: u64) -> Option<u64> {
        let Self::Window(file) = self else {
            return None;
        };
        let window = map(file, size(bytes), libc::PROT_READ | libc::PROT_WRITE)?;
        // A forked child has no use for the copies, and would keep their memory from the agent for as long as it lives.
        // SAFETY: a mapping of this size which was made just now; the advice changes nothing in this process.
        let _kept =
            unsafe { libc::madvise(window.cast_mut().cast(), size(bytes), libc::MADV_DONTFORK) };
        Some(window.expose_provenance() as u64)
    }

    /// Maps both pages for the rest of the process's life. Returns `None` if they cannot be mapped or have another layout
    /// version.
    pub(crate) fn map(&self) -> Option<(&'static Orders, &'static Facts)> {
        let Self::Pages { orders, facts } = self else {
            return None;
        };
        let orders = map(orders, PAGE_BYTES, libc::PROT_READ)?.cast::<Orders>();
        let facts = map(facts, PAGE_BYTES, libc::PROT_READ | libc::PROT_WRITE)?.cast::<Facts>();
        // SAFETY: `map` returns a page-aligned mapping of at least the page's size, of a file that cannot shrink, which is never unmapped.
        // The page consists of atomics, for which every value is valid, and of which nothing writes through this mapping.
        let orders = unsafe { &*orders };
        // SAFETY: as for the orders; this mapping can be written as well.
        let facts = unsafe { &*facts };
        let version = protocol::LAYOUT;
        (orders.layout() == version && facts.layout() == version).then_some((orders, facts))
    }
}

/// Size of a huge page, in bytes.
const HUGE: usize = 2 << 20;

/// Reserves addresses at a multiple of a huge page, where huge pages of a file need no page tables; `None` for less than such a page, or if the process
/// has no addresses left.
fn reserved(length: usize) -> Option<*mut c_void> {
    if length < HUGE {
        return None;
    }
    let pages = length.checked_next_multiple_of(PAGE_BYTES)?;
    let whole = pages.checked_add(HUGE)?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let begin = unsafe { libc::mmap(std::ptr::null_mut(), whole, libc::PROT_NONE, flags, -1, 0) };
    if begin == libc::MAP_FAILED {
        return None;
    }
    let at = begin.with_addr(begin.addr().next_multiple_of(HUGE));
    let end = at.wrapping_byte_add(pages);
    let (before, behind) = (at.addr() - begin.addr(), begin.addr() + whole - end.addr());
    for (surplus, bytes) in [(begin, before), (end, behind)] {
        if bytes > 0 {
            // SAFETY: a part of the addresses reserved just now, of which nothing else knows.
            let _any = unsafe { libc::munmap(surplus, bytes) };
        }
    }
    Some(at)
}

/// Maps the first bytes of a file for the rest of the process's life; `None` if the file may shrink, is too small, or cannot be mapped.
fn map(file: &OwnedFd, length: usize, protection: c_int) -> Option<*const u8> {
    let file = file.as_raw_fd();
    // Without this seal another process could shrink the file, and reads would then raise SIGBUS.
    // SAFETY: `fcntl` with this command takes numbers alone.
    let seals = unsafe { libc::fcntl(file, libc::F_GET_SEALS) };
    if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
        return None;
    }
    // SAFETY: `lseek` takes numbers alone.
    let bytes = unsafe { libc::lseek(file, 0, libc::SEEK_END) };
    if usize::try_from(bytes).ok()? < length || length == 0 {
        return None;
    }
    let at = reserved(length);
    let fixed = if at.is_some() { libc::MAP_FIXED } else { 0 };
    // SAFETY: a new mapping at an address that the kernel chooses, or in place of addresses which were reserved for it, so that no memory of the program is
    // replaced.
    let page = unsafe {
        libc::mmap(
            at.unwrap_or(std::ptr::null_mut()),
            length,
            protection,
            libc::MAP_SHARED | fixed,
            file,
            0,
        )
    };
    (page != libc::MAP_FAILED).then(|| page.cast_const().cast())
}

impl Connection {
    /// Creates a connection that is not open.
    pub(crate) const fn new() -> Self {
        Self {
            descriptor: AtomicI32::new(-1),
            inode: AtomicU64::new(0),
            is_open: AtomicBool::new(false),
            path: Mutex::new(None),
        }
    }

    /// Sets the path of the agent's socket.
    pub(crate) fn set_path(&self, path: PathBuf) {
        *self.path.lock().unwrap_or_else(PoisonError::into_inner) = Some(path);
    }

    /// Returns whether the connection is open, as far as is known.
    pub(crate) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::Acquire)
    }

    /// Connects to the agent's socket and installs the connection.
    pub(crate) fn open(&self) -> ConnectOutcome {
        let path = self
            .path
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let Some(path) = path else {
            return ConnectOutcome::NoAgent;
        };
        // SAFETY: `socket` takes numbers alone.
        let socket = unsafe {
            libc::socket(
                libc::AF_UNIX,
                libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
                0,
            )
        };
        if socket < 0 {
            return ConnectOutcome::Busy;
        }
        // SAFETY: opened just now by the kernel, and owned by no other value.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        // SAFETY: a structure of integers and bytes, for which zeroes are valid: an address with an empty path.
        let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
        address.sun_family = libc::sa_family_t::try_from(libc::AF_UNIX).unwrap_or(1);
        let bytes = path.as_os_str().as_bytes();
        let fits = bytes.len() < address.sun_path.len();
        for (place, &byte) in address.sun_path.iter_mut().zip(bytes) {
            *place = byte.cast_signed();
        }
        let length = libc::socklen_t::try_from(size_of::<libc::sockaddr_un>()).unwrap_or(0);
        // The call does not block: with a full backlog it fails and is repeated later.
        // SAFETY: `address` lives over the call and has the length that is passed.
        let connected = fits
            && unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), length) }
                == 0;
        // No agent can listen at a path that exceeds an address.
        let error = if fits { errno() } else { libc::ENOENT };
        // The connection has a duplicate of the socket.
        let kept = connected && self.install(&socket);
        self.is_open.store(kept, Ordering::Release);
        match error {
            _ if kept => ConnectOutcome::Connected,
            libc::ENOENT | libc::ENOTDIR | libc::ECONNREFUSED if !connected => {
                ConnectOutcome::NoAgent
            }
            _ => ConnectOutcome::Busy,
        }
    }

    /// Returns the connection's descriptor; `None` if the program has closed it.
    fn own(&self) -> Option<c_int> {
        let descriptor = self.descriptor.load(Ordering::Acquire);
        let known = self.inode.load(Ordering::Acquire);
        (descriptor >= 0 && known != 0 && inode(descriptor) == known).then_some(descriptor)
    }

    /// Installs a socket as the connection, under the number of the previous one if that is still open. Returns `false` on failure.
    fn install(&self, socket: &OwnedFd) -> bool {
        let socket = socket.as_raw_fd();
        let before = self.own();
        self.inode.store(inode(socket), Ordering::Release);
        if let Some(place) = before {
            // SAFETY: `dup3` takes numbers alone; it closes `place`, which `own` has shown to be this library's socket.
            return unsafe { libc::dup3(socket, place, libc::O_CLOEXEC) } >= 0;
        }
        let mut from = FIRST_DESCRIPTOR;
        loop {
            // SAFETY: `fcntl` with this command takes numbers alone.
            let place = unsafe { libc::fcntl(socket, libc::F_DUPFD_CLOEXEC, from) };
            if place >= 0 {
                self.descriptor.store(place, Ordering::Release);
                return true;
            }
            if from == 3 {
                return false;
            }
            // The process may have a low limit of open files.
            from = 3;
        }
    }

    /// Shuts the connection down, which wakes a thread that waits for a message.
    pub(crate) fn shutdown(&self) {
        self.is_open.store(false, Ordering::Release);
        if let Some(descriptor) = self.own() {
            // SAFETY: `shutdown` takes numbers alone; the descriptor is this library's socket.
            let _any = unsafe { libc::shutdown(descriptor, libc::SHUT_RDWR) };
        }
    }

    /// Drops the parent's connection in the child of a fork.
    pub(crate) fn forget(&self) {
        self.is_open.store(false, Ordering::Release);
        let descriptor = self.own();
        self.descriptor.store(-1, Ordering::Release);
        self.inode.store(0, Ordering::Release);
        if let Some(descriptor) = descriptor {
            // SAFETY: the child's copy of this library's socket, as `own` has shown, which no value owns.
            let _any = unsafe { libc::close(descriptor) };
        }
    }

    /// Sends a whole message; on failure shuts the connection down and returns `false`. Preserves `errno`.
    pub(crate) fn send(&self, message: &[u8]) -> bool {
        if !self.is_open() {
            return false;
        }
        let errno = errno();
        let Some(descriptor) = self.own() else {
            self.is_open.store(false, Ordering::Release);
            set_errno(errno);
            return false;
        };
        // Does not block: an agent that does not read counts as lost.
        // SAFETY: the kernel reads at most the length of the slice.
        let sent = unsafe {
            libc::send(
                descriptor,
                message.as_ptr().cast(),
                message.len(),
                libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT,
            )
        };
        let whole = usize::try_from(sent) == Ok(message.len());
        if !whole {
            self.shutdown();
        }
        set_errno(errno);
        whole
    }

    /// Waits for a message from the agent for `at_most`, or for [`CHECK_INTERVAL`] if `None`. Returns [`Received::Nothing`] if none
    /// has come, and [`Received::Closed`] if the connection is closed, by this call as well: it shuts the connection down on a failed
    /// read and on an unreadable message.
    pub(crate) fn receive(&self, at_most: Option<Duration>) -> Received {
        let Some(descriptor) = self.own().filter(|_| self.is_open()) else {
            self.is_open.store(false, Ordering::Release);
            return Received::Closed;
        };
        let mut ready = libc::pollfd {
            fd: descriptor,
            events: libc::POLLIN,
            revents: 0,
        };
        let span = at_most.unwrap_or(CHECK_INTERVAL);
        let until = time::now().saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX));
        let count = loop {
            let left = until.saturating_sub(time::now()).div_ceil(1_000_000);
            let timeout = c_int::try_from(left).unwrap_or(c_int::MAX);
            // SAFETY: `ready` is the one entry that is passed, and lives over the call.
            let count = unsafe { libc::poll(&raw mut ready, 1, timeout) };
            // Signals of the program interrupt the call and may be frequent.
            if count >= 0 || errno() != libc::EINTR || timeout == 0 {
                break count;
            }
        };
        if self.own() != Some(descriptor) {
            self.is_open.store(false, Ordering::Release);
            return Received::Closed;
        }
        if count <= 0 {
            return Received::Nothing;
        }
        let mut bytes = [0_u8; MESSAGE_MAX];
        let mut control = Control([0; 64]);
        let mut part = libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        };
        // SAFETY: a structure of integers and pointers, for which zeroes are valid: a header without buffers.
        let mut head: libc::msghdr = unsafe { std::mem::zeroed() };
        head.msg_iov = &raw mut part;
        head.msg_iovlen = 1;
        head.msg_control = control.0.as_mut_ptr().cast();
        head.msg_controllen = size_of::<Control>();
        // SAFETY: the header has pointers to buffers of this function with their lengths, which live over the call.
        let read = unsafe {
            libc::recvmsg(
                descriptor,
                &raw mut head,
                libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT,
            )
        };
        let files = files(&head);
        match usize::try_from(read) {
            Ok(0) => {
                self.shutdown();
                Received::Closed
            }
            Ok(length) => {
                let message = bytes.get(..length).map(FromAgent::read);
                match message {
                    Some(Ok(message)) => Received::Message(message, files),
                    // Of another protocol version, or truncated.
                    _ => {
                        self.shutdown();
                        Received::Closed
                    }
                }
            }
            Err(_) if errno() == libc::EAGAIN || errno() == libc::EINTR => Received::Nothing,
            Err(_) => {
                self.shutdown();
                Received::Closed
            }
        }
    }
}

/// Returns the inode of a socket; 0 if the descriptor is not a socket.
fn inode(descriptor: c_int) -> u64 {
    // SAFETY: a structure of integers, for which zeroes are valid.
    let mut state: libc::statx = unsafe { std::mem::zeroed() };
    let wanted = libc::STATX_TYPE | libc::STATX_INO;
    // SAFETY: a NUL-terminated string, and a structure of this stack to write; the kernel checks the descriptor.
    let code = unsafe {
        libc::statx(
            descriptor,
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            wanted,
            &raw mut state,
        )
    };
    let kind = u32::from(state.stx_mode) & libc::S_IFMT;
    if code == 0 && kind == libc::S_IFSOCK {
        state.stx_ino
    } else {
        0
    }
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn set_errno(value: c_int) {
    // SAFETY: the function takes no arguments and cannot fail.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: the function returns a pointer to this thread's own `errno`, which lives as long as the thread.
    unsafe { place.write(value) };
}

/// Control buffer with room for two descriptors, aligned for its header.
#[repr(align(8))]
struct Control([u8; 64]);

fn files(head: &libc::msghdr) -> Option<Files> {
    // SAFETY: a header that the kernel has filled, whose control buffer lives in the caller.
    let control = unsafe { libc::CMSG_FIRSTHDR(head) };
    // SAFETY: null, or a header within the control buffer, which is aligned for it.
    let first = unsafe { control.as_ref() }?;
    if first.cmsg_level != libc::SOL_SOCKET || first.cmsg_type != libc::SCM_RIGHTS {
        return None;
    }
    let length = |count: usize| {
        let bytes = u32::try_from(count * size_of::<c_int>()).unwrap_or(0);
        // SAFETY: the function computes a length from a number.
        let length = unsafe { libc::CMSG_LEN(bytes) };
        length as usize
    };
    if first.cmsg_len == length(1) {
        // SAFETY: the header's length covers its data: one descriptor, as compared above.
        let data = unsafe { libc::CMSG_DATA(control) }.cast::<c_int>();
        // SAFETY: as stated for its address; the data need not be aligned.
        let file = unsafe { data.read_unaligned() };
        // SAFETY: the kernel has opened it for this message, and nothing else owns it.
        return Some(Files::Window(unsafe { OwnedFd::from_raw_fd(file) }));
    }
    if first.cmsg_len != length(2) {
        return None;
    }
    // SAFETY: the header's length covers its data: two descriptors, as compared above.
    let data = unsafe { libc::CMSG_DATA(control) }.cast::<[c_int; 2]>();
    // SAFETY: as stated for its address; the data need not be aligned.
    let [orders, facts] = unsafe { data.read_unaligned() };
    // SAFETY: the kernel has opened both for this message, and nothing else owns them.
    let [orders, facts] = [orders, facts].map(|file| unsafe { OwnedFd::from_raw_fd(file) });
    Some(Files::Pages { orders, facts })
}
