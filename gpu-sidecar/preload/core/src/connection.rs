//! The socket. One file descriptor for the whole life of the process, far from those that programs close by number; another
//! connection takes its place atomically, so that no other thread writes to a file that took its number meanwhile.

use std::ffi::c_int;
use std::mem::size_of;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use protocol::message::{FromAgent, MESSAGE_MAX};
use protocol::page::{Facts, Orders, PAGE_BYTES};

use crate::time;

/// File descriptors below belong to the program.
const FROM: c_int = 700;
/// So often it is looked whether the program has closed the connection, which whoever waits is not told.
const LOOK: Duration = Duration::from_secs(1);

static DESCRIPTOR: AtomicI32 = AtomicI32::new(-1);
/// The socket's own number: the program may have closed the descriptor, and have a file of its own there.
static INODE: AtomicU64 = AtomicU64::new(0);
static OPEN: AtomicBool = AtomicBool::new(false);
static PATH: Mutex<Option<PathBuf>> = Mutex::new(None);

/// What came.
#[derive(Debug)]
pub(crate) enum Received {
    /// A message, perhaps with pages.
    Message(FromAgent, Option<Files>),
    /// Nothing in time, or nothing that can be read.
    Nothing,
    /// The connection is gone.
    Gone,
}

/// The memory files of two pages. Closed when dropped.
#[derive(Debug)]
pub(crate) struct Files {
    orders: c_int,
    facts: c_int,
}

impl Drop for Files {
    fn drop(&mut self) {
        for file in [self.orders, self.facts] {
            // SAFETY: a descriptor of this value's own.
            let _any = unsafe { libc::close(file) };
        }
    }
}

impl Files {
    /// Maps both, for the rest of the process's life. `None`: they are not what they should be.
    pub(crate) fn map(&self) -> Option<(&'static Orders, &'static Facts)> {
        let orders = map(self.orders, libc::PROT_READ)?.cast::<Orders>();
        let facts = map(self.facts, libc::PROT_READ | libc::PROT_WRITE)?.cast::<Facts>();
        // SAFETY: a mapping of a page that holds it, aligned to the page, of atomics alone, never unmapped.
        let orders = unsafe { &*orders };
        // SAFETY: as above.
        let facts = unsafe { &*facts };
        let version = u32::from(protocol::VERSION);
        (orders.layout() == version && facts.layout() == version).then_some((orders, facts))
    }
}

fn map(file: c_int, protection: c_int) -> Option<*const u8> {
    // Who could shrink it could end the process.
    // SAFETY: a descriptor that is held.
    let seals = unsafe { libc::fcntl(file, libc::F_GET_SEALS) };
    if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
        return None;
    }
    // SAFETY: as above.
    let bytes = unsafe { libc::lseek(file, 0, libc::SEEK_END) };
    if usize::try_from(bytes).ok()? < PAGE_BYTES {
        return None;
    }
    // SAFETY: a new mapping, wherever the kernel puts it.
    let page = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            PAGE_BYTES,
            protection,
            libc::MAP_SHARED,
            file,
            0,
        )
    };
    (page != libc::MAP_FAILED).then(|| page.cast_const().cast())
}

/// Where the agent listens.
pub(crate) fn keep(path: PathBuf) {
    *PATH.lock().unwrap_or_else(PoisonError::into_inner) = Some(path);
}

/// There is a connection, as far as is known.
pub(crate) fn is_open() -> bool {
    OPEN.load(Ordering::Acquire)
}

/// What came of an attempt to connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectOutcome {
    /// There is a connection.
    Connected,
    /// The socket is gone, or refuses: no agent is there.
    NoAgent,
    /// The agent is there and takes no connection now: its backlog is full; or this process can make none: it has no descriptor
    /// left, or may not.
    Busy,
}

/// Connects.
pub(crate) fn open() -> ConnectOutcome {
    let path = PATH.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let Some(path) = path else {
        return ConnectOutcome::NoAgent;
    };
    // SAFETY: no memory is passed.
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
    // SAFETY: all zeroes are an address without a path.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::sa_family_t::try_from(libc::AF_UNIX).unwrap_or(1);
    let bytes = path.as_os_str().as_bytes();
    let fits = bytes.len() < address.sun_path.len();
    for (place, &byte) in address.sun_path.iter_mut().zip(bytes) {
        *place = byte.cast_signed();
    }
    let length = libc::socklen_t::try_from(size_of::<libc::sockaddr_un>()).unwrap_or(0);
    // SAFETY: an address of that length. It does not block: where too many wait, it is tried again.
    let connected =
        fits && unsafe { libc::connect(socket, (&raw const address).cast(), length) } == 0;
    // No agent can listen at a path that fits no address.
    let error = if fits { errno() } else { libc::ENOENT };
    let kept = connected && put(socket);
    // SAFETY: a descriptor of this function's own; the connection has another one.
    let _any = unsafe { libc::close(socket) };
    OPEN.store(kept, Ordering::Release);
    match error {
        _ if kept => ConnectOutcome::Connected,
        libc::ENOENT | libc::ENOTDIR | libc::ECONNREFUSED if !connected => ConnectOutcome::NoAgent,
        _ => ConnectOutcome::Busy,
    }
}

/// A socket's number; 0: the descriptor is none of a socket.
fn inode(descriptor: c_int) -> u64 {
    // SAFETY: all zeroes are a state of no file.
    let mut state: libc::statx = unsafe { std::mem::zeroed() };
    let wanted = libc::STATX_TYPE | libc::STATX_INO;
    // SAFETY: a text that ends, and a place to write to; any number may be asked about.
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

/// The connection's descriptor, unless the program has closed it.
fn own() -> Option<c_int> {
    let descriptor = DESCRIPTOR.load(Ordering::Acquire);
    let known = INODE.load(Ordering::Acquire);
    (descriptor >= 0 && known != 0 && inode(descriptor) == known).then_some(descriptor)
}

/// Puts the connection in the place of the one before.
fn put(socket: c_int) -> bool {
    let before = own();
    INODE.store(inode(socket), Ordering::Release);
    if let Some(place) = before {
        // SAFETY: the place is this library's own.
        return unsafe { libc::dup3(socket, place, libc::O_CLOEXEC) } >= 0;
    }
    let mut from = FROM;
    loop {
        // SAFETY: a descriptor that is held.
        let place = unsafe { libc::fcntl(socket, libc::F_DUPFD_CLOEXEC, from) };
        if place >= 0 {
            DESCRIPTOR.store(place, Ordering::Release);
            return true;
        }
        if from == 3 {
            return false;
        }
        // The process may have a low limit of files.
        from = 3;
    }
}

/// Ends the connection; whoever waits for a message learns it.
pub(crate) fn shut() {
    OPEN.store(false, Ordering::Release);
    if let Some(descriptor) = own() {
        // SAFETY: no memory is passed.
        let _any = unsafe { libc::shutdown(descriptor, libc::SHUT_RDWR) };
    }
}

/// In a child of a fork: the connection is its parent's.
pub(crate) fn forget() {
    OPEN.store(false, Ordering::Release);
    let descriptor = own();
    DESCRIPTOR.store(-1, Ordering::Release);
    INODE.store(0, Ordering::Release);
    if let Some(descriptor) = descriptor {
        // SAFETY: the child's copy of this library's own descriptor.
        let _any = unsafe { libc::close(descriptor) };
    }
}

/// Sends a message whole; `false`: it was not.
pub(crate) fn send(message: &[u8]) -> bool {
    if !is_open() {
        return false;
    }
    let errno = errno();
    let Some(descriptor) = own() else {
        OPEN.store(false, Ordering::Release);
        set_errno(errno);
        return false;
    };
    // SAFETY: memory of that length. An agent that does not read is as good as none.
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
        shut();
    }
    set_errno(errno);
    whole
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn set_errno(value: c_int) {
    // SAFETY: no memory is passed.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: each thread has its own, always.
    unsafe { place.write(value) };
}

/// Waits for a message.
pub(crate) fn receive(at_most: Option<Duration>) -> Received {
    let Some(descriptor) = own().filter(|_| is_open()) else {
        OPEN.store(false, Ordering::Release);
        return Received::Gone;
    };
    let mut ready = libc::pollfd {
        fd: descriptor,
        events: libc::POLLIN,
        revents: 0,
    };
    let span = at_most.unwrap_or(LOOK);
    let until = time::now().saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX));
    let count = loop {
        let left = until.saturating_sub(time::now()).div_ceil(1_000_000);
        let timeout = c_int::try_from(left).unwrap_or(c_int::MAX);
        // SAFETY: one entry.
        let count = unsafe { libc::poll(&raw mut ready, 1, timeout) };
        // The program's signals, of which there may be many, are no answer.
        if count >= 0 || errno() != libc::EINTR || timeout == 0 {
            break count;
        }
    };
    if own() != Some(descriptor) {
        OPEN.store(false, Ordering::Release);
        return Received::Gone;
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
    // SAFETY: all zeroes are a head without parts.
    let mut head: libc::msghdr = unsafe { std::mem::zeroed() };
    head.msg_iov = &raw mut part;
    head.msg_iovlen = 1;
    head.msg_control = control.0.as_mut_ptr().cast();
    head.msg_controllen = size_of::<Control>();
    // SAFETY: the head names memory of this function's own.
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
            shut();
            Received::Gone
        }
        Ok(length) => {
            let message = bytes.get(..length).map(FromAgent::read);
            match message {
                Some(Ok(message)) => Received::Message(message, files),
                // Of another version, or cut: nothing that this library can use.
                _ => {
                    shut();
                    Received::Gone
                }
            }
        }
        Err(_) if errno() == libc::EAGAIN || errno() == libc::EINTR => Received::Nothing,
        Err(_) => {
            shut();
            Received::Gone
        }
    }
}

/// Room for two descriptors, aligned as their head must be.
#[repr(align(8))]
struct Control([u8; 64]);

fn files(head: &libc::msghdr) -> Option<Files> {
    // SAFETY: a head that the kernel has filled.
    let control = unsafe { libc::CMSG_FIRSTHDR(head) };
    // SAFETY: null, or a head within the memory above.
    let first = unsafe { control.as_ref() }?;
    if first.cmsg_level != libc::SOL_SOCKET || first.cmsg_type != libc::SCM_RIGHTS {
        return None;
    }
    // SAFETY: arithmetic alone.
    let two = unsafe { libc::CMSG_LEN(u32::try_from(2 * size_of::<c_int>()).unwrap_or(8)) };
    if first.cmsg_len != two as usize {
        return None;
    }
    // SAFETY: the head says that its data is there.
    let data = unsafe { libc::CMSG_DATA(control) }.cast::<c_int>();
    // SAFETY: two descriptors, as the length says.
    let orders = unsafe { data.read_unaligned() };
    // SAFETY: as above.
    let second = unsafe { data.add(1) };
    // SAFETY: as above.
    let facts = unsafe { second.read_unaligned() };
    Some(Files { orders, facts })
}
