//! What the process holds of bodies for readers that are slow, clients and user containers alike.
//!
//! Each piece of a body is charged to its [`Transfer`] and to the account of the process until the last of it has
//! gone to the socket: whoever holds the piece then, hyper's queue or h2's, drops it. While a transfer may not take
//! more ([`policy::buffers`]) its source is not read, so that the source's own flow control stops it.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::{Buf, Bytes};
use policy::buffers::Bounds;

use crate::socket::ReadSize;

/// The largest read of a connection on which no body is under way: a head and a body of 64 KiB.
pub const FIRST_BYTES_MAX: usize = 67 * 1024;
/// The largest piece of a body whose reader has taken all before it. It is less than a power of two: see [`ReadSize::set`].
const PIECE_BYTES_MAX: usize = 63 * 1024;
/// A body of which this much is held takes no more. Of one that comes over HTTP/1 at most a piece of
/// [`FIRST_BYTES_MAX`] is held, or less than this and one of [`LEAST_BYTES`]; another of those that hyper has read
/// ahead, or that is the body's last; and 32 KiB that are encrypted over TLS: 114 KiB. Of one that comes over HTTP/2, in
/// frames of 16 KiB, it is less than this, the last of them and the stream's window of 64 KiB: 112 KiB.
const EACH_BYTES_MAX: usize = 32 * 1024;
/// The largest piece of a body that holds something, and of any where there is no room for all.
const LEAST_BYTES: usize = 15 * 1024;
/// What a piece takes besides its bytes, in the queues of hyper and h2.
const PIECE_OVERHEAD_BYTES: usize = 256;
/// A piece below this that has to wait is copied: it may be a small part of a large buffer.
const SMALL_BYTES: usize = 4 * 1024;

/// The account of the process.
#[derive(Debug)]
pub struct Buffered {
    bounds: Bounds,
    held: AtomicUsize,
}

/// One body on its way.
#[derive(Debug)]
pub struct Transfer {
    account: Arc<Buffered>,
    state: Mutex<TransferState>,
}

#[derive(Debug, Default)]
struct TransferState {
    held: usize,
    /// Whoever reads the source, while it may not.
    waiting: Option<Waker>,
    /// The bound on reads of the HTTP/1 connection that it comes from; `None`: it comes from an HTTP/2 stream, or
    /// has been read to its end.
    source: Option<Arc<ReadSize>>,
}

/// Bytes of a body, charged until they are dropped.
#[derive(Debug)]
pub struct Piece {
    bytes: Bytes,
    charge: Option<(Arc<Transfer>, usize)>,
}

/// Bytes set aside on the account, until this is dropped.
#[derive(Debug)]
pub struct Reserved {
    account: Arc<Buffered>,
    bytes: usize,
}

impl Buffered {
    /// Returns an empty account that holds at most about `bytes`.
    pub fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            bounds: Bounds {
                each: EACH_BYTES_MAX,
                all: bytes,
                piece: PIECE_BYTES_MAX,
                least: LEAST_BYTES,
            },
            held: AtomicUsize::new(0),
        })
    }

    /// Sets `bytes` aside, if there is room for them.
    pub fn reserve(self: &Arc<Self>, bytes: usize) -> Option<Reserved> {
        let add = |held| {
            let has_room = self.bounds.may_reserve(bytes, held);
            has_room.then(|| held + bytes)
        };
        let reserved = self
            .held
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        reserved.ok().map(|_before| Reserved {
            account: Arc::clone(self),
            bytes,
        })
    }

    /// Returns whether bodies hold less than they may together.
    pub fn has_room(&self) -> bool {
        self.bounds.may_reserve(1, self.held())
    }

    fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }
}

impl Reserved {
    /// Sets nothing aside yet.
    pub fn none(account: &Arc<Buffered>) -> Self {
        Self {
            account: Arc::clone(account),
            bytes: 0,
        }
    }

    /// Sets bytes aside that have come already.
    pub fn add(&mut self, bytes: usize) {
        self.account.held.fetch_add(bytes, Ordering::Relaxed);
        self.bytes += bytes;
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.account.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Transfer {
    /// Returns a body of which nothing is held yet. `source`: the bound on reads of the HTTP/1 connection that it comes
    /// from, if it does.
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

    /// Lets go of the source: all of the body has been read, and the connection's next is a body of its own.
    pub fn detach(&self) {
        if let Some(source) = self.lock().source.take() {
            source.set(FIRST_BYTES_MAX);
        }
    }

    /// Ready when the next piece may be taken from the source, of which `left` bytes are to come if that is known.
    pub fn poll_room(&self, left: Option<u64>, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        if self.may_take(state.held) || left.is_some_and(|left| self.may_take_rest(left)) {
            state.waiting = None;
            return Poll::Ready(());
        }
        state.waiting = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Charges a piece.
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
        // Nobody else need wake it: while it holds something, its own reader has something to take.
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

    /// Bounds the next read of the source.
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
    /// Returns bytes that nobody is charged for: the proxy's own.
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
    fn a_body_takes_no_more_than_its_bound_until_its_reader_takes_a_piece() {
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
        assert!(!woken.0.load(Ordering::Relaxed), "a part keeps the whole");
        drop(pieces.remove(0));
        assert!(woken.0.load(Ordering::Relaxed));
        assert!(has_room(&transfer));
    }

    #[test]
    fn reads_are_large_while_the_reader_has_taken_all_and_for_the_next_body() {
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
        assert_eq!(source.get(), FIRST_BYTES_MAX, "the next body holds nothing");
        source.set(1);
        drop(late);
        assert_eq!(source.get(), 1, "it is another's");
        let stuck = Transfer::new(&account, None).piece(Bytes::from_static(&[0; 100_000]));
        let _another = Transfer::new(&account, Some(Arc::clone(&source)));
        assert_eq!(source.get(), 15 * 1024, "there is no room for all");
        drop(stuck);
    }

    #[test]
    fn beyond_the_account_a_body_takes_one_piece_at_a_time() {
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
    fn what_is_set_aside_counts_until_it_is_dropped() {
        let account = Buffered::new(100_000);
        let first = account.reserve(60_000);
        assert!(first.is_some() && account.reserve(60_000).is_none());
        drop(first);
        assert!(account.reserve(60_000).is_some());
    }

    #[test]
    fn a_small_piece_that_has_to_wait_keeps_no_large_buffer() {
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
