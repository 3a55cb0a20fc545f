//! Models that other slots copy from (M2.7).

use std::fmt;

/// A model on a slot from which others may copy: a small integer given by the caller.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SourceId(pub u32);

/// A copy from slot to slot: a small integer given by the caller, free again when it has ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct TransferId(pub u32);

/// An order to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferAction {
    /// Copy, from the first group on.
    Start {
        /// Which.
        transfer: TransferId,
        /// Why it may.
        reason: StartReason,
    },
    /// Do not copy any more. What was copied is void.
    Stop {
        /// Which.
        transfer: TransferId,
        /// Why.
        reason: StopReason,
    },
}

/// Why a copy may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartReason {
    /// Nothing on the source has been written.
    ReadOnly,
    /// The source is dirty, and idle.
    Idle,
}

/// Why a copy is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The source has written meanwhile. It is copied anew when it is idle.
    SourceWrote,
    /// The source is gone, and the copy with it: another source has to be found.
    SourceGone,
}

/// There is a copy of that id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransferTaken {
    /// Which.
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

/// The models of a node that other slots copy from.
///
/// From the request to the end of the copy the source is locked: it must not be evicted. Weights are only read, so
/// copying goes on while the source computes. A source with dirty blocks is copied only while it is idle, and does
/// not run meanwhile ([`Sources::may_run`]); one that writes all the same, as nobody knew that it would, spoils
/// the copies under way: they are stopped, and start again when it is idle.
///
/// All calls are O(copies of one source); a source that was never named is idle and clean.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    sources: Vec<Source>,
    transfers: Vec<Option<Transfer>>,
}

impl Sources {
    /// No source and no copy.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            sources: Vec::new(),
            transfers: Vec::new(),
        }
    }

    /// A slot wants to copy a model from there. The source is locked at once; [`TransferAction::Start`] comes now or
    /// when the source is idle.
    ///
    /// # Errors
    /// [`TransferTaken`] if the copy is there already.
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

    /// A copy is complete, or given up. Nothing for one that is not there.
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

    /// A source begins or ends to compute. Ask [`Sources::may_run`] before it begins: if a dirty one does all the
    /// same, copies from it are stopped.
    pub fn running(&mut self, source: SourceId, running: bool, actions: &mut Vec<TransferAction>) {
        self.source_mut(source).running = running;
        if self.source_mut(source).may_be_copied().is_none() {
            self.stop(source, actions);
        } else {
            self.start(source, actions);
        }
    }

    /// A source has been written to: it is dirty from now on, and what was copied of it is void.
    pub fn wrote(&mut self, source: SourceId, actions: &mut Vec<TransferAction>) {
        self.source_mut(source).dirty = true;
        self.stop(source, actions);
        self.start(source, actions);
    }

    /// A source has no dirty blocks any more: they were copied back.
    pub fn cleaned(&mut self, source: SourceId, actions: &mut Vec<TransferAction>) {
        self.source_mut(source).dirty = false;
        self.start(source, actions);
    }

    /// A source is lost, as by a fault: its copies are stopped, and gone.
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

    /// Whether a source may be evicted as far as copies are concerned: nobody copies from it or waits to.
    #[must_use]
    pub fn may_evict(&self, source: SourceId) -> bool {
        let source = self.sources.get(source.0 as usize);
        source.is_none_or(|source| source.locks == 0)
    }

    /// Whether a source may compute: not while its dirty blocks are copied.
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

    /// Starts what waits, in order of arrival.
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

    /// Makes all of a source's copies go on, or none, and tells which were otherwise.
    fn turn(&mut self, source: SourceId, copying: bool, mut tell: impl FnMut(TransferId)) {
        let mut at = self.sources[source.0 as usize].first;
        while let Some(Some(transfer)) = self.transfers.get_mut(at as usize) {
            if transfer.copying != copying {
                transfer.copying = copying;
                tell(TransferId(at));
            }
            at = transfer.next;
        }
    }
}

impl fmt::Display for TransferTaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "copy {} is under way already", self.transfer.0)
    }
}

impl std::error::Error for TransferTaken {}
