//! Models that other slots copy from (M2.7).

use std::fmt;

/// Id of a model on a slot from which others may copy: a small integer given by the caller.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SourceId(pub u32);

/// Id of a copy from slot to slot: a small integer given by the caller, reused once the copy has ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct TransferId(pub u32);

/// Order to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferAction {
    /// Start copying from the first group on.
    Start {
        /// Id of the copy.
        transfer: TransferId,
        /// Reason why the copy may start.
        reason: StartReason,
    },
    /// Stop copying. What was copied is invalid.
    Stop {
        /// Id of the copy.
        transfer: TransferId,
        /// Reason why the copy is stopped.
        reason: StopReason,
    },
}

/// Reason why a copy may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartReason {
    /// No block of the source has been written.
    ReadOnly,
    /// The source is dirty and idle.
    Idle,
}

/// Reason why a copy is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The source has written in the meantime. It is copied anew once it is idle.
    SourceWrote,
    /// The source is gone, and the copy with it: another source has to be found.
    SourceGone,
}

/// Error of a request with the id of an existing copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferTaken {
    /// Id of the copy.
    pub transfer: TransferId,
}

#[derive(Clone, Copy, Debug)]
struct Source {
    running: bool,
    dirty: bool,
    locks: u32,
    copying: u32,
    first: u32,
    last: u32,
}

#[derive(Clone, Copy, Debug)]
struct Transfer {
    source: u32,
    copying: bool,
    previous: u32,
    next: u32,
}

const NONE: u32 = u32::MAX;

impl Source {
    const IDLE: Self = Self {
        running: false,
        dirty: false,
        locks: 0,
        copying: 0,
        first: NONE,
        last: NONE,
    };

    const fn may_be_copied(&self) -> Option<StartReason> {
        match (self.dirty, self.running) {
            (false, _) => Some(StartReason::ReadOnly),
            (true, false) => Some(StartReason::Idle),
            (true, true) => None,
        }
    }
}

/// Models of a node that other slots copy from.
///
/// From the request to the end of the copy the source is locked: it must not be evicted. Weights are only read, so
/// copying continues while the source computes. A source with dirty blocks is copied only while it is idle, and must
/// not run in the meantime ([`Sources::may_run`]). If it writes nevertheless, because the write could not be foreseen,
/// the copies under way are invalid: they are stopped, and start again once it is idle.
///
/// All calls are O(copies of one source). A source that was never mentioned is idle and clean.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    sources: Vec<Source>,
    transfers: Vec<Option<Transfer>>,
}

impl Sources {
    /// Creates a set without sources and copies.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            sources: Vec::new(),
            transfers: Vec::new(),
        }
    }

    /// Requests a copy of a model from a source. The source is locked at once; [`TransferAction::Start`] is ordered
    /// now, or when the source is idle.
    ///
    /// # Errors
    /// Returns [`TransferTaken`] if a copy of this id already exists.
    pub fn request(
        &mut self,
        transfer: TransferId,
        source: SourceId,
        actions: &mut Vec<TransferAction>,
    ) -> Result<(), TransferTaken> {
        let at = transfer.0 as usize;
        if self.transfers.len() <= at {
            self.transfers.resize(at + 1, None);
        }
        if self.transfers[at].is_some() {
            return Err(TransferTaken { transfer });
        }
        let entry = self.source_mut(source);
        entry.locks += 1;
        let previous = std::mem::replace(&mut entry.last, transfer.0);
        if previous == NONE {
            entry.first = transfer.0;
        } else if let Some(previous) = &mut self.transfers[previous as usize] {
            previous.next = transfer.0;
        }
        self.transfers[at] = Some(Transfer {
            source: source.0,
            copying: false,
            previous,
            next: NONE,
        });
        self.start(source, actions);
        Ok(())
    }

    /// Records that a copy is complete or was given up. Ignored for an unknown copy.
    pub fn ended(&mut self, transfer: TransferId) {
        let taken = self.transfers.get_mut(transfer.0 as usize);
        let Some(ended) = taken.and_then(Option::take) else {
            return;
        };
        let source = &mut self.sources[ended.source as usize];
        source.locks -= 1;
        source.copying -= u32::from(ended.copying);
        if ended.previous == NONE {
            source.first = ended.next;
        }
        if ended.next == NONE {
            source.last = ended.previous;
        }
        if let Some(Some(previous)) = self.transfers.get_mut(ended.previous as usize) {
            previous.next = ended.next;
        }
        if let Some(Some(next)) = self.transfers.get_mut(ended.next as usize) {
            next.previous = ended.previous;
        }
    }

    /// Records that a source begins or ends to compute. The caller checks [`Sources::may_run`] before it begins: if a
    /// dirty source computes nevertheless, copies from it are stopped.
    pub fn running(&mut self, source: SourceId, running: bool, actions: &mut Vec<TransferAction>) {
        self.source_mut(source).running = running;
        if self.source_mut(source).may_be_copied().is_none() {
            self.stop(source, actions);
        } else {
            self.start(source, actions);
        }
    }

    /// Records a write to a source: it is dirty from now on, and what was copied of it is invalid.
    pub fn wrote(&mut self, source: SourceId, actions: &mut Vec<TransferAction>) {
        self.source_mut(source).dirty = true;
        self.stop(source, actions);
        self.start(source, actions);
    }

    /// Records that a source has no dirty blocks any more, because they were copied back.
    pub fn cleaned(&mut self, source: SourceId, actions: &mut Vec<TransferAction>) {
        self.source_mut(source).dirty = false;
        self.start(source, actions);
    }

    /// Removes a source that was lost, as by a fault: its copies are stopped and removed.
    pub fn remove(&mut self, source: SourceId, actions: &mut Vec<TransferAction>) {
        loop {
            let transfer = TransferId(self.source_mut(source).first);
            if transfer.0 == NONE {
                break;
            }
            self.ended(transfer);
            actions.push(TransferAction::Stop {
                transfer,
                reason: StopReason::SourceGone,
            });
        }
        *self.source_mut(source) = Source::IDLE;
    }

    /// Returns whether a source may be evicted as far as copies are concerned: no copy reads from it or waits for it.
    #[must_use]
    pub fn may_evict(&self, source: SourceId) -> bool {
        let source = self.sources.get(source.0 as usize);
        source.is_none_or(|source| source.locks == 0)
    }

    /// Returns whether a source may compute, which it may not while its dirty blocks are being copied.
    #[must_use]
    pub fn may_run(&self, source: SourceId) -> bool {
        let source = self.sources.get(source.0 as usize);
        source.is_none_or(|source| !source.dirty || source.copying == 0)
    }

    fn source_mut(&mut self, source: SourceId) -> &mut Source {
        let at = source.0 as usize;
        if self.sources.len() <= at {
            self.sources.resize(at + 1, Source::IDLE);
        }
        &mut self.sources[at]
    }

    /// Starts the waiting copies, in order of arrival.
    fn start(&mut self, source: SourceId, actions: &mut Vec<TransferAction>) {
        let entry = &mut self.sources[source.0 as usize];
        let Some(reason) = entry.may_be_copied() else {
            return;
        };
        if entry.copying == entry.locks {
            return;
        }
        entry.copying = entry.locks;
        self.turn(source, true, |transfer| {
            actions.push(TransferAction::Start { transfer, reason });
        });
    }

    fn stop(&mut self, source: SourceId, actions: &mut Vec<TransferAction>) {
        self.sources[source.0 as usize].copying = 0;
        self.turn(source, false, |transfer| {
            actions.push(TransferAction::Stop {
                transfer,
                reason: StopReason::SourceWrote,
            });
        });
    }

    /// Sets all of a source's copies to copying, or to not copying, and calls `changed` for those that were otherwise.
    fn turn(&mut self, source: SourceId, copying: bool, mut changed: impl FnMut(TransferId)) {
        let mut at = self.sources[source.0 as usize].first;
        while let Some(Some(transfer)) = self.transfers.get_mut(at as usize) {
            if transfer.copying != copying {
                transfer.copying = copying;
                changed(TransferId(at));
            }
            at = transfer.next;
        }
    }
}

impl fmt::Display for TransferTaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "copy {} already exists", self.transfer.0)
    }
}

impl std::error::Error for TransferTaken {}
