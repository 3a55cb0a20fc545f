//! Accounting of body bytes that are buffered for slow readers, clients and user containers alike.
//!
//! Each piece of a body is charged to its [`Transfer`] and to the account of the process until its last byte is written
//! to the socket, when the queue that holds it, hyper's or h2's, drops it. While a transfer has reached its bound
//! ([`policy::buffers`]) its source is not read, so that the source's own flow control stops it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::{Buf, Bytes};
use policy::buffers::Bounds;
use tokio::time::Instant;

use crate::outage::LineLimit;
use crate::socket::ReadSize;

/// Largest read, in bytes, from a connection without a body in transfer: a head and a body of 64 KiB.
pub const FIRST_BYTES_MAX: usize = 67 * 1024;
/// Largest piece of a body, in bytes, if its reader has taken all earlier ones. It is a little below a power of two: see
/// [`ReadSize::set`].
const PIECE_BYTES_MAX: usize = 63 * 1024;
/// Buffered bytes of one body at which its source is no longer read. The most that is buffered of a body from HTTP/1 is
/// either one piece of [`FIRST_BYTES_MAX`], or less than this bound and one piece of [`LEAST_BYTES`]; another such piece
/// that hyper has read ahead or that is the body's last; and 32 KiB of TLS records: 114 KiB. The most of a body from
/// HTTP/2, in frames of 16 KiB, is less than this bound, the last frame and the stream's window of 64 KiB: 112 KiB.
const EACH_BYTES_MAX: usize = 32 * 1024;
/// Largest piece, in bytes, of a body with earlier pieces still buffered, and of any body once the account is full.
const LEAST_BYTES: usize = 15 * 1024;
/// Memory of a piece besides its bytes, in the queues of hyper and h2.
const PIECE_OVERHEAD_BYTES: usize = 256;
/// Size below which a piece that has to wait is copied, since it may be a small part of a large buffer.
const SMALL_BYTES: usize = 4 * 1024;

/// The account of all buffered body bytes of the process.
#[derive(Debug)]
pub struct Buffered {
    bounds: Bounds,
    held: AtomicUsize,
    /// Lines about bodies which wait because the account is full.
    full: LineLimit,
}

/// The account of one body in transfer.
#[derive(Debug)]
pub struct Transfer {
    account: Arc<Buffered>,
    state: Mutex<TransferState>,
}

#[derive(Debug, Default)]
struct TransferState {
    held: usize,
    /// Waker of the task that reads the source, while it must wait for room.
    waiting: Option<Waker>,
    /// Bound on reads of the HTTP/1 connection that the body comes from; `None` if it comes from an HTTP/2 stream or has
    /// been read to its end.
    source: Option<Arc<ReadSize>>,
}

/// Bytes of a body, which are charged to its accounts until they are dropped.
#[derive(Debug)]
pub struct Piece {
    bytes: Bytes,
    charge: Option<(Arc<Transfer>, usize)>,
}

/// A reservation on the account, released when it is dropped.
#[derive(Debug)]
pub struct Reservation {
    account: Arc<Buffered>,
    bytes: usize,
}

impl Buffered {
    /// Creates an empty account with a limit of about `bytes`.
    pub fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            bounds: Bounds {
                each: EACH_BYTES_MAX,
                all: bytes,
                piece: PIECE_BYTES_MAX,
                least: LEAST_BYTES,
            },
            held: AtomicUsize::new(0),
            full: LineLimit::default(),
        })
    }

    /// Reserves `bytes`, or returns `None` if there is no room for them.
    pub fn reserve(self: &Arc<Self>, bytes: usize) -> Option<Reservation> {
        let add = |held| {
            let has_room = self.bounds.may_reserve(bytes, held);
            has_room.then(|| held + bytes)
        };
        let reserved = self
            .held
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        reserved.ok().map(|_before| Reservation {
            account: Arc::clone(self),
            bytes,
        })
    }

    /// Returns whether all bodies together are below the limit.
    pub fn has_room(&self) -> bool {
        self.bounds.may_reserve(1, self.held())
    }

    fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Logs that a body waits for room, if that is because all bodies together are at the limit.
    fn report_if_full(&self) {
        if !self.has_room()
            && let Some(waits) = self.full.record(Instant::now())
        {
            tracing::warn!(
                held_bytes = self.held(),
                limit_bytes = self.bounds.all,
                waits,
                "the limit on buffered bytes is reached: bodies of slow readers are read piece by piece"
            );
        }
    }
}

impl Reservation {
    /// Creates a reservation of zero bytes.
    pub fn none(account: &Arc<Buffered>) -> Self {
        Self {
            account: Arc::clone(account),
            bytes: 0,
        }
    }

    /// Adds bytes that have been received already, even beyond the limit.
    pub fn add(&mut self, bytes: usize) {
        self.account.held.fetch_add(bytes, Ordering::Relaxed);
        self.bytes += bytes;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.account.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Transfer {
    /// Creates the account of a body without buffered bytes. `source` is the bound on reads of the HTTP/1 connection that
    /// the body comes from, or `None` for HTTP/2.
    pub fn new(account: &Arc<Buffered>, source: Option<Arc<ReadSize>>) -> Arc<Self> {
        let state = TransferState {
            source,
            ..TransferState::default()
        };
        let transfer = Self {
            account: Arc::clone(account),
            state: Mutex::new(state),
        };
        transfer.bound_reads(&transfer.lock());
        Arc::new(transfer)
    }

    /// Detaches the body from its source once it has been read to its end, and resets the bound on reads for the
    /// connection's next body.
    pub fn detach(&self) {
        if let Some(source) = self.lock().source.take() {
            source.set(FIRST_BYTES_MAX);
        }
    }

    /// Waits until the next piece may be read from the source. `left` is the number of bytes still to come, if known.
    pub fn poll_room(&self, left: Option<u64>, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        if self.may_take(state.held) || left.is_some_and(|left| self.may_take_rest(left)) {
            state.waiting = None;
            return Poll::Ready(());
        }
        state.waiting = Some(cx.waker().clone());
        drop(state);
        self.account.report_if_full();
        Poll::Pending
    }

    /// Charges bytes to this body and to the process, until the returned piece is dropped.
    pub fn piece(self: &Arc<Self>, bytes: Bytes) -> Piece {
        let charged = bytes.len() + PIECE_OVERHEAD_BYTES;
        let mut state = self.lock();
        let is_behind = state.held > 0;
        state.held += charged;
        self.account.held.fetch_add(charged, Ordering::Relaxed);
        self.bound_reads(&state);
        drop(state);
        let bytes = if is_behind && bytes.len() < SMALL_BYTES {
            Bytes::copy_from_slice(&bytes)
        } else {
            bytes
        };
        Piece {
            bytes,
            charge: Some((Arc::clone(self), charged)),
        }
    }

    fn release(&self, bytes: usize) {
        self.account.held.fetch_sub(bytes, Ordering::Relaxed);
        let mut state = self.lock();
        state.held -= bytes;
        self.bound_reads(&state);
        // No other body needs to wake it: while this body has buffered pieces, its own reader will take them and wake it.
        let woken = if self.may_take(state.held) {
            state.waiting.take()
        } else {
            None
        };
        drop(state);
        if let Some(waker) = woken {
            waker.wake();
        }
    }

    fn may_take(&self, own: usize) -> bool {
        self.account.bounds.may_take(own, self.account.held())
    }

    fn may_take_rest(&self, left: u64) -> bool {
        self.account.bounds.may_take_rest(left, self.account.held())
    }

    fn piece_max(&self, own: usize) -> usize {
        self.account.bounds.piece_max(own, self.account.held())
    }

    /// Adjusts the bound on the next read of the source.
    fn bound_reads(&self, state: &TransferState) {
        if let Some(source) = &state.source {
            source.set(self.piece_max(state.held));
        }
    }

    fn lock(&self) -> MutexGuard<'_, TransferState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Piece {
    /// Creates a piece that is not charged to any account, for the proxy's own bytes.
    pub const fn free(bytes: Bytes) -> Self {
        Self {
            bytes,
            charge: None,
        }
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        if let Some((transfer, charged)) = self.charge.take() {
            transfer.release(charged);
        }
    }
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
    }

    fn copy_to_bytes(&mut self, len: usize) -> Bytes {
        self.bytes.copy_to_bytes(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::task::Wake;

    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    fn has_room(transfer: &Transfer) -> bool {
        let cx = Context::from_waker(Waker::noop());
        transfer.poll_room(None, &cx).is_ready()
    }

    fn fill(transfer: &Arc<Transfer>) -> Vec<Piece> {
        let mut pieces = Vec::new();
        while has_room(transfer) {
            pieces.push(transfer.piece(Bytes::from_static(&[0; 16 * 1024])));
        }
        pieces
    }

    #[test]
    fn a_body_at_its_bound_waits_until_its_reader_takes_a_piece() {
        let account = Buffered::new(1 << 20);
        let transfer = Transfer::new(&account, None);
        let mut pieces = fill(&transfer);
        assert_eq!(pieces.len(), 2);
        let woken = Arc::<Woken>::default();
        let waker = Waker::from(Arc::clone(&woken));
        assert!(
            transfer
                .poll_room(None, &Context::from_waker(&waker))
                .is_pending()
        );
        pieces[0].advance(16 * 1024 - 1);
        assert!(
            !woken.0.load(Ordering::Relaxed),
            "a partly written piece stays charged"
        );
        drop(pieces.remove(0));
        assert!(woken.0.load(Ordering::Relaxed));
        assert!(has_room(&transfer));
    }

    #[test]
    fn reads_are_large_while_nothing_is_buffered_and_for_the_next_body() {
        let account = Buffered::new(100_000);
        let source = Arc::<ReadSize>::default();
        source.set(1);
        let transfer = Transfer::new(&account, Some(Arc::clone(&source)));
        assert_eq!(source.get(), 63 * 1024);
        let piece = transfer.piece(Bytes::from_static(&[0; 16 * 1024]));
        assert_eq!(source.get(), 15 * 1024);
        drop(piece);
        assert_eq!(source.get(), 63 * 1024);
        let late = transfer.piece(Bytes::from_static(&[0; 16 * 1024]));
        transfer.detach();
        assert_eq!(
            source.get(),
            FIRST_BYTES_MAX,
            "nothing is buffered of the next body"
        );
        source.set(1);
        drop(late);
        assert_eq!(source.get(), 1, "the source belongs to another body");
        let stuck = Transfer::new(&account, None).piece(Bytes::from_static(&[0; 100_000]));
        let _another = Transfer::new(&account, Some(Arc::clone(&source)));
        assert_eq!(source.get(), 15 * 1024, "the account is full");
        drop(stuck);
    }

    #[test]
    fn while_the_account_is_full_a_body_takes_one_piece_at_a_time() {
        let account = Buffered::new(100_000);
        let stuck: Vec<_> = (0..4)
            .map(|_| {
                let transfer = Transfer::new(&account, None);
                (fill(&transfer), transfer)
            })
            .collect();
        let lively = Transfer::new(&account, None);
        for _ in 0..3 {
            let pieces = fill(&lively);
            assert_eq!(pieces.len(), 1, "{account:?}");
        }
        assert!(account.reserve(1).is_none());
        drop(stuck);
        assert_eq!(fill(&lively).len(), 2);
        assert_eq!(account.held.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn reservations_count_until_they_are_dropped() {
        let account = Buffered::new(100_000);
        let first = account.reserve(60_000);
        assert!(first.is_some() && account.reserve(60_000).is_none());
        drop(first);
        assert!(account.reserve(60_000).is_some());
    }

    #[test]
    fn a_small_waiting_piece_does_not_keep_a_large_buffer_alive() {
        let account = Buffered::new(1 << 20);
        let transfer = Transfer::new(&account, None);
        let large = Bytes::from(vec![7; 64 * 1024]);
        let first = transfer.piece(large.slice(..10));
        let second = transfer.piece(large.slice(10..20));
        assert_eq!(first.chunk().as_ptr(), large.as_ptr());
        assert_ne!(second.chunk().as_ptr(), large[10..].as_ptr());
        assert_eq!(
            (first.chunk(), second.chunk()),
            (&[7; 10][..], &[7; 10][..])
        );
    }
}
